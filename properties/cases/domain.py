"""A kernel's domain: the calls that it supports, as conditions over the sizes, the layout and the options of a call."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from packproof.properties.cases.case import STRONG_GATES, Case
from packproof.properties.cases.condition import LAYOUT, Condition, conditions
from packproof.properties.op import Op
from packproof.refs.axes import parse
from packproof.refs.errors import UsageError, checked_init

_CALL = ("dtype", "contiguous", "gradients")
KEYS = "cu_seqlens_k"
GATE = "gate"
_WEAK, _STRONG = -100.0, -math.inf  # the strongest log-decay of a case without strong gates, and of one with them


@checked_init
@dataclass(frozen=True)
class Domain:
    """The calls that a kernel supports: those for which all conditions hold; without conditions, every call.

    A condition is a comparison in Python's syntax, with `in`, + - * // %, numbers, strings and tuples; or a flag, which
    is true or false in a call; or several of these with `and`, `or`, `not`. Nothing else is one: a bare `d % 8` is a
    number. `;` stands between conditions, or they come in a list:

        k in (64, 128)        d % 8 == 0          16 <= k <= 128       hq // hk in (1, 2, 4, 8)
        tokens % 16 == 0      tokens <= 4096      length > 0           sequences <= 8
        dtype == bf16         contiguous          not gradients        not (z and D)
        slack == 0            bias                k == v               gate > -1e4

    It may name the op's axes; `tokens` (rows of the pack, slack included), `sequences`, `slack`, `longest`, and
    `length`, for which it holds if it holds for every sequence; `dtype`, one of fp64, fp32, bf16 and fp16; `contiguous`
    (tensors lie so) and `gradients` (the call is differentiated); optional inputs, `cu_seqlens_k` too, true where
    given; options by their values; and `gate`, the logarithm of the strongest decay of a token, where an op has decays:
    0 to -inf. `length` holds for the lengths of both packings.

    >>> import packproof
    >>> domain = packproof.Domain.of("k in (64, 128); length > 0")
    >>> domain.texts
    ('k in (64, 128)', 'length > 0')
    >>> domain.holds({"k": 64}, lengths=[3, 1]), domain.holds({"k": 64}, lengths=[3, 0])
    (True, False)
    """

    conditions: tuple[Condition, ...] = field(default=())

    def __post_init__(self) -> None:
        if not isinstance(self.conditions, tuple) or not all(isinstance(c, Condition) for c in self.conditions):
            raise UsageError(f"domain: conditions is {self.conditions!r}; Domain.of('k in (64, 128)') reads text")

    @classmethod
    def of(cls, texts: str | Sequence[str]) -> "Domain":
        """The domain with these conditions, each of which may be several with `;` between them. Raises UsageError."""
        return cls(conditions(texts))

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(c.text for c in self.conditions)

    def __bool__(self) -> bool:
        return bool(self.conditions)

    def __and__(self, other: "Domain") -> "Domain":
        return Domain(tuple(dict.fromkeys((*self.conditions, *other.conditions))))

    def check(self, op: Op, where: str) -> None:
        """UsageError for a name that a call of the op does not have, or one without a comparison that is no flag."""
        known = [*axes(op), *LAYOUT, *_CALL, *optional_inputs(op), *([KEYS] if op.packs_keys else []), *op.options]
        known += [GATE] if op.forgets else []
        for condition in self.conditions:
            for name in sorted(condition.names - set(known)):
                raise UsageError(
                    f"{where}: domain has {name!r} in {condition.text!r}, which a call of {op.name} does not have; "
                    f"there are {', '.join(dict.fromkeys(known))}"
                )
            for name in sorted(condition.flags - set(_flags(op))):
                examples = [repr(f"{name} == {value!r}") for value in op.options.get(name, (8,))]
                raise UsageError(
                    f"{where}: domain has {name!r} without a comparison in {condition.text!r}; "
                    f"write {' or '.join(examples)}, or another comparison"
                )

    def naming(self, names: Iterable[str]) -> "Domain":
        """Its conditions that name one of these."""
        wanted = frozenset(names)
        return Domain(tuple(c for c in self.conditions if c.names & wanted))

    def within(self, names: Iterable[str]) -> "Domain":
        """Its conditions that name nothing but these."""
        wanted = frozenset(names)
        return Domain(tuple(c for c in self.conditions if c.names <= wanted))

    def holds(self, values: Mapping[str, Any], lengths: Sequence[int] = ()) -> bool:
        """Whether all conditions hold; those that name `length`, for each of the lengths."""
        return all(
            all(c.holds({**values, "length": n}) for n in lengths) if "length" in c.names else c.holds(values)
            for c in self.conditions
        )

    @cached_property
    def of_cases(self) -> "Domain":
        """Its conditions on what a case decides: not how tensors lie, nor whether a call is differentiated."""
        return Domain(tuple(c for c in self.conditions if not c.names <= {"contiguous", "gradients"}))

    def allows(self, op: Op, case: Case) -> bool:
        """Whether the call that a case makes, of contiguous tensors, is one of the domain."""
        every = (*case.lengths, *(case.key_lengths or ()))
        return not self.conditions or self.of_cases.holds(values_of(op, case), every)

    def allows_dtype(self, dtype: str) -> bool:
        """Whether a call with tokens of that dtype (its long name) may be one."""
        return self.within({"dtype"}).holds({"dtype": dtype})

    @property
    def allows_gradients(self) -> bool:
        return self.within({"gradients"}).holds({"gradients": True})

    @property
    def allows_strides(self) -> bool:
        """Whether tensors may lie in memory as they like."""
        return self.within({"contiguous"}).holds({"contiguous": False})

    @property
    def allows_slack(self) -> bool:
        return self.within({"slack"}).holds({"slack": 1}) or self.within({"slack"}).holds({"slack": 16})

    def allows_length(self, n: int) -> bool:
        """Whether a sequence of n tokens may be in a pack, as far as its length alone decides."""
        return self.within({"length"}).holds({}, [n])


def axes(op: Op) -> tuple[str, ...]:
    """The names of the sizes that a case of the op has."""
    return tuple(dict.fromkeys(name for sizes in op.sizes for name in sizes))


def _flags(op: Op) -> tuple[str, ...]:
    """The names that are true or false in a call."""
    options = (name for name, values in op.options.items() if all(isinstance(value, bool) for value in values))
    return (*optional_inputs(op), KEYS, "contiguous", "gradients", *options)


def optional_inputs(op: Op) -> tuple[str, ...]:
    return tuple(n for n, spec in op.inputs.items() if parse(spec).optional)


def values_of(op: Op, case: Case) -> dict[str, Any]:
    """What the names of a condition stand for in a case; all but `length`."""
    layout = layout_values(case.lengths, case.slack)
    words = case.size_words
    return {
        **gate_value(op, strong=case.regime == STRONG_GATES),
        **{name: values[0] for name, values in op.options.items()},
        **dict(case.options),
        **{name: name in case.present for name in optional_inputs(op)},
        KEYS: case.key_lengths is not None,
        "dtype": case.dtype,
        "contiguous": True,
        "gradients": True,
        **layout,
        **{name: words.get(str(value), value) for name, value in case.sizes},
    }


def gate_value(op: Op, *, strong: bool) -> dict[str, float]:
    """What `gate` stands for, where it is no other name of the op."""
    return {GATE: _STRONG if strong else _WEAK} if op.forgets else {}


def layout_values(lengths: Sequence[int], slack: int) -> dict[str, int]:
    return {
        "tokens": sum(lengths) + slack,
        "sequences": len(lengths),
        "slack": slack,
        "longest": max(lengths, default=0),
    }
