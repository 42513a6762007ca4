"""The laws that a kernel is held to, each a `Property`."""
