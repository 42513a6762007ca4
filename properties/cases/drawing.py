"""The tensors of a case. They follow from its seed, on any machine."""

import dataclasses
import math
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packproof.base.axes import Axes, is_shared, parse, role
from packproof.properties.cases import values
from packproof.properties.cases.case import STRONG_GATES, Case
from packproof.properties.cases.sample import Sample
from packproof.properties.ops.op import Op
from packproof.properties.ops.reductions import ignored_label

DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")}

_LEAST_STRONG_STEP = 1e-10
"""The smallest step under strong gates, as a softplus. A GPU computes exp(x) as a power of 2 of a rounded product, so
its relative error is |x| roundoffs: 23 for this step, and 48 for the step of 1e-21 that a rate of -1e20 would need.
"""


def draw(op: Op, case: Case) -> Sample:
    """The tensors of a case."""
    return _draw_repeated(op, case) if case.half_period and not op.reductions else _draw_pack(op, case)


def _draw_repeated(op: Op, case: Case) -> Sample:
    """The tensors of a pack that repeats itself.

    Incoming gradients of opposite signs keep the gradient of a shared input small while it is summed: a kernel may add
    thousands of equal terms in any order, and its rounding errors would all point one way.
    """
    n, keys = case.half_period, case.key_lengths
    half = _draw_pack(
        op,
        case.replace(
            lengths=case.lengths[:n],
            key_lengths=None if keys is None else keys[:n],
            sizes=tuple(_sizes(case).items()),
        ),
    )
    period = half.repeated(2 * n)
    cotangents = {name: torch.cat([dy, -dy]) for name, dy in half.cotangents.items()}
    whole = dataclasses.replace(period, cotangents=cotangents).repeated(len(case.lengths))
    return dataclasses.replace(whole, period=case.period)


def _sizes(case: Case) -> dict[str, int]:
    return {k: int(case.size_words.get(str(v), v)) for k, v in case.sizes}


def _draw_pack(op: Op, case: Case) -> Sample:
    options = dict(case.options)
    spec_numbers = dict(case.axes)
    sizes = _sizes(case)
    specs = {n: parse(spec) for n, spec in (*op.inputs.items(), *op.outputs.items())}
    axes = {n: spec.alternatives[spec_numbers.get(n, 0)] for n, spec in specs.items()}
    input_names = [n for n in op.inputs if not specs[n].optional or n in case.present]
    index_dtype = getattr(torch, case.index_dtype)
    layout_fields = {
        "index_dtype": index_dtype,
        "key_lengths": case.key_lengths,
        "configuration": case.configuration,
        "omitted": case.omitted,
    }
    without_tensors = Sample(op, case.lengths, case.slack, {}, {}, options, axes, sizes, **layout_fields)
    inputs = {
        n: _draw_integers(op, case, n, sizes, options)
        if n in op.integers
        else _draw_input(op, case, n, axes[n], without_tensors.shape(n), options)
        for n in input_names
        if n not in case.omitted
    }
    inputs |= {n: _neutral_input(op, case, n, without_tensors.shape(n)) for n in case.omitted}
    _cancel_token_pairs(op, inputs, axes, case)
    outputs = dataclasses.replace(without_tensors, inputs=inputs).outputs
    differentiable_outputs = outputs if op.differentiable else []
    cotangents = {n: _draw_cotangent(op, case, n, without_tensors, axes[n]) for n in differentiable_outputs}
    return dataclasses.replace(without_tensors, inputs=inputs, cotangents=cotangents)


def dtype_of(op: Op, name: str, dtype: str, float32: Collection[str] = (), narrow: Collection[str] = ()) -> torch.dtype:
    """The dtype of an input or output where the tokens have `dtype`. float32, narrow: as in a case."""
    token_dtype = DTYPES[dtype]
    if name in narrow:
        return torch.bfloat16 if token_dtype == torch.float32 else token_dtype
    return token_dtype if name not in {*op.fixed, *float32} or token_dtype == torch.float64 else torch.float32


def _generator(case: Case, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(f"{name}/{case.seed}".encode()))


def _neutral_input(op: Op, case: Case, name: str, size: tuple[int, ...]) -> Tensor:
    return torch.full(size, op.neutral[name], dtype=dtype_of(op, name, case.dtype, case.float32, case.narrow))


