"""What a call makes the host do, and the memory that it keeps, counted inside the process that runs it."""
