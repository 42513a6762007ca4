"""The tensors of a case. They follow from its seed, on any machine."""

import dataclasses
import math
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from packproof.properties.cases import values
from packproof.properties.cases.case import STRONG_GATES, Case
from packproof.properties.cases.sample import Sample
from packproof.properties.op import Op
from packproof.refs.axes import Axes, parse, role

DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")}


def draw(op: Op, case: Case) -> Sample:
    """The tensors of a case."""
    options = dict(case.options)
    choice = dict(case.axes)
    sizes = {k: int(case.size_words.get(str(v), v)) for k, v in case.sizes}
    specs = {n: parse(spec) for n, spec in (*op.inputs.items(), *op.outputs.items())}
    axes = {n: spec.alternatives[choice.get(n, 0)] for n, spec in specs.items()}
    given = [n for n in op.inputs if not specs[n].optional or n in case.present]
    index_dtype = getattr(torch, case.index_dtype)
    where = (index_dtype, case.key_lengths, case.configuration)
    empty = Sample(op, case.lengths, case.slack, {}, {}, options, axes, sizes, *where)
    inputs = {
        n: _draw_integers(op, case, n, sizes)
        if n in op.integers
        else _draw_input(op, case, n, axes[n], empty.shape(n), options)
        for n in given
    }
    _cancel(op, inputs, axes, case)
    outputs = dataclasses.replace(empty, inputs=inputs).outputs
    differentiated = outputs if op.differentiable else []
    cotangents = {n: _draw_cotangent(op, case, n, empty, axes[n]) for n in differentiated}
    return dataclasses.replace(empty, inputs=inputs, cotangents=cotangents)


def dtype_of(op: Op, name: str, dtype: str, float32: Collection[str] = (), narrow: Collection[str] = ()) -> torch.dtype:
    """The dtype of an input or output where the tokens have `dtype`. float32, narrow: as in a case."""
    token = DTYPES[dtype]
    if name in narrow:
        return torch.bfloat16 if token == torch.float32 else token
    return token if name not in {*op.fixed, *float32} or token == torch.float64 else torch.float32


def _generator(case: Case, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(f"{name}/{case.seed}".encode()))


def _draw_input(op: Op, case: Case, name: str, axes: Axes, size: tuple[int, ...], options: Mapping[str, Any]) -> Tensor:
    g = _generator(case, name)
    how, _, option = op.draws.get(name, "normal").partition("|")
    tokens = role(axes) == "token"
    if how in ("decay", "gate"):
        x = _draw_decay(how, option, size, g, case, tokens=tokens)
    elif how == "log rate":
        x = (-values.decay(size, g, case.regime, tokens=False)).log()
    elif how == "share":
        x = values.share(size, g, case.regime)
        x = x.clamp(1e-3, 1 - 1e-3).logit() if options.get(option) else x
    elif how == "direction":
        x = torch.randn(size, generator=g, dtype=torch.float64)
        x = x if options.get(option) else values.with_length(x, g, case.regime)
    elif how == "step":
        # fp16 has no operands as small as steps that fit strong rates
        regime = "normal" if tokens and (case.regime, case.dtype) == (STRONG_GATES, "float16") else case.regime
        x = values.step(size, g, regime, tokens=tokens)
        if option and options.get(option):
            x = torch.expm1(x.clamp(min=1e-21 if case.regime == STRONG_GATES else 1e-3)).log()
            if case.regime == "wide" and tokens:
                x = values.with_large_steps(x, g)
    elif how == "distinct":
        x = values.distinct(size, g)
    elif how == "sign":
        x = 1.0 - 2.0 * torch.randint(2, size, generator=g)
    elif how == "unit":
        x = 2 * torch.rand(size, generator=g, dtype=torch.float64) - 1
    else:
        x = torch.randn(size, generator=g, dtype=torch.float64)
        if case.regime == "wide" and name == next(iter(op.inputs)):
            x = x * values.wide(size, g, case.dtype)
    return x.to(dtype_of(op, name, case.dtype, case.float32, case.narrow))


def _draw_decay(
    how: str, option: str, size: tuple[int, ...], g: torch.Generator, case: Case, *, tokens: bool
) -> Tensor:
    """Logarithms of decays.

    optional_input: where this input is present, the decays are the argument of a softplus, and strong gates come from
        the rate multiplied with it.
    """
    if case.regime != STRONG_GATES or (option and not tokens):
        return values.decay(size, g, "normal" if case.regime == STRONG_GATES else case.regime, tokens=tokens)
    if option in case.present:
        return values.decay(size, g, "normal", tokens=tokens) + values.fitting_strong_rates(size, g).log()
    return values.strong_decay(size, g, math.inf if how == "gate" else values.STRONGEST, tokens=tokens)


def _draw_integers(op: Op, case: Case, name: str, sizes: Mapping[str, int]) -> Tensor:
    how, _, axis = op.draws[name].partition("|")
    drawn = (_draw_slots if how == "slot" else _draw_positions)(case, name, sizes[axis])
    return drawn.to(torch.int64 if case.seed % 2 else torch.int32)


def _draw_slots(case: Case, name: str, slots: int) -> Tensor:
    """A slot for each sequence.

    Of four seeds the first gives slots in the order of the sequences, the others in random order. With the third seed
    one sequence has no slot, with the fourth about half of them have none.
    """
    n, way, g = len(case.lengths), case.seed % 4, _generator(case, name)
    chosen = torch.randperm(slots, generator=g)[:n] if way else torch.arange(n)
    if way < 2 or not n:
        return chosen
    without = torch.rand(n, generator=g) < (0.5 if way == 3 else 0)
    without[int(torch.randint(n, (1,), generator=g))] = True
    return torch.where(without, -1, chosen)


def _draw_positions(case: Case, name: str, rows: int) -> Tensor:
    """First positions of sequences: 0, 3, ending at the last row, starting in padding, or all in padding."""
    lengths = torch.tensor(case.lengths, dtype=torch.int64)
    latest = rows - lengths
    starts = torch.stack([0 * lengths, 0 * lengths + 3, latest, -1 - lengths // 2, -1 - lengths]).minimum(latest)
    chosen = torch.randint(len(starts), (1, len(lengths)), generator=_generator(case, name))
    return starts.gather(0, chosen)[0]


def _cancel(op: Op, inputs: dict[str, Tensor], axes: Mapping[str, Axes], case: Case) -> None:
    """In the cancelling regime every second token of the first input nearly undoes the one before it."""
    if case.regime != "cancelling" or not inputs:
        return
    name = next(iter(inputs))
    if op.draws.get(name) == "distinct":
        return
    x = inputs[name].clone()
    pairs = x.shape[0] // 2
    if role(axes[name]) == "token" and pairs:
        x[1 : 2 * pairs : 2] = -x[0 : 2 * pairs : 2] * (1 + 2**-6)
    inputs[name] = x


def _draw_cotangent(op: Op, case: Case, name: str, sample: Sample, axes: Axes) -> Tensor:
    x = torch.randn(sample.shape(name), generator=_generator(case, f"cotangent {name}"), dtype=torch.float64)
    if case.regime == "one-hot" and case.lengths:
        j = one_hot_sequence(case)
        only = torch.zeros_like(x)
        only[sample.rows(j, axes)] = x[sample.rows(j, axes)]
        x = only
    return x.to(dtype_of(op, name, case.dtype))


def one_hot_sequence(case: Case) -> int:
    """The only sequence whose outputs have an incoming gradient in the one-hot regime."""
    filled = [j for j, n in enumerate(case.lengths) if n] or [0]
    return filled[case.seed % len(filled)]
