"""A model repository for NVIDIA Triton, over the embedded API."""

from specedge.export.triton.repository import write_repository

__all__ = ["write_repository"]
