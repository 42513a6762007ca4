"""The bugs of the museum, the correct kernels and the rogues, run under the checks whose power they measure."""
