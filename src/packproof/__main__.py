"""`python -m packproof` is the `packproof` command."""

from packproof.harness.cli import main

if __name__ == "__main__":
    main()
