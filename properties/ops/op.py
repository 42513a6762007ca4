"""An op as data: the role of every axis of every tensor. Properties are derived from it, never from the op's name."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from packproof.base.axes import KEYS, has_key_rows, is_in_pool, is_shared, parse, read_axis
from packproof.base.declared import require, require_mapping, require_names
from packproof.base.errors import UsageError, checked_init
from packproof.base.reductions import REDUCTIONS, Reduction
from packproof.properties.bounds.roundings import Roundings
from packproof.properties.cases.condition import conditions
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.flops import CountFlops
from packproof.properties.ops.reductions import ignored_label

_DRAW_KINDS = (
    *("normal", "gate", "decay", "step", "unit", "direction", "share", "log rate", "distinct", "sign"),
    *("choice", "logprob", "octaves", "element", "scale"),
    *("position", "slot", "accepted", "once", "split", "label", "id", "mask"),
)
_INTEGERS = ("position", "slot", "accepted", "once", "split", "label", "id", "mask")
_INTEGERS_OF_TOKENS = ("label", "id", "mask")
_WITHOUT_AXIS = ("split", "mask")
_SYMBOLIC_SIZES = ("longest", "rows", "slots", "cells")


@checked_init
@dataclass(frozen=True)
class Op:
    """The declaration of an operation over packed sequences.

    Raises UsageError for fields that contradict each other, such as an axis without a size.

    >>> import packproof
    >>> def tripled(x, *, cu_seqlens):
    ...     return 3 * x
    >>> op = packproof.Op(
    ...     name="tripled", reference=tripled, inputs={"x": "t d"}, outputs={"y": "t d"}, sizes=({"d": 3},)
    ... )
    >>> op.inputs
    {'x': 't d'}
    """

    name: str
    """Its name in reports."""
    reference: Callable[..., Any]
    """The slow exact function. It takes the inputs by name, `cu_seqlens` and the options, and returns the outputs in
    order (a single tensor if there is one).
    """
    inputs: Mapping[str, str]
    """Axes of each input by name. `t` counts packed tokens, `s` sequences, `c` the slots of a pool of states (see
    `pool`). Every other axis belongs to a shared parameter. `?` at the end of a spec marks an optional input; `a | b`
    are alternatives; an axis may be `w-1`.

    `u` counts rows of a second packing of the same sequences, such as the keys of attention. Its offsets are the
    reference's argument `cu_seqlens_k`; without it, `u` is `t`. A causal op aligns the ends of a sequence: its last row
    along `u` belongs to its last row along `t`.
    """
    outputs: Mapping[str, str]
    """Axes of each output by name, in the same notation."""
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values to try of each option, the plainest first."""
    sizes: tuple[Mapping[str, int | str], ...] = ({"d": 3},)
    """Sets of axis sizes to draw from. "longest" is the length of the longest sequence, "rows" the number of rows of
    the pack, "slots" one more than its number of sequences, "cells" one more than its number of rows.
    """
    where: tuple[str, ...] = ()
    """Conditions on the sizes of every call, as in a `packproof.Domain`: "h % g == 0"."""
    model_sizes: tuple[Mapping[str, int | str], ...] = ()
    """Sizes of real models. They are drawn on a GPU only, to judge kernels in the configurations of their use;
    elsewhere they would take too long.
    """
    absolute: Callable[..., Any] | None = None
    """The op on absolute values (B of the error budget), with the reference's signature. Its forward pass and its vjp
    sum absolute terms. None: the reference itself on the absolute values of its inputs.
    """
    cumsum: Callable[[Promises], Callable[..., Any]] | None = None
    """Makes the magnitude op of a kernel that promises `cumsum` (B + B_E of the budget) from its promises."""
    roundings: Roundings | None = None
    """Instead of `absolute`, the roundings to draw for a stable op with an unstable form on absolute values."""
    operands: Roundings | None = None
    """In addition to `absolute`, the roundings to draw for kernels with 16-bit operands of matrix products."""
    draws: Mapping[str, str] = field(default_factory=dict)
    """The distribution of an input, if not "normal":
    - "decay": negative, of any strength;
    - "gate": a decay without a time step as factor, down to -inf;
    - "decay|i", "gate|i": the same; if input `i` is given, values before softplus and a "log rate";
    - "step": a positive time step;
    - "step|o": the same; if option `o` is set, values before softplus;
    - "unit": in [-1, 1], such as cosines;
    - "logprob": log-probabilities (t,), in [-2, 0]; to -2000 for some tokens that a mask leaves out;
    - "direction": vectors of length about 1 along the last axis;
    - "direction|o": the same; if option `o` is set, of any length;
    - "share": between 0 and 1, some of them 0, 1 or 2;
    - "share|o": the same; if option `o` is set, values before sigmoid;
    - "log rate": the logarithm of a decay's size;
    - "distinct": no two equal rows, in any dtype, for ops with a choice among rows: a tie has two correct gradients;
    - "choice": the same in [-8, 8], such as logits of a router;
    - "sign": 1 or -1;
    - "octaves": normal, times a power of two from 2^-6 to 2^6 for each 8 channels of a row: blocks differ in scale;
    - "element|o", "scale|o": numbers and scales of the block format that option `o` names; its first value's fit all;
    - "position|m": integers (s,), the first row of each sequence in tables along axis m, or below 0; constants;
    - "slot|c": integers, a slot for each sequence (s,) or for each token (t,), or -1; constants;
    - "accepted|a": integers (s,), from 1 to a: by how many tokens of the step before a request goes on; constants;
    - "once|m": integers (s,), from 0 to m, that count for the first piece of a sequence; 0 in later ones; constants;
    - "split": integers (s,), from 0 to the length of the sequence: its tokens before a boundary inside; constants;
    - "id|n": integers (t,), from 0 to n - 1; constants;
    - "label|n": the same, or the option `ignore_index`, -100 without one, for a token that does not count; constants;
    - "mask": integers (t,), 1 for a token that counts and 0 for any other; constants.
    """
    reductions: Mapping[str, Reduction] = field(default_factory=dict)
    """How the value of a pack follows from those of its sequences, by the name of an output without an axis for tokens
    or sequences, such as a loss (`""`, a scalar): "sum", "mean over tokens", "mean over sequences" or "maximum". The
    laws of packing, permutation and isolation follow from it, in values and gradients.
    """
    counted: str | Callable[..., Any] | None = None
    """The tokens that count in a mean: the name of an input drawn as "label" or "mask", or a function with the
    reference's arguments that returns 1 or 0 for each token (t,). None: all tokens.
    """
    fixed: frozenset[str] = frozenset()
    """Inputs and outputs independent of the dtype of the call: fp32, or fp64 with fp64 tokens."""
    float32: frozenset[str] = frozenset()
    """Inputs that may be fp32 beside bf16 or fp16 tokens, as parameters under autocast. Each gradient has the dtype of
    its input. Drawn for kernels with these inputs in their own `float32`.
    """
    narrow: frozenset[str] = frozenset()
    """Fixed inputs that may have the dtype of 16-bit tokens, and bf16 or fp16 beside fp32 ones, as parameters of a bf16
    model. Drawn for kernels with these inputs in their own `narrow`.
    """
    neutral: Mapping[str, float] = field(default_factory=dict)
    """The value at which a required input changes nothing, such as 0 for a gate. A kernel that has a default for this
    input is also called without it, and judged by the reference at this value.
    """
    constants: frozenset[str] = frozenset()
    """Inputs without gradients, such as tables and positions."""
    carry: tuple[str, str, str] | None = None
    """(initial state, final state, option that requests it), if a sequence can be cut and continued."""
    pool: tuple[str, ...] | None = None
    """(the slot of each sequence or token, the pool, the pool after the call), if states lie in a pool. Of further
    pools with the same slots, each adds two names.
    """
    on_request: Mapping[str, str] = field(default_factory=dict)
    """The option for each other optional output, by the name of the output."""
    window: str | None = None
    """The axis with the width of a convolution as its size; scales the layouts."""
    reach: str | None = None
    """The option for the window of a token, (left, right), -1 for no limit. In addition to its values in `options`,
    golden cases try windows ending at the edges of a kernel's tiles, without any optional input.
    """
    causal: bool | str = True
    """The option for causality, or True or False."""
    matmul: bool = False
    """Built on matrix products: a kernel may round their operands to the dtype of the tokens, unless it promises not
    to.
    """
    saved: frozenset[str] | None = None
    """Inputs read by the backward pass; None: all. A bench derives the fewest bytes of a call from them."""
    flops: CountFlops | None = None
    """Counts the operations of both passes. A bench derives the shortest time of a call from them."""

    @property
    def usual_compute(self) -> Literal["fp32", "operand"]:
        """The rounding of intermediates in kernels that promise none."""
        return "operand" if self.matmul else "fp32"

    @property
    def integers(self) -> frozenset[str]:
        """Inputs that hold integers: positions, slots and counts."""
        return self.integers_drawn(*_INTEGERS)

    def integers_drawn(self, *distributions: str) -> frozenset[str]:
        """Inputs that hold integers of these distributions."""
        return frozenset(n for n, draw in self.draws.items() if draw.partition("|")[0] in distributions)

    def outside_value(self, name: str, options: Mapping[str, Any]) -> int | None:
        """The value of an input in rows outside of the sequences, such as padding: one that does not count, for
        integers along tokens; None for any other input.
        """
        if name in self.integers_drawn("label"):
            return ignored_label(options)
        return 0 if name in self.integers_drawn(*_INTEGERS_OF_TOKENS) else None

    @property
    def keeps_drafts(self) -> bool:
        """Whether its pool holds the state after each draft of a step, and the next step accepts some of them."""
        return bool(self.integers_drawn("accepted"))

    @property
    def has_decays(self) -> bool:
        """Whether it has decays; they may be strong."""
        return any(draw.partition("|")[0] in ("decay", "gate", "log rate") for draw in self.draws.values())

    @property
    def carried_names(self) -> tuple[str, str] | None:
        """The names of the state before and after a call, to continue a cut sequence; None if there is none."""
        return self.carried_states[0] if self.carried_states else None

    @property
    def carried_states(self) -> tuple[tuple[str, str], ...]:
        """The names of each state before and after a call, to continue a cut sequence."""
        return (self.carry[:2],) if self.carry else self.pools

    @property
    def pools(self) -> tuple[tuple[str, str], ...]:
        """The names of each pool before and after a call."""
        return tuple(zip(self.pool[1::2], self.pool[2::2], strict=True)) if self.pool else ()

    @property
    def slots_of_tokens(self) -> bool:
        """Whether each token has a slot of its own, not each sequence."""
        return self.pool is not None and parse(self.inputs[self.pool[0]]).alternatives[0] == ("t",)

    @property
    def differentiable(self) -> bool:
        """Whether any input has a gradient."""
        return any(name not in self.constants for name in self.inputs)

    def __post_init__(self) -> None:
        context = f"op {self.name!r}"
        require(isinstance(self.name, str) and bool(self.name), "op", "name", self.name, "a name")
        require(callable(self.reference), context, "reference", self.reference, "a function")
        for name in ("absolute", "cumsum", "flops"):
            value = getattr(self, name)
            require(value is None or callable(value), context, name, value, "a function, or None")
        require(
            self.roundings is None or (isinstance(self.roundings, Roundings) and self.absolute is None),
            *(context, "roundings", self.roundings, "Roundings(...) where there is no `absolute`, or None"),
        )
        require(
            self.operands is None or (isinstance(self.operands, Roundings) and self.absolute is not None),
            *(context, "operands", self.operands, "Roundings(...) beside `absolute`, or None"),
        )
        axes = _axes_with_size(self, context)
        _check_sizes(self, context, axes)
        _check_where(self, context)
        _check_names(self, context, axes)

    @cached_property
    def packs_keys(self) -> bool:
        """Whether it has a second packing with offsets of its own."""
        return any(has_key_rows(parse(spec).alternatives[0]) for spec in self.inputs.values())

    @property
    def caches_keys(self) -> bool:
        """Whether a cut sequence goes on with the keys of its earlier tokens, instead of a state."""
        return self.packs_keys and bool(self.causal) and self.carry is None

    def output_names(self, options: Mapping[str, Any]) -> list[str]:
        """Names of the outputs of a call with these options, in order."""
        requests = {**self.on_request, **({self.carry[1]: self.carry[2]} if self.carry else {})}
        return [n for n, spec in self.outputs.items() if not parse(spec).optional or options.get(requests.get(n, ""))]


