"""Checks of the state-space kernels at sizes that only a GPU reaches, as functions of the device and the size.

The float64 reference and its magnitude op run on the device too: autograd keeps a state for each token, and a CPU
spends most of the time on fresh pages for them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from packproof.base.axes import parse, role
from packproof.harness.check.targets.builtin_kernels import BUILTIN_KERNELS
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.bounds.oracle import OracleAnswer, oracle_answer, vjp
from packproof.properties.calling.call import Result
from packproof.properties.calling.tensor_key import TensorKey, gradient
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.sample import Sample
from packproof.properties.judgement.comparison import Comparison, RowMap
from packproof.properties.ops.op import Op

Kernel = Callable[..., Any]
Sizes = Mapping[str, int]

BLOCK = 509  # rows that are drawn, then repeated


def sample_of(op: Op, lengths: tuple[int, ...], sizes: Sizes, dtype: str) -> Sample:
    """All optional inputs, every option that can be True."""
    options = tuple((name, True) for name, values in op.options.items() if True in values)
    optional = tuple(name for name, spec in op.inputs.items() if parse(spec).optional)
    return draw(op, Case(lengths, dtype, tuple(sizes.items()), present=optional, options=options))


def relative_errors(op: Op, kernel: Kernel, sample: Sample, device: str) -> tuple[float, float]:
    """The largest relative L2 error of an output, and of a gradient, against float64."""
    result = InProcess(kernel, device).run(sample.call())
    got = _by_key(result)
    want = vjp(_computed_on(device, op.reference), sample, gradients=True)
    assert got.keys() == want.keys()
    errors = {name: float((got[name].double() - x).norm() / x.norm()) for name, x in want.items()}
    outputs = [error for key, error in errors.items() if not key.is_gradient]
    return max(outputs), max(error for key, error in errors.items() if key.is_gradient)


def _by_key(result: Result) -> dict[TensorKey, Tensor]:
    gradients = {gradient(name): g for name, g in result.gradients.items()}
    return {TensorKey(name): y for name, y in result.outputs.items()} | gradients


def outside_the_budget(kernel: Kernel, sample: Sample, device: str, chosen: list[int] | None = None) -> list[str]:
    """Violations of the reference's budget: in the chosen sequences, or in all and in the shared gradients."""
    alone = sample if chosen is None else sample.select(chosen)
    result = InProcess(kernel, device).run(sample.call())
    got = _by_key(result)
    wanted = _expected(alone, device)
    if chosen is None:
        return violations(alone, got, wanted)
    rows = {name: torch.cat([x[sample.rows(j, _axes(sample, name))] for j in chosen]) for name, x in got.items()}
    return violations(alone, {n: x for n, x in rows.items() if role(_axes(sample, n)) != "shared"}, wanted)


def tail_outside_the_budget(op: Op, kernel: Kernel, tokens: int, tail: int, sizes: Sizes, device: str) -> list[str]:
    """As above, in the last `tail` tokens, a sequence after one of all the others; in bf16, made on the device."""
    block = sample_of(op, (BLOCK,), sizes, "bfloat16")
    picked = torch.arange(tokens) % BLOCK
    counts = {"token": picked, "sequence": torch.zeros(2, dtype=torch.long)}

    def stretched(x: Tensor, name: str, rows: slice = slice(None)) -> Tensor:
        kind = role(block.axes[name])
        return x if kind == "shared" else x[counts[kind][rows]]

    inputs = {n: stretched(x.to(device), n).requires_grad_(n not in op.constants) for n, x in block.inputs.items()}
    cotangents = [stretched(block.cotangents[n].to(device), n) for n in block.outputs]
    offsets = torch.tensor([0, tokens - tail, tokens], dtype=torch.int32, device=device)
    outputs = kernel(**inputs, cu_seqlens=offsets, **block.options)
    gradients = torch.autograd.grad(outputs, [inputs[n] for n in block.wrt], cotangents)

    ends = {"token": slice(-tail, None), "sequence": slice(-1, None)}
    alone = replace(
        block,
        lengths=(tail,),
        inputs={n: stretched(x, n, ends.get(role(block.axes[n]), slice(None))) for n, x in block.inputs.items()},
        cotangents={n: stretched(x, n, ends[role(block.axes[n])]) for n, x in block.cotangents.items()},
    )
    found = dict(zip([*map(TensorKey, block.outputs), *map(gradient, block.wrt)], [*outputs, *gradients], strict=True))
    got = {n: x.detach()[ends[role(_axes(block, n))]].cpu() for n, x in found.items() if role(_axes(block, n)) in ends}
    return violations(alone, got, _expected(alone, device))


def violations(sample: Sample, got: Mapping[TensorKey, Tensor], wanted: OracleAnswer) -> list[str]:
    """Violations of the budget, as lines of text."""
    return [
        line
        for key, x in got.items()
        for violation in Comparison(
            key, x, wanted.values[key], RowMap(_axes(sample, key), sample.offsets), wanted.budgets[key]
        ).violations()
        for line in violation.lines()
    ]


def _expected(sample: Sample, device: str) -> OracleAnswer:
    op = sample.op
    assert op.absolute
    moved = replace(op, reference=_computed_on(device, op.reference), absolute=_computed_on(device, op.absolute))
    return oracle_answer(
        replace(sample, op=moved), BUILTIN_KERNELS[op.name].declaration(device).promises, gradients=True
    )


def _computed_on(device: str, f: Callable[..., Any]) -> Callable[..., Any]:
    """A reference or magnitude op that computes on the device, for tensors on the CPU; autograd follows it."""

    def there(**arguments: Any) -> Any:
        results = f(**{name: x.to(device) if isinstance(x, Tensor) else x for name, x in arguments.items()})
        return tuple(y.cpu() for y in results) if isinstance(results, tuple) else results.cpu()

    return there


def _axes(sample: Sample, key: TensorKey) -> tuple[str, ...]:
    return sample.axes[key.name]
