"""What users run: checks, debugging tools, benchmarks, reports, the command line and the pytest plugin, in rooms."""
