"""Losses over packs: bugs that were reported, and correct kernels in several forms."""