def _draw_input(op: Op, case: Case, name: str, axes: Axes, size: tuple[int, ...], options: Mapping[str, Any]) -> Tensor:
    g = _generator(case, name)
    distribution, _, option_name = op.draws.get(name, "normal").partition("|")
    tokens = role(axes) == "token"
    if distribution in ("decay", "gate"):
        x = _draw_decay(distribution, option_name, size, g, case, tokens=tokens)
    elif distribution == "log rate":
        x = (-values.decay(size, g, case.regime, tokens=False)).log()
    elif distribution == "share":
        x = values.share(size, g, case.regime)
        x = x.clamp(1e-3, 1 - 1e-3).logit() if options.get(option_name) else x
    elif distribution == "direction":
        x = torch.randn(size, generator=g, dtype=torch.float64)
        x = x if options.get(option_name) else values.with_unit_length(x, g, case.regime)
    elif distribution == "step":
        # fp16 has no operands as small as steps that fit strong rates
        regime = "normal" if tokens and (case.regime, case.dtype) == (STRONG_GATES, "float16") else case.regime
        x = values.step(size, g, regime, tokens=tokens)
        if option_name and options.get(option_name):
            x = torch.expm1(x.clamp(min=_LEAST_STRONG_STEP if case.regime == STRONG_GATES else 1e-3)).log()
            if case.regime == "wide" and tokens:
                x = values.with_large_steps(x, g)
    elif distribution == "logprob":
        x = -2 * torch.rand(size, generator=g, dtype=torch.float64)
        if case.regime == "wide":  # what a mask leaves out may be anything: a ratio of probabilities overflows
            x = torch.where(_tokens_in_masks(op, case), x, 1000 * x)
    elif distribution in (*_IN_ANY_REGIME, *_OF_A_FORMAT):
        plainest = next(iter(op.options.get(option_name, ())), None)
        x = _draw_in_any_regime(distribution, size, g, options.get(option_name, plainest))
    else:
        x = torch.randn(size, generator=g, dtype=torch.float64)
        if case.regime == "wide" and name == next(iter(op.inputs)):
            x = x * values.wide_factors(size, g, case.dtype)
    return x.to(dtype_of(op, name, case.dtype, case.float32, case.narrow))


def _draw_in_any_regime(distribution: str, size: tuple[int, ...], g: torch.Generator, option: Any) -> Tensor:
    if distribution in _OF_A_FORMAT:
        return _OF_A_FORMAT[distribution](size, g, option)
    return _IN_ANY_REGIME[distribution](size, g)


_IN_ANY_REGIME: Mapping[str, Callable[[tuple[int, ...], torch.Generator], Tensor]] = {
    "distinct": values.distinct_values,
    "choice": lambda size, g: values.distinct_values(size, g) / 32,
    "octaves": values.octaves,
    "sign": lambda size, g: 1.0 - 2.0 * torch.randint(2, size, generator=g),
    "unit": lambda size, g: 2 * torch.rand(size, generator=g, dtype=torch.float64) - 1,
}

_OF_A_FORMAT: Mapping[str, Callable[[tuple[int, ...], torch.Generator, str], Tensor]] = {
    "element": values.element,
    "scale": values.scale,
}


def _tokens_in_masks(op: Op, case: Case) -> Tensor:
    """Whether each row counts by every mask of the op that the call has."""
    rows = torch.ones(case.n_tokens + case.slack, dtype=torch.bool)
    for name in op.integers_drawn("mask"):
        if name in case.present or not parse(op.inputs[name]).optional:
            rows &= values.tokens_that_count(case.lengths, case.slack, _generator(case, name), case.seed)
    return rows


def _draw_decay(
    distribution: str, optional_input: str, size: tuple[int, ...], g: torch.Generator, case: Case, *, tokens: bool
) -> Tensor:
    """Logarithms of decays.

    optional_input: where this input is present, the decays are the argument of a softplus, and strong gates come from
        the rate multiplied with it.
    """
    if case.regime != STRONG_GATES or (optional_input and not tokens):
        return values.decay(size, g, "normal" if case.regime == STRONG_GATES else case.regime, tokens=tokens)
    if optional_input in case.present:
        return values.decay(size, g, "normal", tokens=tokens) + values.fitting_strong_rates(size, g).log()
    return values.strong_decay(size, g, math.inf if distribution == "gate" else values.STRONGEST, tokens=tokens)


