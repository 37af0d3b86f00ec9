"""The load you will have: what `specedge bench` runs, records and compares. docs/bench.md.

planning     what a person asks for → a plan; benching: from a bundle's folder to a kept result
arrivals     when requests come; trace: recorded times
serving      the queue and the one engine; running: every way over every load
recording    an answer → records, the data of a result; keeping: a result as a folder
outputs      whether every way says what plain decoding says

summary      a result in figures; rounds, quantiles: parts of it; sentences: in words
paired       times side by side, prompt by prompt; judging: whether a ratio is more than noise
against      a way against plain decoding
comparing    two results; common: what both hold; differences: in words
written      findings as JSON
"""
