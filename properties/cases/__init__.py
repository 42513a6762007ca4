"""What a kernel is called with: cases, their layouts and tensors, and the domain that they lie in."""
