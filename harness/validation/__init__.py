"""What the proof itself is worth: museum, correct kernels, mutants, and one report of all of them."""
