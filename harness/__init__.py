"""Everything that users run: checks, debugging tools, benchmarks, reports, the command line, the pytest plugin."""
