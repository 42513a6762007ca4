"""Gradient checks on your own tensors, in this process: against the float64 vjp, and the dot-product test."""

from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof.harness.debug.local import Local
from packproof.harness.engine.target import resolve_op
from packproof.harness.results.failed import CheckFailed
from packproof.properties.bounds.budget import K_ACC, UNIT_ROUNDOFF
from packproof.properties.cases.sample import Sample
from packproof.properties.comparison import Comparison
from packproof.properties.declaration import Declaration
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.op import Op
from packproof.properties.promises import Promises
from packproof.refs.axes import parse
from packproof.refs.errors import ArgumentError
from packproof.refs.wording import counted

_PROMISES_NOTHING = Promises()


def gradcheck(
    function: Callable[..., Any],
    inputs: Mapping[str, Tensor],
    *,
    cu_seqlens: Tensor,
    op: str | Op,
    options: Mapping[str, Any] | None = None,
    cotangents: Mapping[str, Tensor] | None = None,
    promises: Promises = _PROMISES_NOTHING,
    seed: int = 0,
) -> None:
    """Check values and every gradient of a kernel on given inputs, within the error budget of the float64 reference.

    inputs: tensors by the op's argument names, on the device where the kernel runs. cu_seqlens: (s + 1,) on any device.
    cotangents: incoming gradients by output name; drawn from `seed` if missing. promises: what the kernel
    guarantees; they choose the constants of the budget.

    The kernel runs in this process: use `packproof.check` for one that may crash. A Triton kernel on CPU tensors
    runs in a process that interprets it, unless this one was started with TRITON_INTERPRET=1; a closure needs this.

    Raises CheckFailed naming the worst element of each wrong tensor, ArgumentError for inputs that do not fit the op.
    """
    declared = resolve_op(op, Declaration(), "gradcheck")
    sample = _sample(declared, inputs, cu_seqlens, options or {}, cotangents or {}, seed)
    device = next(iter(inputs.values())).device
    with closing(Local(function, str(device))) as runner:
        subject = KernelUnderTest(declared, runner, promises)
        got, want = subject.run(sample), subject.expect(sample)
    wrong = []
    for key, x in got.items():
        rows = subject.row_map(key, sample)
        for violation in Comparison(key, x, want.values[key], rows, want.budgets[key]).violations():
            wrong.append(f"{key}: {'; '.join(violation.lines())}")
    if wrong:
        raise CheckFailed(
            "\n    ".join([f"gradcheck: {declared.name} is wrong in {counted(len(wrong), 'tensor')}", *wrong])
        )


def _sample(
    op: Op,
    inputs: Mapping[str, Tensor],
    cu_seqlens: Tensor,
    options: Mapping[str, Any],
    cotangents: Mapping[str, Tensor],
    seed: int,
) -> Sample:
    """The caller's tensors as a sample: axes chosen by rank, missing incoming gradients drawn."""
    unknown = [n for n in inputs if n not in op.inputs]
    if unknown:
        raise ArgumentError(f"gradcheck: {op.name} has no input {unknown[0]!r}; it has {', '.join(op.inputs)}")
    offsets = [int(i) for i in cu_seqlens.tolist()]
    axes = {n: _axes(op.inputs[n], x, n) for n, x in inputs.items()}
    axes |= {n: parse(spec).alternatives[0] for n, spec in op.outputs.items()}
    sizes = {a: x.shape[i] for n, x in inputs.items() for i, a in enumerate(axes[n]) if a.isidentifier()}
    lengths = tuple(b - a for a, b in pairwise(offsets))
    tokens = next(iter(inputs.values()))
    on_host = {n: x.detach().cpu() for n, x in inputs.items()}
    sample = Sample(op, lengths, tokens.shape[0] - offsets[-1], on_host, {}, options, axes, sizes)
    g = torch.Generator().manual_seed(seed)
    incoming = {}
    for name in sample.outputs:
        dtype = tokens.dtype if name not in op.fixed or tokens.dtype == torch.float64 else torch.float32
        drawn = torch.randn(sample.shape(name), generator=g, dtype=torch.float64).to(dtype)
        incoming[name] = cotangents[name].detach().cpu() if name in cotangents else drawn
    return Sample(op, lengths, sample.slack, on_host, incoming, options, axes, sizes)


def _axes(spec: str, x: Tensor, name: str) -> tuple[str, ...]:
    for axes in parse(spec).alternatives:
        if len(axes) == x.dim():
            return axes
    raise ArgumentError(f"gradcheck: {name} has shape {tuple(x.shape)}, expected axes ({spec.rstrip('?')})")


def dot_product_test(function: Callable[..., Any], *inputs: Tensor, seed: int = 0) -> None:
    """Check a vjp without any reference: <J v, u> = <v, J' u> for random v and u, J v from differences of the function.

    function: takes the tensors and returns a tensor or a tuple of them. inputs: floating tensors to differentiate;
    float64 makes the test sharp; float32 detects missing terms but not an error of a few percent in one element.

    J v is extrapolated from central differences with steps h and 2h; the tolerance is their truncation error, estimated
    by the difference of the two, plus the rounding of the function's values divided by h, plus that of the gradient.
    Raises CheckFailed with both sides and the tolerance.
    """
    g = torch.Generator().manual_seed(seed)
    points = [x.detach().clone().requires_grad_() for x in inputs]
    values = _tuple(function(*points))
    u = [torch.randn(y.shape, generator=g, dtype=torch.float64).to(y.device, y.dtype) for y in values]
    grads = torch.autograd.grad(values, points, u, allow_unused=True)
    pulled = [torch.zeros_like(x) if d is None else d for x, d in zip(points, grads, strict=True)]
    v = [torch.randn(x.shape, generator=g, dtype=torch.float64).to(x.device) for x in points]
    roundoff = max(UNIT_ROUNDOFF[x.dtype] for x in points)
    h = roundoff ** (1 / 5)
    near, v_near = _difference(function, inputs, v, u, h)
    far, _ = _difference(function, inputs, v, u, 2 * h)
    pushed = (4 * near - far) / 3
    back = sum(float((d.double() * w).sum()) for d, w in zip(pulled, v_near, strict=True))
    scale = sum(float((w.double().abs() * y.detach().double().abs()).sum()) for w, y in zip(u, values, strict=True))
    terms = sum(float((d.double() * w).abs().sum()) for d, w in zip(pulled, v_near, strict=True))
    allowed = abs(near - far) + K_ACC * roundoff * (scale / h + terms)
    if not abs(pushed - back) <= allowed:
        raise CheckFailed(
            f"dot product: <J v, u> = {pushed:.8g} but <v, J' u> = {back:.8g}; the allowed difference is {allowed:.2g}"
        )


def _difference(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], v: list[Tensor], u: list[Tensor], h: float
) -> tuple[float, list[Tensor]]:
    """<J v, u> by a central difference, with v as rounded together with the inputs."""
    up = [(x.detach().double() + h * w).to(x.dtype) for x, w in zip(inputs, v, strict=True)]
    down = [(x.detach().double() - h * w).to(x.dtype) for x, w in zip(inputs, v, strict=True)]
    with torch.no_grad():
        high, low = _tuple(function(*up)), _tuple(function(*down))
    slope = sum(float(((a.double() - b.double()) * w.double()).sum()) for a, b, w in zip(high, low, u, strict=True)) / (
        2 * h
    )
    return slope, [(a.double() - b.double()) / (2 * h) for a, b in zip(up, down, strict=True)]


def _tuple(values: Any) -> tuple[Tensor, ...]:
    return values if isinstance(values, tuple) else (values,)
