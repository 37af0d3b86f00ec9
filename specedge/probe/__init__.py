"""What a call costs on this machine, measured once and kept.

curves       T(N): milliseconds of a call of N new tokens after P cached rows; looked up, not fitted
measuring    interleaved repetitions within a budget of seconds → curves
fingerprint  what a measurement depends on: bundle, engine, processor, settings
record       probes/<fingerprint>.json, beside the bundle's files or in the user's cache
probing      a bundle's folder → its record, measured where need be

Costs only: what is decided from them is not part of this package yet.
"""
