"""The files that reproduce a failure: of a kernel, and of a module."""
