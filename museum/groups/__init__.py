"""Mixtures of experts: bugs of grouped products and of the layer around them, and correct kernels."""
