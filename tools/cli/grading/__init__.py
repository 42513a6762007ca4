"""The commands for many submissions."""
