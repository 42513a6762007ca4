"""The oracle: what a call should return, from the float64 reference, and how far from it a kernel may be."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packproof.properties.absolute import magnitude
from packproof.properties.budget import Budget, budget
from packproof.properties.op import Op
from packproof.properties.promises import Promises
from packproof.properties.sample import Sample, dtype_of


@dataclass(frozen=True)
class Expected:
    """Values and budgets by tensor name: outputs by their own, gradients as "gradient of <input>"."""

    values: Mapping[str, Tensor]
    budgets: Mapping[str, Budget]
    absolute: Mapping[str, Tensor]


def gradient(name: str) -> str:
    return f"gradient of {name}"


def expected(sample: Sample, promises: Promises, *, gradients: bool) -> Expected:
    """Run the reference and its absolute twin in float64 on the sample's inputs, as they are in the kernel's dtype."""
    op = sample.op
    values = vjp(op.reference, sample, gradients=gradients)
    absolute = vjp(twin(op, promises), sample, gradients=gradients, absolute=True)
    tokens = sample.inputs[next(iter(op.inputs))].dtype
    stored = {n: dtype_of(op, n, str(tokens).removeprefix("torch.")) for n in sample.outputs}
    stored |= {gradient(n): x.dtype for n, x in sample.inputs.items()}
    budgets = {n: budget(r, absolute[n], stored[n], tokens, op, promises) for n, r in values.items()}
    return Expected(values, budgets, absolute)


def twin(op: Op, promises: Promises) -> Callable[..., Any]:
    """What bounds the terms of the op's values and gradients: see `properties.absolute`."""
    if promises.cumsum and op.cumsum is not None:
        return op.cumsum(promises)
    return op.absolute or _on_absolute_values(op)


def _on_absolute_values(op: Op) -> Callable[..., Any]:
    def run(**arguments: Any) -> Any:
        return op.reference(**{k: magnitude(v) if k in op.inputs else v for k, v in arguments.items()})

    return run


def vjp(f: Callable[..., Any], sample: Sample, *, gradients: bool, absolute: bool = False) -> dict[str, Tensor]:
    """Outputs and gradients of a reference or twin in float64, by name; a twin's incoming gradients are absolute."""
    inputs = {n: x.double().requires_grad_(gradients and n in sample.wrt) for n, x in sample.inputs.items()}
    results = f(**inputs, cu_seqlens=sample.cu_seqlens, **sample.options)
    named = dict(zip(sample.outputs, results if isinstance(results, tuple) else (results,), strict=True))
    values = {n: y.detach() for n, y in named.items()}
    if gradients:
        reached = [n for n, y in named.items() if y.requires_grad]
        cotangents = [sample.cotangents[n].double() for n in reached]
        wrt = {n: inputs[n] for n in sample.wrt}
        found = (
            torch.autograd.grad(
                [named[n] for n in reached],
                list(wrt.values()),
                [c.abs() for c in cotangents] if absolute else cotangents,
                allow_unused=True,
            )
            if reached
            else [None] * len(wrt)
        )
        for (n, x), g in zip(wrt.items(), found, strict=True):
            values[gradient(n)] = torch.zeros_like(x) if g is None else g.detach()
    return values
