"""The built-in prompts, one file a class. `specedge.workloads.builtin` reads them."""
