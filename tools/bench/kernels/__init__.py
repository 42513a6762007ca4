"""Timing of kernels and of their baselines, at sizes at which they were first proven correct."""
