"""The bugs of the museum, the correct kernels and the rogues, run under the checks to measure them."""
