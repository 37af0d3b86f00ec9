"""TensorRT and TensorRT-RTX: plans are built ahead of time from `standard` graphs, then run."""
