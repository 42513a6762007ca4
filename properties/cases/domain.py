"""A kernel's domain: its supported calls, as conditions over the sizes, the layout and the options of a call."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from packproof.base.axes import parse
from packproof.base.errors import UsageError, checked_init
from packproof.properties.cases.case import STRONG_GATES, Case
from packproof.properties.cases.condition import (
    KEY_LAYOUT_NAMES,
    LAYOUT_NAMES,
    LENGTH_NAMES,
    Condition,
    conditions,
)
from packproof.properties.ops.op import Op

_CALL_NAMES = ("dtype", "contiguous", "gradients")
KEY_OFFSETS = "cu_seqlens_k"
GATE = "gate"
_WEAK_GATE, _STRONG_GATE = (
    -100.0,
    -math.inf,
)  # the strongest log-decay of a case without strong gates, and of one with them


@checked_init
@dataclass(frozen=True)
class Domain:
    """The supported calls of a kernel: all conditions hold for them. Without conditions, every call is supported.

    A condition is a comparison in Python's syntax, with `in`, + - * // %, numbers, strings and tuples; or a flag, true
    or false in a call; or several of these with `and`, `or`, `not`. A bare `d % 8` is a number and no condition.
    Conditions are separated by `;`, or come in a list:

        k in (64, 128)        d % 8 == 0          16 <= k <= 128       hq // hk in (1, 2, 4, 8)
        tokens % 16 == 0      tokens <= 4096      length > 0           sequences <= 8
        dtype == bf16         contiguous          not gradients        not (z and D)
        slack == 0            bias                k == v               gate > -1e4

    A condition may name the op's axes, by their sizes; optional inputs and `cu_seqlens_k`, true where passed; options,
    by their values; and:

    tokens: rows of the pack, slack included.
    sequences, slack, longest: of the layout.
    length: a condition on it must hold for every sequence.
    tokens_k, longest_k, length_k: the same of the keys, for ops whose keys have offsets of their own. Without
        `cu_seqlens_k` the keys of a call have the lengths of its tokens.
    dtype: fp64, fp32, bf16 or fp16.
    contiguous: all tensors are contiguous.
    gradients: the call is differentiated.
    gate: the logarithm of the strongest decay of a token, from 0 to -inf, for ops with decays.

    >>> import packproof
    >>> domain = packproof.Domain.of("k in (64, 128); length > 0")
    >>> domain.texts
    ('k in (64, 128)', 'length > 0')
    >>> domain.holds({"k": 64}, lengths=[3, 1]), domain.holds({"k": 64}, lengths=[3, 0])
    (True, False)
    """

    conditions: tuple[Condition, ...] = field(default=())
    """Conditions read by `Domain.of`."""

    def __post_init__(self) -> None:
        if not isinstance(self.conditions, tuple) or not all(isinstance(c, Condition) for c in self.conditions):
            raise UsageError(f"domain: conditions is {self.conditions!r}; Domain.of('k in (64, 128)') reads text")

    @classmethod
    def of(cls, texts: str | Sequence[str]) -> "Domain":
        """The domain with these conditions; a text may hold several, separated by `;`. Raises UsageError."""
        return cls(conditions(texts))

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(c.text for c in self.conditions)

    def __bool__(self) -> bool:
        return bool(self.conditions)

    def __and__(self, other: "Domain") -> "Domain":
        return Domain(tuple(dict.fromkeys((*self.conditions, *other.conditions))))

    def check(self, op: Op, location: str) -> None:
        """Raise UsageError for a name unknown to calls of the op, or a name that needs a comparison and has none."""
        known_names = [
            *size_names(op),
            *(name for name in LAYOUT_NAMES if op.packs_keys or name not in KEY_LAYOUT_NAMES),
            *_CALL_NAMES,
            *optional_inputs(op),
            *([KEY_OFFSETS] if op.packs_keys else []),
            *op.options,
        ]
        known_names += [GATE] if op.has_decays else []
        for condition in self.conditions:
            for name in sorted(condition.names - set(known_names)):
                raise UsageError(
                    f"{location}: domain has {name!r} in {condition.text!r}, which a call of {op.name} does not have; "
                    f"there are {', '.join(dict.fromkeys(known_names))}"
                )
            for name in sorted(condition.flags - set(_flag_names(op))):
                examples = [repr(f"{name} == {value!r}") for value in op.options.get(name, (8,))]
                raise UsageError(
                    f"{location}: domain has {name!r} without a comparison in {condition.text!r}; "
                    f"write {' or '.join(examples)}, or another comparison"
                )

    def naming(self, names: Iterable[str]) -> "Domain":
        """The domain with only those conditions that name one of these."""
        name_set = frozenset(names)
        return Domain(tuple(c for c in self.conditions if c.names & name_set))

    def within(self, names: Iterable[str]) -> "Domain":
        """The domain with only those conditions that name nothing else."""
        name_set = frozenset(names)
        return Domain(tuple(c for c in self.conditions if c.names <= name_set))

    def holds(
        self, values: Mapping[str, Any], lengths: Sequence[int] = (), key_lengths: Sequence[int] | None = None
    ) -> bool:
        """Whether all conditions hold. A condition that names `length` or `length_k` has to hold for each sequence.

        key_lengths: the numbers of keys, where they have offsets of their own; None: the lengths.
        """
        of_pack = [c for c in self.conditions if not c.names & LENGTH_NAMES]
        if not all(c.holds(values) for c in of_pack):
            return False
        of_sequences = [c for c in self.conditions if c.names & LENGTH_NAMES]
        pairs = set(zip(lengths, lengths if key_lengths is None else key_lengths, strict=True)) if of_sequences else ()
        return all(c.holds({**values, "length": n, "length_k": m}) for n, m in pairs for c in of_sequences)

    @cached_property
    def of_cases(self) -> "Domain":
        """The domain without conditions on strides or differentiation alone: a case decides neither."""
        return Domain(tuple(c for c in self.conditions if not c.names <= {"contiguous", "gradients"}))

    def allows(self, op: Op, case: Case) -> bool:
        """Whether the domain has the call of a case, with contiguous tensors."""
        return not self.conditions or self.of_cases.holds(condition_values(op, case), case.lengths, case.key_lengths)

    def allows_dtype(self, dtype: str) -> bool:
        """Whether tokens may have this dtype, by its long name."""
        return self.within({"dtype"}).holds({"dtype": dtype})

    @property
    def allows_gradients(self) -> bool:
        return self.within({"gradients"}).holds({"gradients": True})

    @property
    def allows_strides(self) -> bool:
        """Whether tensors may have any strides."""
        return self.within({"contiguous"}).holds({"contiguous": False})

    @property
    def allows_slack(self) -> bool:
        return self.within({"slack"}).holds({"slack": 1}) or self.within({"slack"}).holds({"slack": 16})

    def allows_length(self, n: int) -> bool:
        """Whether a pack may have a sequence of n tokens and as many keys, judged by conditions on lengths alone."""
        return self.within(LENGTH_NAMES).holds({}, [n])

    def allows_query_length(self, n: int) -> bool:
        """Whether a pack may have a sequence of n tokens beside any number of keys, as far as one sequence shows it."""
        rules = self.naming({"length", "longest", "tokens"}).within(set(LAYOUT_NAMES) - set(KEY_LAYOUT_NAMES))
        return rules.holds(layout_values([n], 0), [n])


def size_names(op: Op) -> tuple[str, ...]:
    """The names of the sizes of the op's cases."""
    return tuple(dict.fromkeys(name for sizes in op.sizes for name in sizes))


