"""The command line of the bench: a subcommand in each file."""
