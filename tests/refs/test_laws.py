"""What convolution, rope and attention have in common: packing invariance, slack, gradients, edge layouts, dtypes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.refs import PackLayout

DRAWN = PackLayout((3, 0, 1, 5, 2), slack=2)


@dataclass(frozen=True)
class Case:
    """A call of a reference: the shape of each tensor, with "t" for tokens and "s" for sequences, and the options."""

    call: Callable[..., Any]
    shapes: Mapping[str, tuple[Any, ...]]
    options: Mapping[str, Any]

    def draw(self, layout: PackLayout, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        sizes = {"t": layout.total_tokens, "s": layout.n_sequences}
        generator = torch.Generator().manual_seed(7)
        return {
            name: torch.randn([sizes.get(n, n) for n in shape], generator=generator, dtype=torch.float64).to(dtype)
            for name, shape in self.shapes.items()
        }

    def run(self, inputs: Mapping[str, Tensor], cu_seqlens: Tensor) -> tuple[Tensor, ...]:
        outputs = self.call(**inputs, cu_seqlens=cu_seqlens, **self.options)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def alone(self, inputs: Mapping[str, Tensor], layout: PackLayout, j: int) -> dict[str, Tensor]:
        """The inputs of sequence j by itself."""
        rows = {"t": layout.slices[j], "s": slice(j, j + 1)}
        return {name: x[rows[self.shapes[name][0]]] if self.axis(name) else x for name, x in inputs.items()}

    def axis(self, name: str) -> str | None:
        first = self.shapes[name][0]
        return first if first in ("t", "s") else None


CONV = {"x": ("t", 3), "weight": (3, 4), "bias": (3,), "initial_states": ("s", 3, 3)}
ROPE = {"x": ("t", 2, 6), "cos": (5, 2), "sin": (5, 2)}
ATTENTION = {"q": ("t", 4, 3), "k": ("t", 2, 3), "v": ("t", 2, 5)}
CASES = {
    "conv": Case(refs.causal_conv1d, {n: CONV[n] for n in ("x", "weight")}, {}),
    "conv-silu-states": Case(refs.causal_conv1d, CONV, {"activation": "silu", "return_final_states": True}),
    "rope": Case(refs.rope, ROPE, {}),
    "rope-interleaved": Case(refs.rope, ROPE, {"interleaved": True}),
    "attention": Case(refs.attention, ATTENTION, {"softmax_scale": 0.7}),
    "attention-causal-window": Case(refs.attention, ATTENTION, {"causal": True, "window_size": (2, -1)}),
    "attention-sinks-softcap": Case(refs.attention, {**ATTENTION, "sinks": (4,)}, {"causal": True, "softcap": 1.5}),
    "attention-band": Case(refs.attention, ATTENTION, {"window_size": (1, 2)}),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def vjp(outputs: tuple[Tensor, ...], inputs: Mapping[str, Tensor], cotangents: tuple[Tensor, ...]) -> dict[str, Tensor]:
    found = torch.autograd.grad(outputs, list(inputs.values()), cotangents, allow_unused=True)
    return {name: torch.zeros_like(x) if g is None else g for (name, x), g in zip(inputs.items(), found, strict=True)}


def tracked(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.clone().requires_grad_() for name, x in inputs.items()}


@each_case
def test_packed_is_one_by_one(case: Case) -> None:
    inputs = tracked(case.draw(DRAWN))
    outputs = case.run(inputs, DRAWN.cu_seqlens())
    cotangents = tuple(torch.randn_like(y) for y in outputs)
    gradients = vjp(outputs, inputs, cotangents)
    shared = {name: torch.zeros_like(x) for name, x in inputs.items() if case.axis(name) is None}
    for j, rows in enumerate(DRAWN.slices):
        single = tracked(case.alone(inputs, DRAWN, j))
        alone = case.run(single, torch.tensor([0, DRAWN.lengths[j]]))
        places = (rows, slice(j, j + 1))  # y by tokens, final states by sequences
        parts = [(y[where], g[where]) for y, g, where in zip(outputs, cotangents, places, strict=False)]
        assert all(torch.equal(y, a) for (y, _), a in zip(parts, alone, strict=True))
        own = vjp(alone, single, tuple(g for _, g in parts))
        for name in single:
            if name in shared:
                shared[name] += own[name]
            else:
                assert torch.equal(own[name], case.alone({name: gradients[name]}, DRAWN, j)[name]), name
    for name, total in shared.items():
        torch.testing.assert_close(gradients[name], total, rtol=1e-13, atol=1e-13)


@each_case
def test_slack_is_zero_and_reaches_no_sequence(case: Case) -> None:
    clean = case.draw(DRAWN)
    dirty = {name: x.clone() for name, x in clean.items()}
    for name, x in dirty.items():
        if case.axis(name) == "t":
            x[DRAWN.n_tokens :] = torch.nan
    dirty = tracked(dirty)
    outputs = case.run(dirty, DRAWN.cu_seqlens())
    assert all(map(torch.equal, outputs, case.run(clean, DRAWN.cu_seqlens())))
    assert not outputs[0][DRAWN.n_tokens :].any()
    cotangents = [torch.ones_like(y) for y in outputs]
    cotangents[0][DRAWN.n_tokens :] = torch.nan
    for name, gradient in vjp(outputs, dirty, tuple(cotangents)).items():
        assert gradient.isfinite().all(), name
        assert case.axis(name) != "t" or not gradient[DRAWN.n_tokens :].any(), name


@pytest.mark.proof
@each_case
def test_gradients_pass_slow_gradcheck(case: Case) -> None:
    layout = PackLayout((2, 0, 3), slack=1)
    inputs = tracked(case.draw(layout))

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        return case.run(dict(zip(inputs, tensors, strict=True)), layout.cu_seqlens())

    assert torch.autograd.gradcheck(call, tuple(inputs.values()))


@each_case
def test_gradients_agree_with_sixth_order_differences(case: Case) -> None:
    """To 1e-10, which central differences alone do not reach: Richardson's extrapolation of steps h, 2h and 4h."""
    inputs = case.draw(DRAWN)
    along = {name: torch.randn_like(x) for name, x in inputs.items()}
    cotangents = [torch.randn_like(y) for y in case.run(inputs, DRAWN.cu_seqlens())]

    def weighted(step: float) -> Tensor:
        moved = {name: x + step * along[name] for name, x in inputs.items()}
        outputs = case.run(moved, DRAWN.cu_seqlens())
        return torch.stack([(y * g).sum() for y, g in zip(outputs, cotangents, strict=True)]).sum()

    def slope(h: float) -> Tensor:
        return (weighted(h) - weighted(-h)) / (2 * h)

    h = 2e-3
    difference = (64 * slope(h) - 20 * slope(2 * h) + slope(4 * h)) / 45
    leaves = tracked(inputs)
    gradients = vjp(case.run(leaves, DRAWN.cu_seqlens()), leaves, tuple(cotangents))
    torch.testing.assert_close(sum((gradients[n] * along[n]).sum() for n in along), difference, rtol=1e-10, atol=1e-10)


