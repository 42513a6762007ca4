"""The pytest plugin, and the test order under pytest-xdist."""
