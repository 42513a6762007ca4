"""The mark of a throwaway root. Destructive rogues do nothing without it.

`packproof museum rogues` makes such a root; see `tools/proof/museum/throwaway_root`.
"""

from pathlib import Path

MARK = Path("/packproof-throwaway-root")  # a folder; holds the folders of the run and of its temporary files


def is_throwaway() -> bool:
    """Whether this process's changes to the file system vanish with it."""
    return MARK.is_dir()


def require_throwaway_root() -> None:
    """Raise RuntimeError outside a throwaway root."""
    if not is_throwaway():
        raise RuntimeError("this kernel deletes files: only `packproof museum rogues` runs it, in a throwaway root")


def attempt(action):
    """Do something harmful in a throwaway root; what a wall prevents raises nothing."""
    require_throwaway_root()
    try:
        action()
    except OSError:
        pass  # a wall
