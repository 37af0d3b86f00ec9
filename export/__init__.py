"""From a checkpoint to a bundle: what runs before the edge and needs heavier libraries.

A folder of its own so that `import specedge` and `specedge run` never load onnx, gguf or
safetensors. Imported as `specedge.export`; the entry point is `specedge.export.build`.
"""

from specedge.export.builder import build

__all__ = ["build"]
