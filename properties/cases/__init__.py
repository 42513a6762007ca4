"""The calls of a kernel: cases, their layouts, tensors and results, and the kernel's domain."""
