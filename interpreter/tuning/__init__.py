"""Chooses configurations of autotuned kernels without timing them: those of Triton, and of other languages."""
