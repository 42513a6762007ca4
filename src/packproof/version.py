"""The version of packproof. Modules import it from here, so that none of them imports the package that exports them."""

__version__ = "0.1.0"
