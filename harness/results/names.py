"""Names and numbers typed by users: devices, dtypes, modes and seeds, with the error for an unknown one."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, TypeGuard

from packproof.properties.cases.case import LONG_DTYPES, SHORT_DTYPES
from packproof.refs.errors import UsageError

DEVICES = ("cpu", "cuda")
COMPILE = "compile"  # the compile tier, listed among the properties
TOOLS = ("memcheck", "racecheck", "initcheck")  # of NVIDIA's compute-sanitizer
_MOST_TEXT = 300  # characters of names in one message
MODES = ("eval", "train", "checkpointing")
ATTENTION = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")  # of transformers
EVERY_DTYPE = "all"  # the dtype of a cell that covers all of them, as in the compile tier
SEED = "a whole number from 0 to 2^32 - 1"  # the seeds of cases are derived from it, and may be larger


def require_known(kind: str, name: str, names: Iterable[str], shown_by: str = "") -> str:
    """The name itself if it is among the names; otherwise UsageError with the closest one and the others.

    A message with too many names has their number instead.

    shown_by: the command for listing the names.
    """
    existing = list(names)
    if name in existing:
        return name
    alternatives = f"there are: {', '.join(existing)}"
    if len(alternatives) > _MOST_TEXT:
        alternatives = f"there are {len(existing)}, from {existing[0]} to {existing[-1]}"
        alternatives += f"; `{shown_by}` shows them" if shown_by else ""
    raise UsageError(f"no {kind} is called {name!r}; {did_you_mean(name, existing)}{alternatives}")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """ "did you mean rope? " for the nearest of the names, with a space after it; "" if none is near."""
    lower: dict[str, str] = {}
    for existing in names:
        lower.setdefault(existing.lower(), existing)
    matches = get_close_matches(name.lower(), lower, n=1)
    return f"did you mean {lower[matches[0]]}? " if matches else ""


def long_dtype(name: str) -> str:
    """The long form of a dtype's name: bfloat16 for bf16 and bfloat16. Raises UsageError for an unknown name."""
    return name if name in SHORT_DTYPES else LONG_DTYPES[require_known("dtype", name, LONG_DTYPES)]


def parse_dtypes(values: Iterable[str] | None) -> tuple[str, ...] | None:
    """The long names of the dtypes in the values of `--dtype`, None without the option."""
    names = parse_names(values, "--dtype")
    return None if names is None else tuple(map(long_dtype, names))


def split_names(values: Iterable[str] | None) -> list[str]:
    """The names in the values of an option. One value may have several, separated by commas."""
    return [name for value in values or () for name in value.split(",") if name]


def parse_names(values: Iterable[str] | None, option: str) -> tuple[str, ...] | None:
    """The names in the values of an option, None without the option. Raises UsageError for values without names."""
    if values is None or not (texts := list(values)):
        return None
    if not (names := split_names(texts)):
        raise UsageError(f"{option}: {', '.join(texts)!r} names nothing; leave it out for the default")
    return tuple(names)


def short_dtype(dtype_name: str) -> str:
    return SHORT_DTYPES.get(dtype_name, dtype_name)


def is_seed(value: Any) -> TypeGuard[int]:
    """Whether a value is valid as a seed of the user."""
    return type(value) is int and 0 <= value < 2**32


def parse_seed(text: str) -> int:
    """The seed in a text. Raises UsageError."""
    try:
        seed = int(text)
    except ValueError:  # also for more digits than Python reads
        seed = -1
    if not is_seed(seed):
        raise UsageError(f"{text!r} is not a seed; expected {SEED}")
    return seed