@each_case
@pytest.mark.parametrize("lengths", [(), (0,), (0, 0), (1,), (0, 1, 0)])
@pytest.mark.parametrize("slack", [0, 2])
def test_edge_layouts(case: Case, lengths: tuple[int, ...], slack: int) -> None:
    layout = PackLayout(lengths, slack)
    inputs = tracked(case.draw(layout))
    outputs = case.run(inputs, layout.cu_seqlens())
    assert len(outputs[0]) == layout.total_tokens
    assert all(len(states) == layout.n_sequences for states in outputs[1:])
    gradients = torch.autograd.grad(outputs[0].sum(), list(inputs.values()), allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in gradients)


@each_case
def test_int64_offsets_and_strides_change_nothing(case: Case) -> None:
    inputs = case.draw(DRAWN)
    strided = {name: x.mT.contiguous().mT if x.ndim > 1 else x for name, x in inputs.items()}
    assert any(not x.is_contiguous() for x in strided.values())
    want = case.run(inputs, DRAWN.cu_seqlens())
    assert all(map(torch.equal, case.run(strided, DRAWN.cu_seqlens(dtype=torch.int64)), want))


@each_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_computed_in_fp32_and_rounded_once(case: Case, dtype: torch.dtype) -> None:
    inputs = tracked(case.draw(DRAWN, dtype))
    wide = tracked({name: x.detach().float() for name, x in inputs.items()})
    outputs, exact = (case.run(x, DRAWN.cu_seqlens()) for x in (inputs, wide))
    assert all(y.dtype == dtype for y in outputs)
    assert all(map(torch.equal, outputs, [y.to(dtype) for y in exact]))
    cotangents = tuple(torch.randn_like(y) for y in outputs)
    gradients = vjp(outputs, inputs, cotangents)
    for name, gradient in vjp(exact, wide, tuple(g.float() for g in cotangents)).items():
        assert torch.equal(gradients[name], gradient.to(dtype)), name


def graph_nodes(y: Tensor) -> list[str]:
    seen, stack, names = set(), [y.grad_fn], []
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            names.append(node.name())
            stack += [parent for parent, _ in node.next_functions]
    return names


@each_case
def test_backward_is_linear_in_the_tokens(case: Case) -> None:
    """x[i] under autograd fills a full-size gradient per row: 45 s instead of 1.4 s at 16k tokens."""
    layout = PackLayout((5,) * 20)
    nodes = graph_nodes(case.run(tracked(case.draw(layout)), layout.cu_seqlens())[0])
    assert len(nodes) > 20
    assert not [name for name in nodes if "Select" in name or "Index" in name]
