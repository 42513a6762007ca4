"""The mark of a throwaway root, without which a rogue that deletes, overwrites or kills does nothing.

`packproof museum rogues` makes such a root; see `harness/validation/museum/throwaway_root`.
"""

from pathlib import Path

MARK = Path("/packproof-throwaway-root")  # a folder, with that of the run and that of its temporary files


def is_throwaway() -> bool:
    """Whether what this process does to the file system is gone with it."""
    return MARK.is_dir()


def require_throwaway_root() -> None:
    """Raises RuntimeError in any other root."""
    if not is_throwaway():
        raise RuntimeError("this kernel deletes files: only `packproof museum rogues` runs it, in a throwaway root")
