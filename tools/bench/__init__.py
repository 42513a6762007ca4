"""Timings beside other implementations: kernels, packs cut over ranks, whole models, packing and fp8."""
