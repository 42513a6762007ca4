"""Names that users type: devices, dtypes in short and long form, and the error for an unknown name."""

from collections.abc import Iterable
from difflib import get_close_matches

from packproof.properties.cases.case import SHORT
from packproof.refs.errors import UsageError

DEVICES = ("cpu", "cuda")
EVERY_DTYPE = "all"  # the dtype of a cell that covers all of them, as in the compile tier
_LONG = {short: long for long, short in SHORT.items()}


def known(kind: str, name: str, names: Iterable[str]) -> str:
    """The name itself if it is among the names; otherwise UsageError with the existing names and the closest one."""
    existing = list(names)
    if name in existing:
        return name
    near = get_close_matches(name, existing, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise UsageError(f"no {kind} is called {name!r}; {meant}there are: {', '.join(existing)}")


def dtype(name: str) -> str:
    """The long form of a dtype's name: bf16 and bfloat16 are bfloat16. UsageError where no dtype is called so."""
    return name if name in SHORT else _LONG[known("dtype", name, _LONG)]


def listed(values: Iterable[str] | None) -> list[str]:
    """The names in the values of an option, each of which may be several with commas between them."""
    return [name for value in values or () for name in value.split(",") if name]


def short(dtype_name: str) -> str:
    return SHORT.get(dtype_name, dtype_name)