def _axes_with_size(op: Op, context: str) -> list[str]:
    """The axes that need a size: all but tokens, sequences and numbers. Raises UsageError for an invalid spec."""
    axis_names: dict[str, None] = {}
    for name in ("inputs", "outputs"):
        tensors = getattr(op, name)
        require_mapping(context, name, tensors, "of axes by name, such as {'x': 't d'}")
        require(bool(tensors), context, name, tensors, "at least one tensor")
        for tensor, spec in tensors.items():
            is_scalar = name == "outputs" and spec == ""
            is_spec = isinstance(spec, str) and (bool(spec.strip()) or is_scalar)
            require(is_spec, context, f"{name}[{tensor!r}]", spec, "axes, such as 't d'")
            axes_read = [read_axis(axis) for axes in parse(spec).alternatives for axis in axes]
            axis_names |= {name: None for axis in axes_read for name in (axis.base, axis.added) if name}
    require("t" in axis_names, context, "inputs", dict(op.inputs), "a tensor along t, the packed tokens")
    return [axis for axis in axis_names if axis not in ("t", "s", KEYS) and not axis.isdigit()]


def _check_sizes(op: Op, context: str, axes: list[str]) -> None:
    words = ", ".join(map(repr, _SYMBOLIC_SIZES))
    for name in ("sizes", "model_sizes"):
        choices = getattr(op, name)
        is_list = isinstance(choices, list | tuple) and (bool(choices) or name == "model_sizes")
        require(is_list, context, name, choices, "a tuple of sizes by axis, such as ({'d': 3},)")
        for sizes in choices:
            require_mapping(context, name, sizes, "of sizes by axis, such as {'d': 3}")
            for axis in axes:
                require(axis in sizes, context, name, sizes, f"a size for axis {axis}")
            for axis, size in sizes.items():
                is_size = size in _SYMBOLIC_SIZES or (type(size) is int and size > 0)
                require(is_size, context, f"the size of {axis}", size, f"a number above zero or one of {words}")


