"""The pytest plugin, and the order of tests under pytest-xdist."""
