"""Tiers of their own: kernels compiled without a GPU, and NVIDIA's compute-sanitizer."""
