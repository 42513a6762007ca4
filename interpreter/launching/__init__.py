"""What is seen of a launch of a Triton kernel: its name, and what the kernel is compiled and tuned for."""
