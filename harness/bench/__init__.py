"""Timing of kernels and of the implementations compared with them, at sizes at which they were first proven correct."""
