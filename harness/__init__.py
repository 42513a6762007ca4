"""The check, from a request to its verdicts and reports, and the processes in which kernels run."""
