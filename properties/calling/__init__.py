"""The call of a kernel: the names in its signature, and an adapter to write if they are not the op's."""
