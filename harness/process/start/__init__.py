"""How a command starts."""
