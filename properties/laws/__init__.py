"""The laws of a kernel, each a `Property`."""
