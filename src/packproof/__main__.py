"""`python -m packproof` is the `packproof` command."""

from packproof.harness.cli.main import main

if __name__ == "__main__":
    main()
