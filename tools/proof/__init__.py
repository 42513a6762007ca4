"""How good the checks are: museum, correct kernels, mutants, and one report on all of them."""
