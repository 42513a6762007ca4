"""Timing: kernels and the implementations beside them, at sizes at which they were proven correct first."""
