"""How a kernel is called: by which names, and the adapter to write where these are not the op's."""
