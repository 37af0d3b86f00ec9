"""ONNX Runtime: the CPU, CUDA and TensorRT providers.

opening           a bundle's graph to an engine
engine            widths, calls, what is copied back
slots, rows       keys and values of a sequence, and how large T is
bindings          what a call reads and writes
accepting         sampled drafts, decided where the logits are
memory            the host's memory or a device's
providers         sessions; libraries: what these need
"""

from specedge.engines.ort.engine import OrtEngine
from specedge.engines.ort.opening import open_engine
from specedge.engines.ort.providers import PROVIDERS

__all__ = ["PROVIDERS", "OrtEngine", "open_engine"]
