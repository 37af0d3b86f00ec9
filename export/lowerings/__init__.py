"""One file per way of writing the logical decoder as an ONNX graph of contract 1."""
