"""Triton's interpreter, repaired, with a memory sanitizer and guards around a kernel's memory."""
