"""A share of real requests decoded both ways, and what came of it; docs/canary.md.

turns      work between requests, that gives way to the next one
comparing  two results of one request → a comparison, and evidence where rounding explains nothing
deciding   comparisons → a verdict: watching, on, off
record     canaries/<fingerprint>.json, where `specedge.keeping` says
watching   the canary of one model: who is compared, and what a verdict does
"""
