"""The check: any kernel against the reference, its reports, its process, and its pytest plugin."""
