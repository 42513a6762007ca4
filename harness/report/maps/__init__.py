"""The measurements at the smallest case of a failure, and error maps and leak maps as text."""
