"""flash-linear-attention's linear attention, delta rules, convolutions and layers, as they were at a commit."""
