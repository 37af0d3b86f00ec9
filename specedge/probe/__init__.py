"""Whether speculation pays on this machine: measured once and kept.

curves       T(N): milliseconds of a call of N new tokens after P cached rows; looked up, not fitted
measuring    interleaved repetitions within a budget of seconds → curves
replay       what drafts would have come to on a text that was decoded plainly
calibrating  prompts of every class: decoded plainly, replayed, then in pairs (pairs) both ways
intervals    a gain with its 90 % interval, over prompts
deciding     replays and pairs → findings: a verdict for each proposer on each class, and why
fingerprint  what a measurement depends on: bundle, engine, processor, settings
record       probes/<fingerprint>.json, beside the bundle's files or in the user's cache
probing      a bundle's folder → its record, measured where need be
"""
