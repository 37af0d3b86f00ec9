"""What executes a graph: one file per runtime.

A folder of its own because an engine is the only part that touches a runtime library, and the
only part that differs between a CPU, a GPU and a test. Imported as `specedge.engines`.
"""
