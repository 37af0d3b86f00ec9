"""Processors as plain loops in float64, straight from their definitions."""

import math

import numpy as np


def edited(row, params, prompt, output, end_ids=()):
    """Logits before the temperature; each processor rounds to float32."""
    logits = [float(x) for x in row]

    def put(token, value):
        with np.errstate(over="ignore"):
            logits[token] = float(np.float32(value))

    for token in {*prompt, *output}:
        value, penalty = logits[token], params.repetition_penalty
        put(token, value / penalty if value > 0 else value * penalty)
    for token in set(output):
        put(token, logits[token] - params.frequency_penalty * output.count(token))
    for token in set(output):
        put(token, logits[token] - params.presence_penalty)
    for token, amount in params.logit_bias:
        put(token, logits[token] + amount)
    for token in params.banned_tokens:
        logits[token] = -math.inf
    if len(output) < params.min_tokens:
        for token in end_ids:
            logits[token] = -math.inf
    return logits


def kept(logits, params):
    """{id: weight relative to the largest} of what top-k, top-p and min-p leave."""
    top = max(logits)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    order = [i for i in order if logits[i] > -math.inf]
    if params.top_k:
        order = order[: params.top_k]
    weight = {i: math.exp((logits[i] - top) / params.temperature) for i in order}
    if params.top_p < 1:
        total = math.fsum(weight.values())
        before, nucleus = 0.0, []
        for i in order:
            nucleus.append(i)
            before += weight[i]
            if before / total >= params.top_p:
                break
        order = nucleus
    return {i: weight[i] for i in order if weight[i] >= params.min_p}


def probabilities(row, params, prompt=(), output=(), end_ids=()):
    """float64 [V], of the next token."""
    logits = edited(row, params, list(prompt), list(output), end_ids)
    out = np.zeros(len(logits))
    if params.temperature == 0:
        out[logits.index(max(logits))] = 1
        return out
    weight = kept(logits, params)
    for i, w in weight.items():
        out[i] = w
    return out / math.fsum(weight.values())


def support(row, params, prompt=(), output=(), end_ids=()):
    """Ids that are kept, rising, those with a weight too small for a float included."""
    return sorted(kept(edited(row, params, list(prompt), list(output), end_ids), params))
