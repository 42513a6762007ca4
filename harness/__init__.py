"""The tools for users: checks, debugging tools, benchmarks, reports, the command line, the pytest plugin."""
