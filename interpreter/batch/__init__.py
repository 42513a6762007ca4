"""All programs of a Triton grid at once: handles with a leading axis of programs, and control flow under masks."""
