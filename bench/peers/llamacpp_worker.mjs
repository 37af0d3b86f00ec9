// llama.cpp, by way of node-llama-cpp, behind the protocol of `process.py`.
//
//     node llamacpp_worker.mjs '{"modules": FOLDER, "model": GGUF, "threads": 2, "context": 4096,
//                                "mode": "plain"}'
//
// `modules` is the folder that holds node_modules/node-llama-cpp. Mode "lookup" takes "k", mode
// "draft" takes "k" and "draft", another GGUF.

import {readFileSync} from "node:fs";
import {createRequire, register} from "node:module";
import {basename, join} from "node:path";
import {createInterface} from "node:readline";
import {pathToFileURL} from "node:url";

const given = JSON.parse(process.argv[2]);
const require = createRequire(join(given.modules, "package.json"));
const entry = require.resolve("node-llama-cpp");

// node-llama-cpp 3.21.1 checks a drafted token against `validatedTokens`, which it never fills, so
// that it accepts one a round at most. llama.cpp itself does not: the missing line is put in as the
// file is loaded, unless the version no longer has the gap.
const COUNTED = "this._validatedTokenPredictions++;";
const FILLED = "validatedTokens.push([evalTokens[i], resultToken]);";
const evaluator = readFileSync(join(entry, "../evaluator/LlamaContext/LlamaContext.js"), "utf8");
const mended = given.mode !== "plain" && evaluator.includes(COUNTED) && !evaluator.includes("validatedTokens.push(");
if (mended) {
    const hook = `export async function load(url, context, next) {
        const loaded = await next(url, context);
        if (!url.endsWith("/LlamaContext.js"))
            return loaded;
        const source = loaded.source.toString().replace("${COUNTED}", "${FILLED} ${COUNTED}");
        return {...loaded, source};
    }`;
    register("data:text/javascript," + encodeURIComponent(hook));
}

const {getLlama, DraftSequenceTokenPredictor, InputLookupTokenPredictor} = await import(pathToFileURL(entry));
const version = JSON.parse(readFileSync(join(entry, "../../package.json"), "utf8")).version;

const llama = await getLlama({gpu: false, build: "never", maxThreads: given.threads});

async function openContext(modelPath) {
    const model = await llama.loadModel({modelPath, gpuLayers: 0});
    return await model.createContext({
        contextSize: given.context,
        sequences: 1,
        threads: {ideal: given.threads, min: given.threads}
    });
}

const context = await openContext(given.model);
let draftSequence, tokenPredictor;
if (given.mode === "lookup")
    tokenPredictor = new InputLookupTokenPredictor({predictionLength: {max: given.k}});
if (given.mode === "draft") {
    draftSequence = (await openContext(given.draft)).getSequence();
    // minTokens 0, its default, drafts beside the target's own call and is never done in time on so
    // few processors. With K it waits, unless the draft is less sure of a token than its default.
    tokenPredictor = new DraftSequenceTokenPredictor(draftSequence, {minTokens: given.k, maxTokens: given.k});
}
const sequence = context.getSequence({tokenPredictor});

// Target calls, and the time inside llama.cpp's own decode call, the hop to the binding's thread
// included: what is left of decode_ms is the binding's, and the draft's.
let engineMs = 0;
let calls = 0;
const inner = context._ctx;
const decodeBatch = inner.decodeBatch.bind(inner);
Object.defineProperty(inner, "decodeBatch", {
    value: async (...args) => {
        const started = performance.now();
        try {
            return await decodeBatch(...args);
        } finally {
            engineMs += performance.now() - started;
            calls += 1;
        }
    }
});

// One greedy request from an empty KV.
async function generate(ids, maxTokens) {
    await sequence.clearHistory();
    await draftSequence?.clearHistory();
    const before = sequence.tokenPredictions;
    const tokens = [];
    let firstTokens = 1;
    const started = performance.now();
    let first = started;
    // its chat session tells the predictor the prompt in the same way
    tokenPredictor?.updateInputTokens(ids);
    for await (const token of sequence.evaluate(ids, {temperature: 0, yieldEogToken: true})) {
        if (tokens.push(token) === 1) {
            first = performance.now();
            // drafted with the prompt and already accepted: they come without another call
            firstTokens += tokenPredictor == null ? 0 : sequence.tokenPredictions.unused - before.unused;
            engineMs = calls = 0;
        }
        if (tokens.length === maxTokens)
            break;
    }
    const ended = performance.now();
    const answer = {tokens, ttft_ms: first - started, decode_ms: ended - first, first_tokens: firstTokens};
    if (tokenPredictor == null)
        return {...answer, engine_ms: engineMs};
    const after = sequence.tokenPredictions;
    const accepted = after.validated - before.validated;
    const proposed = accepted + after.refuted - before.refuted;
    return {
        ...answer,
        rounds: calls,
        acceptance_length: calls > 0 ? (maxTokens - firstTokens) / calls : null,
        acceptance_rate: proposed > 0 ? accepted / proposed : null
    };
}

function say(object) {
    process.stdout.write(JSON.stringify(object) + "\n");
}

const variant = readFileSync("/proc/self/maps", "utf8").match(/libggml-cpu-(\w+)\.so/)?.[1] ?? "unknown";
const release = llama.llamaCppRelease.release;
const how = mended ? " with its acceptance mended" : "";
const files = basename(given.model) + (given.draft == null ? "" : `, draft ${basename(given.draft)}`);
say({
    ready: `llama.cpp ${release} (node-llama-cpp ${version}${how}), cpu (${variant}), ${given.threads} threads, ${files}`
});
for await (const line of createInterface({input: process.stdin})) {
    const request = JSON.parse(line);
    if (request.ids.length + request.max_tokens > context.contextSize)
        throw new Error(`${request.ids.length} + ${request.max_tokens} tokens, the context is ${context.contextSize}`);
    say(await generate(request.ids, request.max_tokens));
}
await llama.dispose();
