"""What must hold of a kernel over packed sequences: ops as data, layouts, the error budget and the properties."""
