"""A model repository for NVIDIA Triton, over the embedded API."""
