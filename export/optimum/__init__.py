"""The second front end: decoders that optimum exports, as bundles of contract "concat"."""
