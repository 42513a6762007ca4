"""Values of users: names, numbers, durations and options declared as fields, with the error for an invalid one."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, TypeGuard

from packproof.base.errors import UsageError
from packproof.base.wording import kind as type_text

SHORT_DTYPES = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
LONG_DTYPES = {short: name for name, short in SHORT_DTYPES.items()}
DEVICES = ("cpu", "cuda")
COMPILE = "compile"  # the compile tier, listed among the properties
CONTRACT = "contract"  # the finding of a declaration that loosens the contract, reported like a property
SLACK = "slack"  # the finding of rows past the last sequence, reported like a property
PROVENANCE = "provenance"  # the finding that a kernel's own launches do not make its output, reported likewise
FINDINGS = (CONTRACT, SLACK, PROVENANCE)  # no cells of a plan: each is reported once for a kernel
TOOLS = ("memcheck", "racecheck", "initcheck")  # of NVIDIA's compute-sanitizer
_MOST_TEXT = 300  # characters of names in one message
STEP_MODES = ("selective", "reentrant", "accumulation", "autocast", "frozen")  # of a whole training step of a model
MODES = ("eval", "train", "checkpointing", *STEP_MODES)
LABEL_FORMS = ("every", "first_ignored", "shifted")  # of the labels for a loss of a model
LABELS = ("auto", *LABEL_FORMS, "none")
ATTENTION = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")  # of transformers
CONVENTIONS = (
    "hf_position_ids",
    "hf_mrope",
    "hf_mrope_text",
    "hf_flash_kwargs",
    "hf_flash_kwargs_no_position_ids",
    "hf_flash_kwargs_no_seq_idx",
    "hf_cache",
    "hf_ones_mask",
    "mask4d",
    "mask4d_additive",
    "flex",
    "segment_ids",
    "document_ids",
    "seq_idx",
    "seq_lens",
    "cu_seqlens",
    "cu_seqlens_flat",
    "packed_seq_params",
    "engine",
)  # by which a model learns where documents begin
TARGET_PREFIX = "packproof_target_"  # of the module of a user's file, or of a kernel of the hub
EVERY_DTYPE = "all"  # the dtype of a cell that covers all of them, as in the compile tier
SEED = "a whole number from 0 to 2^32 - 1"  # the seeds of cases are derived from it, and may be larger
_SYNONYMS = {"gpu": "cuda", "half": "fp16", "float": "fp32", "double": "fp64"}  # of other tools, for suggestions
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")


def require_known(kind: str, name: str, names: Iterable[str], shown_by: str = "") -> str:
    """The name itself if it is among the names; otherwise UsageError with the closest one and the others.

    A message with too many names has their number instead.

    shown_by: the command for listing the names.
    """
    existing = list(names)
    if name in existing:
        return name
    alternatives = alternatives_text(existing, shown_by)
    raise UsageError(f"no {kind} is called {name!r}; {did_you_mean(name, existing)}{alternatives}")


def alternatives_text(names: Sequence[str], shown_by: str = "") -> str:
    """ "there are: quick, standard" for a message; their number where they would fill it.

    shown_by: the command for listing the names.
    """
    text = f"there are: {', '.join(names)}"
    if len(text) <= _MOST_TEXT:
        return text
    text = f"there are {len(names)}, from {names[0]} to {names[-1]}"
    return f"{text}; `{shown_by}` shows them" if shown_by else text


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """ "did you mean rope? " for the nearest of the names, with a space after it; "" if none is near."""
    lower: dict[str, str] = {}
    for existing in names:
        lower.setdefault(existing.lower(), existing)
    synonym = _SYNONYMS.get(name.lower(), "")
    matches = [synonym] if synonym in lower else get_close_matches(name.lower(), lower, n=1)
    return f"did you mean {lower[matches[0]]}? " if matches else ""


def long_dtype(name: str) -> str:
    """The long form of a dtype's name: bfloat16 for bf16, bfloat16 and torch.bfloat16.

    Raises UsageError for an unknown name.
    """
    bare_name = name.removeprefix("torch.")
    return bare_name if bare_name in SHORT_DTYPES else LONG_DTYPES[require_known("dtype", bare_name, LONG_DTYPES)]


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


def parse_seconds(text: str, option: str) -> float:
    """The seconds of a duration: 60, 60s, 2m, 1m30s, 1h. Raises UsageError for other text, and for zero."""
    match = _DURATION.fullmatch(text.strip().lower())
    hours, minutes, remaining_seconds = (float(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + remaining_seconds
    if total <= 0:
        raise UsageError(f"{option}: {text!r} is no duration; expected one above zero, such as 60, 90s, 2m or 1h30m")
    return total


def _unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Kind:
    """The values of an option, with one error for an invalid value, wherever it was written."""

    expected: str
    """A valid value, in words or by example."""
    is_valid: Callable[[Any], bool]
    """Whether a value has the right type and range; for a list, whether an entry has."""
    normalized: Callable[[Any], Any] = _unchanged
    """The value for the request. Raises UsageError for an unknown name."""
    text_type: type = str
    """The type on the command line."""
    parse: Callable[[Any, str], Any] | None = None
    """The value, from text and the name of the option. Raises UsageError."""

    def checked_value(self, label: str, value: Any) -> Any:
        """The value for the request. Raises UsageError, with this label for the option."""
        if not self.is_valid(value):
            raise self.error(f"{label} is", value)
        return self.normalized(value)

    def error(self, label: str, value: Any) -> UsageError:
        """The error for an invalid value: "seed is 0.5, a float; expected a whole number"."""
        description = "None" if value is None else f"{value!r}, {type_text(value)}"
        return UsageError(f"{label} {description}; expected {self.expected}")


@dataclass(frozen=True)
class ListKind(Kind):
    """Lists with at least one entry."""

    def checked_value(self, label: str, value: Any) -> Any:
        if not isinstance(value, Iterable) or isinstance(value, str | Mapping):
            raise self.error(f"{label} is", value)
        if not (entries := tuple(value)):
            raise UsageError(f"{label} is empty, so that nothing would be checked; leave it out to check all")
        for entry in entries:
            if not self.is_valid(entry):
                raise self.error(f"{label} has", entry)
        return self.normalized(entries)


def is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str)


def is_dtype_like(value: Any) -> bool:
    """Whether a value is text or a torch.dtype, whose text is a name of it."""
    return isinstance(value, str) or type(value).__module__ == "torch"


def _is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def choice(noun: str, names: Iterable[str]) -> Kind:
    """One of these names."""
    *quoted, last_quoted = (f'"{name}"' for name in names)
    return Kind(f"{', '.join(quoted)} or {last_quoted}", is_text, lambda name: require_known(noun, name, names))


SWITCH = Kind("True or False", lambda value: isinstance(value, bool), text_type=bool)
SECONDS = Kind("a number of seconds above zero", _is_duration, text_type=float)
DURATION = replace(SECONDS, text_type=str, parse=parse_seconds)
SEED_NUMBER = Kind(SEED, is_seed, text_type=int, parse=lambda text, _: parse_seed(text))


@dataclass(frozen=True)
class RequestOption:
    """A field of a request that users give: on the command line, in Python, in a marker of pytest."""

    kind: Kind
    """The values and their check."""
    flags: tuple[str, ...]
    """The names on the command line: without dashes for an argument by position, () without any."""
    help: str
    """The effect, as `--help` and the docs show it."""
    default: Any
    """The default for users; MISSING for a value that Python requires."""
    form: Mapping[str, Any]
    """Settings of typer: limits, metavar."""


def option(default: Any, kind: Kind, flags: str, help: str, *, user_default: Any = ..., **form: Any) -> Any:  # noqa: A002
    """A field of a request, with all that users see of it.

    flags: the names on the command line, separated by spaces.
    user_default: the default for users, if it differs from the one of the request.
    """
    user_default = default if user_default is ... else user_default
    return field(
        default=default, metadata={"option": RequestOption(kind, tuple(flags.split()), help, user_default, form)}
    )