def _check_where(op: Op, context: str) -> None:
    sizes = {axis for choices in op.sizes for axis in choices}
    try:
        where_conditions = conditions(op.where)
    except UsageError as error:
        raise UsageError(f"{context}: where: {str(error).removeprefix('domain: ')}") from None
    for condition in where_conditions:
        is_size_condition = condition.names <= sizes and not condition.flags
        require(
            is_size_condition, context, "where", condition.text, f"comparisons of sizes: {', '.join(sorted(sizes))}"
        )


def _check_names(op: Op, context: str, axes: list[str]) -> None:
    require_mapping(context, "options", op.options, "of each option's values, such as {'activation': (None, 'silu')}")
    for option, values in op.options.items():
        is_list = isinstance(values, list | tuple) and bool(values)
        require(is_list, context, f"options[{option!r}]", values, "a tuple of values, the plainest first")
    require_mapping(context, "draws", op.draws, "of how inputs are drawn, such as {'a': 'unit'}")
    require_names(context, "draws", op.draws, op.inputs, "inputs")
    for name, draw in op.draws.items():
        is_known = isinstance(draw, str) and draw.partition("|")[0] in _DRAW_KINDS
        require(is_known, context, f"draws[{name!r}]", draw, f"one of {', '.join(_DRAW_KINDS)}")
        if is_known and name in op.integers:
            _check_integers(op, context, name, axes)
    _check_reductions(op, context)
    require_names(context, "fixed", op.fixed, [*op.inputs, *op.outputs], "inputs and outputs")
    require_mapping(context, "neutral", op.neutral, "of the value at which an input changes nothing, such as {'g': 0}")
    required_inputs = [n for n, spec in op.inputs.items() if not parse(spec).optional and n not in op.integers]
    require_names(context, "neutral", op.neutral, required_inputs, "required inputs")
    for name, value in op.neutral.items():
        is_number = isinstance(value, int | float) and math.isfinite(value)
        require(is_number, context, f"neutral[{name!r}]", value, "a finite number")
    require_names(context, "float32", op.float32, op.inputs, "inputs")
    require_names(context, "narrow", op.narrow, [n for n in op.inputs if n in op.fixed], "fixed inputs")
    require_names(context, "constants", op.constants, op.inputs, "inputs")
    require_names(context, "saved", op.saved or (), op.inputs, "inputs")
    if op.carry is not None:
        groups = (op.inputs, op.outputs, op.options)
        is_carry = isinstance(op.carry, list | tuple) and len(op.carry) == len(groups)
        is_valid = is_carry and all(name in group for name, group in zip(op.carry, groups, strict=True))
        require(
            is_valid, context, "carry", op.carry, "(initial state, final state, option): an input, an output, an option"
        )
    if op.pool is not None:
        _check_pool(op, context)
    require_mapping(context, "on_request", op.on_request, "of options by output, such as {'lse': 'return_lse'}")
    require_names(context, "on_request", op.on_request, op.outputs, "outputs")
    require_names(context, "on_request", op.on_request.values(), op.options, "options")
    require(op.window is None or op.window in axes, context, "window", op.window, f"an axis: {', '.join(axes)}")
    require(op.reach is None or op.reach in op.options, context, "reach", op.reach, "the name of an option, or None")
    is_valid = isinstance(op.causal, bool) or op.causal in op.options
    require(is_valid, context, "causal", op.causal, "True, False or the name of an option")