def _flag_names(op: Op) -> tuple[str, ...]:
    """The names of the flags, true or false in a call."""
    options = (name for name, values in op.options.items() if all(isinstance(value, bool) for value in values))
    return (*optional_inputs(op), KEY_OFFSETS, "contiguous", "gradients", *options)


def optional_inputs(op: Op) -> tuple[str, ...]:
    return tuple(n for n, spec in op.inputs.items() if parse(spec).optional)


def condition_values(op: Op, case: Case) -> dict[str, Any]:
    """The values of a condition's names in a case, all but those of each sequence."""
    layout = layout_values(case.lengths, case.slack, case.key_lengths)
    symbolic_sizes = case.size_words
    return {
        **gate_value(op, strong=case.regime == STRONG_GATES),
        **{name: values[0] for name, values in op.options.items()},
        **dict(case.options),
        **{name: name in case.present for name in optional_inputs(op)},
        KEY_OFFSETS: case.key_lengths is not None,
        "dtype": case.dtype,
        "contiguous": True,
        "gradients": True,
        **layout,
        **{name: symbolic_sizes.get(str(value), value) for name, value in case.sizes},
    }


def gate_value(op: Op, *, strong: bool) -> dict[str, float]:
    """The value of `gate`, for ops with decays."""
    return {GATE: _STRONG_GATE if strong else _WEAK_GATE} if op.has_decays else {}


def layout_values(lengths: Sequence[int], slack: int, key_lengths: Sequence[int] | None = None) -> dict[str, int]:
    key_lengths = lengths if key_lengths is None else key_lengths
    return {
        "tokens": sum(lengths) + slack,
        "sequences": len(lengths),
        "slack": slack,
        "longest": max(lengths, default=0),
        "tokens_k": sum(key_lengths) + slack,
        "longest_k": max(key_lengths, default=0),
    }
