"""The calls of a kernel: cases, their layouts and tensors, and the kernel's domain."""
