"""The load you will have: what `specedge bench` runs, records and compares."""
