"""A launch of a Triton kernel as it is seen: the kernel's name, and its keys of compilations and tuning."""