def _draw_integers(op: Op, case: Case, name: str, sizes: Mapping[str, int], options: Mapping[str, Any]) -> Tensor:
    distribution, _, axis = op.draws[name].partition("|")
    g = _generator(case, name)
    if distribution in ("label", "id"):
        integers = values.token_ids(case.lengths, case.slack, sizes[axis], g, case.seed)
        if distribution == "label":
            integers[~values.tokens_that_count(case.lengths, case.slack, g, case.seed)] = ignored_label(options)
    elif distribution == "mask":
        integers = values.tokens_that_count(case.lengths, case.slack, g, case.seed).long()
    elif distribution == "split":
        integers = values.splits(case.lengths, g, case.seed)
    elif name in (op.pool or ())[:1] and op.slots_of_tokens:
        integers = _draw_slots(case, name, sizes[axis], of_tokens=True)
    else:
        integers = _INTEGERS[distribution](case, name, sizes[axis])
    return integers.to(torch.int64 if case.seed % 2 else torch.int32)


def _draw_slots(case: Case, name: str, slots: int, *, of_tokens: bool = False) -> Tensor:
    """A slot for each sequence, or for each token; slack rows have none.

    Of four seeds the first gives slots in the order of the sequences, the others in random order. With the third seed
    one sequence has no slot, with the fourth about half of them have none. So it is with tokens.
    """
    n, pattern, g = case.n_tokens if of_tokens else len(case.lengths), case.seed % 4, _generator(case, name)
    assigned_slots = torch.randperm(slots, generator=g)[:n] if pattern else torch.arange(n)
    assigned_slots = functional.pad(assigned_slots, (0, case.slack if of_tokens else 0), value=-1)
    if pattern < 2 or not n:
        return assigned_slots
    without_slot = torch.rand(len(assigned_slots), generator=g) < (0.5 if pattern == 3 else 0)
    without_slot[int(torch.randint(n, (1,), generator=g))] = True
    return torch.where(without_slot, -1, assigned_slots)


def _draw_positions(case: Case, name: str, rows: int) -> Tensor:
    """First positions of sequences: 0, 3, ending at the last row, starting in padding, or all in padding."""
    lengths = torch.tensor(case.lengths, dtype=torch.int64)
    latest_starts = rows - lengths
    starts = torch.stack([0 * lengths, 0 * lengths + 3, latest_starts, -1 - lengths // 2, -1 - lengths]).minimum(
        latest_starts
    )
    start_kinds = torch.randint(len(starts), (1, len(lengths)), generator=_generator(case, name))
    return starts.gather(0, start_kinds)[0]


def _draw_accepted(case: Case, name: str, drafts: int) -> Tensor:
    """By how many tokens of the step before each request goes on: one, all, or any number between."""
    return torch.randint(1, drafts + 1, (len(case.lengths),), generator=_generator(case, name))


def _draw_counts(case: Case, name: str, most: int) -> Tensor:
    """A count for the first piece of each sequence, from 0 to `most`."""
    return torch.randint(most + 1, (len(case.lengths),), generator=_generator(case, name))


_INTEGERS: Mapping[str, Callable[[Case, str, int], Tensor]] = {
    "slot": _draw_slots,
    "position": _draw_positions,
    "accepted": _draw_accepted,
    "once": _draw_counts,
}


def _cancel_token_pairs(op: Op, inputs: dict[str, Tensor], axes: Mapping[str, Axes], case: Case) -> None:
    """In the cancelling regime every second token of the first input nearly undoes the one before it."""
    if case.regime != "cancelling" or not inputs:
        return
    name = next(iter(inputs))
    if op.draws.get(name, "").partition("|")[0] in ("distinct", "choice", "element"):
        return
    x = inputs[name].clone()
    pairs = x.shape[0] // 2
    if role(axes[name]) == "token" and pairs:
        x[1 : 2 * pairs : 2] = -x[0 : 2 * pairs : 2] * (1 + 2**-6)
    inputs[name] = x


def _draw_cotangent(op: Op, case: Case, name: str, sample: Sample, axes: Axes) -> Tensor:
    x = torch.randn(sample.shape(name), generator=_generator(case, f"cotangent {name}"), dtype=torch.float64)
    if case.regime == "one-hot" and case.lengths and not is_shared(axes):
        j = one_hot_sequence(case)
        one_hot = torch.zeros_like(x)
        one_hot[sample.rows(j, axes)] = x[sample.rows(j, axes)]
        x = one_hot
    return x.to(dtype_of(op, name, case.dtype))


def one_hot_sequence(case: Case) -> int:
    """The only sequence whose outputs have an incoming gradient in the one-hot regime."""
    nonempty = [j for j, n in enumerate(case.lengths) if n] or [0]
    return nonempty[case.seed % len(nonempty)]
