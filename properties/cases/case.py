"""A case: one example of an op as small plain data. Hypothesis draws the case; its seed makes the tensors."""

import dataclasses
import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from packproof.base.errors import UsageError
from packproof.base.names import SHORT_DTYPES

REGIME_DESCRIPTIONS = {
    "normal": "values of a normal distribution, time steps from 0.05 to 1",
    "wide": "each token of the first input is scaled by its own factor, from 1e-3 to 1e3 (1e-1 to 1e1 in fp16)",
    "long decay": "decays forget 10 to 1,000 times more slowly",
    "hard decay": "decays forget 60 times faster; three tokens in ten nearly forget, the others keep nearly everything",
    "cancelling": "every second token of the first input nearly undoes the one before it",
    "one-hot": "only one sequence has incoming gradients",
    "strong gates": "some tokens forget all before them: logarithms of decays of -1e4, -1e9, -1e20 and down to -inf",
}
REGIMES = tuple(REGIME_DESCRIPTIONS)
_PLAIN_FIELDS = ("dtype", "slack", "period", "regime", "index_dtype", "seed", "configuration")
HARD_DECAY, STRONG_GATES = "hard decay", "strong gates"  # the second is only for ops with decays
CUTS = "cuts"  # the argument by which a kernel cuts a pack over ranks itself
_SEED_BITS = 40  # a seed of a run makes several seeds of cases, and properties that redraw add to these


