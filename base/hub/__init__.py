"""Kernels of the Hugging Face kernel hub, from its local cache or a folder. Nothing is downloaded."""
