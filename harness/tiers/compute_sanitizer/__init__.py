"""The sanitizer tier: golden cases of a kernel under NVIDIA's compute-sanitizer."""
