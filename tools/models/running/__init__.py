"""What runs beside a module: its calls and gradients, and the hooks that name a culprit."""
