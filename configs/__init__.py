"""Ready configs (`*.toml`) and how to find them by name.

A folder of its own because it is data that people copy and edit. Imported as `specedge.configs`.
"""
