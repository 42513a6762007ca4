"""The results of a check in words."""
