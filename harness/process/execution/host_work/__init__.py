"""The work of the host in a call, and the memory kept after it, counted inside the process of the kernel."""