def _check_integers(op: Op, context: str, name: str, axes: list[str]) -> None:
    draw_kind, _, axis = op.draws[name].partition("|")
    spec, draw = op.inputs[name], op.draws[name]
    has_axis = axis in axes or (draw_kind in _WITHOUT_AXIS and not axis)
    require(has_axis, context, f"draws[{name!r}]", draw, f"'{draw_kind}|' and an axis: {', '.join(axes)}")
    of_tokens = draw_kind in _INTEGERS_OF_TOKENS or (name in (op.pool or ())[:1] and spec == "t")
    expected = "t" if of_tokens else "s"
    require(spec.rstrip("?") == expected, context, f"inputs[{name!r}]", spec, f"'{expected}', or '{expected}?'")
    require(name in op.constants, context, "constants", set(op.constants), f"{name}, which has no gradient")


def _check_reductions(op: Op, context: str) -> None:
    require_mapping(context, "reductions", op.reductions, "of reductions by output, such as {'loss': 'sum'}")
    reducible = [n for n, spec in op.outputs.items() if any(map(is_shared, parse(spec).alternatives))]
    require_names(context, "reductions", op.reductions, reducible, "outputs without an axis for tokens or sequences")
    for name, kind in op.reductions.items():
        require(
            kind in REDUCTIONS, context, f"reductions[{name!r}]", kind, f"one of {', '.join(map(repr, REDUCTIONS))}"
        )
    countable = op.integers_drawn("label", "mask")
    is_valid = op.counted is None or callable(op.counted) or op.counted in countable
    expected = f"a function, None, or an input drawn as a label or a mask: {', '.join(sorted(countable)) or 'none'}"
    require(is_valid, context, "counted", op.counted, expected)


def _check_pool(op: Op, context: str) -> None:
    pool = op.pool
    assert pool is not None
    expected = "(slots, pool, pool after the call, ...): an input of slots, then an input and an output along c"
    is_list = isinstance(pool, list | tuple) and len(pool) >= 3 and len(pool) % 2 == 1
    groups = (op.integers, *(op.inputs, op.outputs) * (len(pool) // 2)) if is_list else ()
    names_exist = is_list and all(name in group for name, group in zip(pool, groups, strict=True))
    require(names_exist, context, "pool", pool, expected)
    specs = [*(op.inputs[name] for name in pool[1::2]), *(op.outputs[name] for name in pool[2::2])]
    require(all(is_in_pool(parse(spec).alternatives[0]) for spec in specs), context, "pool", pool, expected)
