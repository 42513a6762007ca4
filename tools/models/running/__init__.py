"""The process of a module, from inside: calls, gradients, and hooks to name a culprit."""
