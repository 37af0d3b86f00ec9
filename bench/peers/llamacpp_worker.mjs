// llama.cpp, by way of node-llama-cpp, behind the protocol of `process.py`.
//
//     node llamacpp_worker.mjs '{"modules": FOLDER, "model": GGUF, "threads": 2, "context": 4096}'
//
// `modules` is the folder that holds node_modules/node-llama-cpp.

import {readFileSync} from "node:fs";
import {createRequire} from "node:module";
import {join} from "node:path";
import {createInterface} from "node:readline";
import {pathToFileURL} from "node:url";

const given = JSON.parse(process.argv[2]);
const require = createRequire(join(given.modules, "package.json"));
const entry = require.resolve("node-llama-cpp");
const {getLlama} = await import(pathToFileURL(entry));
const version = JSON.parse(readFileSync(join(entry, "../../package.json"), "utf8")).version;

const llama = await getLlama({gpu: false, build: "never", maxThreads: given.threads});
const model = await llama.loadModel({modelPath: given.model, gpuLayers: 0});
const context = await model.createContext({
    contextSize: given.context,
    sequences: 1,
    threads: {ideal: given.threads, min: given.threads}
});
const sequence = context.getSequence();

// Time inside llama.cpp's own decode call, the hop to the binding's thread included: what is left of
// decode_ms is the binding's.
let engineMs = 0;
const inner = context._ctx;
const decodeBatch = inner.decodeBatch.bind(inner);
Object.defineProperty(inner, "decodeBatch", {
    value: async (...args) => {
        const started = performance.now();
        try {
            return await decodeBatch(...args);
        } finally {
            engineMs += performance.now() - started;
        }
    }
});

// One greedy request from an empty KV.
async function generate(ids, maxTokens) {
    await sequence.clearHistory();
    const tokens = [];
    const started = performance.now();
    let first = started;
    for await (const token of sequence.evaluate(ids, {temperature: 0, yieldEogToken: true})) {
        if (tokens.push(token) === 1) {
            first = performance.now();
            engineMs = 0;
        }
        if (tokens.length === maxTokens)
            break;
    }
    const ended = performance.now();
    return {tokens, ttft_ms: first - started, decode_ms: ended - first, engine_ms: engineMs};
}

function say(object) {
    process.stdout.write(JSON.stringify(object) + "\n");
}

const variant = readFileSync("/proc/self/maps", "utf8").match(/libggml-cpu-(\w+)\.so/)?.[1] ?? "unknown";
const release = llama.llamaCppRelease.release;
say({
    ready: `llama.cpp ${release} (node-llama-cpp ${version}), cpu (${variant}), ${given.threads} threads`
});
for await (const line of createInterface({input: process.stdin})) {
    const request = JSON.parse(line);
    if (request.ids.length + request.max_tokens > context.contextSize)
        throw new Error(`${request.ids.length} + ${request.max_tokens} tokens, the context is ${context.contextSize}`);
    say(await generate(request.ids, request.max_tokens));
}
await llama.dispose();