@dataclass(frozen=True)
class Case:
    """One example of an op.

    >>> from packproof.properties import Case
    >>> print(Case(lengths=(3, 0, 5), dtype="float32", sizes=(("d", 3), ("w", 4))))
    lengths [3, 0, 5], fp32, d=3 w=4, seed 0
    """

    lengths: tuple[int, ...]
    """Tokens of each sequence."""
    dtype: str
    """Dtype of the tokens, by its long name."""
    sizes: tuple[tuple[str, int | str], ...]
    """Axis sizes by name; a word, such as "longest", stands for a size of the layout (`size_words`)."""
    slack: int = 0
    """Rows after the last sequence of each packing."""
    present: tuple[str, ...] = ()
    """Optional inputs of the call."""
    axes: tuple[tuple[str, int], ...] = ()
    """For each input with several axis specs, the number of the one it has."""
    options: tuple[tuple[str, Any], ...] = ()
    """Keyword options."""
    regime: str = "normal"
    """Distribution of the values, one of REGIMES."""
    index_dtype: str = "int32"
    """Dtype of cu_seqlens."""
    float32: tuple[str, ...] = ()
    """Inputs in fp32 although the tokens have 16 bits."""
    narrow: tuple[str, ...] = ()
    """Inputs usually fixed to fp32, here in the dtype of 16-bit tokens; bf16 where the tokens are fp32."""
    seed: int = 0
    """Seed of the tensors."""
    key_lengths: tuple[int, ...] | None = None
    """Lengths of a second packing; None where there is none or it equals the first."""
    cuts: tuple[int, ...] | None = None
    """Token positions at which the pack is cut over ranks, in order, one fewer than ranks; None without ranks. The same
    position twice leaves the rank between without tokens.
    """
    period: int = 0
    """Sequences after which the pack repeats itself, of which the second half has the incoming gradients of the first
    with the opposite sign; 0 where it does not. The reference computes one period for all.
    """
    omitted: tuple[str, ...] = ()
    """Required inputs that the call leaves out. The reference has them at their neutral value."""
    configuration: int = 0
    """Number of the configuration of autotuned kernels, counted from the first and wrapping around. It is the same for
    the pack and for each of its sequences alone. Configurations are not timed.
    """

    @property
    def n_tokens(self) -> int:
        return sum(self.lengths)

    @property
    def has_boundary(self) -> bool:
        """Whether two sequences with tokens meet in the pack."""
        return sum(n > 0 for n in self.lengths) > 1

    @property
    def half_period(self) -> int:
        """The sequences that are drawn where the pack repeats itself; 0 where its lengths do not."""
        half, n = self.period // 2, len(self.lengths)
        if not half or n <= self.period or self.slack:
            return 0
        packings = (self.lengths, self.key_lengths or self.lengths)
        return half if all(lengths == (lengths[:half] * (n // half + 1))[:n] for lengths in packings) else 0

    @property
    def size_words(self) -> dict[str, int]:
        """The sizes given by the layout, by their words in `sizes`."""
        sequences, rows = len(self.lengths), self.n_tokens + self.slack
        return {"longest": max(self.lengths, default=0), "rows": rows, "slots": sequences + 1, "cells": rows + 1}

    def replace(self, **changes: Any) -> "Case":
        return dataclasses.replace(self, **changes)

    def with_lengths(self, lengths: tuple[int, ...]) -> "Case":
        """The same case with other lengths; cuts past the last token move to its end."""
        cuts = None if self.cuts is None else tuple(min(cut, sum(lengths)) for cut in self.cuts)
        return self.replace(lengths=lengths, cuts=cuts)

    def without(self, name: str) -> "Case":
        """The same case without one optional input."""
        remaining = {
            field_name: tuple(n for n in getattr(self, field_name) if n != name)
            for field_name in ("present", "float32", "narrow")
        }
        return self.replace(**remaining)

    def with_option(self, name: str, value: Any) -> "Case":
        return self.replace(options=tuple((k, value if k == name else v) for k, v in self.options))

    def __str__(self) -> str:
        """One line, for logs and reports."""
        return f"lengths {shorten(self.lengths)}, {self.setting}"

    @property
    def setting(self) -> str:
        """All but the lengths, in one line; default values are omitted."""
        words = [] if self.cuts is None else [f"cut at {shorten(self.cuts)}"]
        words += [] if self.key_lengths is None else [f"keys {shorten(self.key_lengths)}"]
        words += [SHORT_DTYPES.get(self.dtype, self.dtype)]
        words += [f"slack {self.slack}"] if self.slack else []
        words += [" ".join(f"{k}={v}" for k, v in self.sizes)] if self.sizes else []
        words += ["with " + ", ".join(self.present)] if self.present else []
        words += ["without " + ", ".join(self.omitted)] if self.omitted else []
        words += [f"every {self.period} sequences alike"] if self.period else []
        words += [", ".join(self.float32) + " in fp32"] if self.float32 else []
        words += [", ".join(self.narrow) + " in 16 bits"] if self.narrow else []
        words += [f"{k}={v}" for k, v in self.options if v]
        words += [self.regime] if self.regime != "normal" else []
        words += [self.index_dtype] if self.index_dtype != "int32" else []
        words += [f"configuration {self.configuration}"] if self.configuration else []
        return ", ".join([*words, f"seed {self.seed}"])

    def to_json(self) -> dict[str, Any]:
        data = dataclasses.asdict(self)
        omitted_if_empty = (
            "key_lengths",
            "cuts",
            "narrow",
            "omitted",
            "period",
            "configuration",
        )  # where they are empty
        return {name: value for name, value in data.items() if value or name not in omitted_if_empty}

    @classmethod
    def from_json(cls, data: Any) -> "Case":
        """Rebuild a case from untrusted JSON data; UsageError names the invalid field."""
        if not isinstance(data, dict) or not isinstance(data.get("dtype"), str):
            raise UsageError("case: expected an object with lengths, dtype and sizes")
        unknown = sorted(set(data) - {f.name for f in dataclasses.fields(cls)})
        if unknown:
            raise UsageError(f"case: unknown field {unknown[0]!r}")
        lengths, key_data = _lengths("lengths", data.get("lengths")), data.get("key_lengths")
        key_lengths = None if key_data is None else _lengths("key_lengths", key_data)
        if key_lengths is not None and len(key_lengths) != len(lengths):
            raise UsageError(
                f"case: key_lengths has {len(key_lengths)} entries, expected {len(lengths)}, as lengths has"
            )
        cuts = _cuts(data.get("cuts"), sum(lengths))
        if data.get("regime", "normal") not in REGIMES:
            raise UsageError(f"case: regime is {data['regime']!r}, expected one of {', '.join(REGIMES)}")
        if data.get("index_dtype", "int32") not in ("int32", "int64"):
            raise UsageError(f"case: index_dtype is {data['index_dtype']!r}, expected int32 or int64")
        for name, bits in (("slack", 31), ("period", 31), ("configuration", 31), ("seed", _SEED_BITS)):
            # type, not isinstance: a bool is an int
            if type(data.get(name, 0)) is not int or not 0 <= data.get(name, 0) < 2**bits:
                raise UsageError(f"case: {name} is {str(data[name])[:60]!r}, expected an integer from 0 to 2^{bits}")
        try:
            sizes, axes, options = (_pairs(data.get(k, ())) for k in ("sizes", "axes", "options"))
        except (TypeError, ValueError) as error:
            raise UsageError(f"case: sizes, axes and options are lists of pairs ({error})") from None
        names = {name: data.get(name, []) for name in ("present", "float32", "narrow", "omitted")}
        for field, name_list in names.items():
            if not isinstance(name_list, list) or not all(isinstance(name, str) for name in name_list):
                raise UsageError(f"case: {field} is {str(name_list)[:60]!r}, expected a list of names")
        for name, value in (*(pair for pair in sizes if not isinstance(pair[1], str)), *axes):
            if type(value) is not int or not 0 <= value < 2**31:
                raise UsageError(f"case: {name} is {str(value)[:60]!r}, expected an integer from 0 to 2^31")
        other_fields = {k: data[k] for k in _PLAIN_FIELDS if k in data}
        other_fields |= {name: tuple(name_list) for name, name_list in names.items()}
        return cls(
            lengths=lengths, key_lengths=key_lengths, cuts=cuts, sizes=sizes, axes=axes, options=options, **other_fields
        )


def _lengths(name: str, data: Any) -> tuple[int, ...]:
    if not isinstance(data, list) or not all(type(n) is int and 0 <= n <= 2**31 for n in data):
        raise UsageError(f"case: {name} is {json.dumps(data)[:200]}, expected a list of counts of tokens")
    return tuple(data)


def _cuts(data: Any, tokens: int) -> tuple[int, ...] | None:
    if data is None:
        return None
    cuts = _lengths("cuts", data)
    if any(a > b for a, b in pairwise((*cuts, tokens))):
        raise UsageError(f"case: cuts are {shorten(cuts)}, expected positions in order, up to {tokens}, its tokens")
    return cuts


def _pairs(data: Any) -> tuple[tuple[str, Any], ...]:
    pairs = tuple((name, _to_tuple(value)) for name, value in data)
    if not all(isinstance(name, str) for name, _ in pairs) or len(dict(pairs)) < len(pairs):
        raise ValueError("names are different strings")
    return pairs


def _to_tuple(value: Any) -> Any:
    """A JSON list as the tuple it was made from. Options are scalars or tuples of scalars."""
    if isinstance(value, list):
        if any(isinstance(item, list | dict) for item in value):
            raise ValueError("values are not nested")
        return tuple(value)
    if isinstance(value, dict):
        raise TypeError("values are not objects")
    return value


def shorten(lengths: tuple[int, ...], max_shown: int = 12) -> str:
    """[1, 1, 1, ... 30 more] for long lists, the list itself for short ones."""
    if len(lengths) <= max_shown:
        return str(list(lengths))
    return str(list(lengths[: max_shown - 2]))[:-1] + f", ... {len(lengths) - max_shown + 2} more]"
