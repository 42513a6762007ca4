"""The controls of the museum agree with the references and keep their promises."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import museum, refs
from packproof.museum import Control
from packproof.properties.ops.catalogue import OPS
from tests.sweeps import sweep

CONTROLS = {
    name: control
    for name, control in museum.controls().items()
    if not control.kernel.startswith("packproof.museum.losses.")  # test_losses.py
    and OPS[control.op].differentiable  # test_block_scales.py
    # draw() gives every optional input, but what a gate is made of
    and set(OPS[control.op].inputs) - {"A_log", "dt_bias"} <= set(signature(control.load()).parameters)
}
LAYOUTS = [(), (0, 0), (17, 0), (15, 1, 16, 17), (0, 5, 0, 0, 7, 0), (5, 35, 3)]
TOKENS = {"x", "u", "delta", "dt", "B", "C", "z", "q", "k", "v", "g", "beta", "y"}
STATES = {"initial_states", "final_states"}
CONSTANTS = {"cos", "sin"}

Named = dict[str, Tensor]
Spoil = Callable[[str, Tensor], Tensor]


def draw(op: str, lengths: tuple[int, ...], regime: str, full: bool) -> tuple[Named, dict[str, Any]]:
    """Inputs and options of a call in fp64; `full` takes every option and optional tensor, and three rows of slack.

    "hard" has exponents that overflow: decays of up to 60 per step between steps of almost none, or large scores.
    """
    g = torch.Generator().manual_seed(0)
    t, s = sum(lengths) + 3 * full, len(lengths)
    more: Named = {}
    states: Named = {}
    options: dict[str, Any]

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    def steps(*shape: int) -> Tensor:
        return 0.05 + rand(*shape) if regime == "normal" else torch.where(rand(*shape) < 0.3, 60 * rand(*shape), 1e-3)

    match op:
        case "causal_conv1d":
            inputs, more = {"x": randn(t, 2), "weight": randn(2, 4)}, {"bias": randn(2)}
            states, options = {"initial_states": randn(s, 2, 3)}, {"activation": "silu"}
        case "selective_scan":
            groups = (2, 3) if full else (3,)
            inputs = {"u": randn(t, 2), "delta": steps(t, 2), "A": -0.5 - rand(2, 3)}
            inputs |= {"B": randn(t, *groups), "C": randn(t, *groups)}
            more = {"D": randn(2), "z": randn(t, 2), "delta_bias": randn(2)}
            states, options = {"initial_states": randn(s, 2, 3)}, {"delta_softplus": True}
        case "ssd":
            inputs = {"x": randn(t, 4, 2), "dt": steps(t, 4), "A": -0.5 - rand(4)}
            inputs |= {"B": randn(t, 2, 3), "C": randn(t, 2, 3)}
            more = {"D": randn(4, 2), "z": randn(t, 4, 2), "dt_bias": randn(4)}
            states, options = {"initial_states": randn(s, 4, 2, 3)}, {"dt_softplus": True}
        case "rope":
            angle = torch.arange(max(lengths, default=0))[:, None] * torch.tensor([1.0, 0.1], dtype=torch.float64)
            inputs, options = {"x": randn(t, 2, 5), "cos": angle.cos(), "sin": angle.sin()}, {"interleaved": True}
        case "gated_delta_rule" | "kda":
            heads = 4 if op == "kda" else 2
            inputs = {"q": randn(t, heads, 3), "k": randn(t, heads, 3) / 2, "v": randn(t, 4, 2)}
            inputs |= {"g": -steps(t, 4, 3) if op == "kda" else -steps(t, 4), "beta": rand(t, 4)}
            states, options = {"initial_states": randn(s, 4, 3, 2)}, {"scale": 0.7}
        case "grouped_mm":
            inputs, more, options = {"x": randn(t, 3), "weight": randn(s, 3, 5)}, {"bias": randn(s, 5)}, {}
        case "dispatch_combine":
            inputs = {"x": randn(t, 3), "logits": randn(t, 6), "gain": randn(6, 3)}
            options = {"normalize": True, "top": 2, "capacity": 2}
        case "mixture_of_experts":
            inputs = {"x": randn(t, 3), "logits": randn(t, 6), "w_gate": randn(6, 3, 5), "w_up": randn(6, 3, 5)}
            inputs["w_down"], options = randn(6, 5, 3), {"normalize": True, "top": 2}
        case "attention":
            inputs = {"q": randn(t, 4, 3) * (1 if regime == "normal" else 50), "k": randn(t, 2, 3), "v": randn(t, 2, 2)}
            options = {"causal": True, "window_size": (20, 0), "softmax_scale": 0.7}
    inputs = {name: x.float().double() for name, x in {**inputs, **(more if full else {}), **states}.items()}
    return inputs, {**(options if full else {}), **({"return_final_states": True} if states else {})}


def cotangents_of(outputs: Named) -> Named:
    """Fixed random cotangents, by output name."""
    g = torch.Generator().manual_seed(1)
    return {n: torch.randn(y.shape, generator=g).to(y.dtype) for n, y in outputs.items() if n in ("y", "final_states")}


def vjp(
    kernel: Callable[..., Any],
    call: tuple[Named, dict[str, Any]],
    lengths: tuple[int, ...],
    *,
    dtype: torch.dtype = torch.float32,
    cotangents: Named | None = None,
    spoil: Spoil = lambda _, x: x,
) -> Named:
    """Outputs and gradients by name; cotangents are fixed random numbers where not given."""
    inputs, options = call
    leaves = {n: spoil(n, x.to(dtype)).requires_grad_(n not in CONSTANTS) for n, x in inputs.items()}
    returned = kernel(**leaves, cu_seqlens=refs.PackLayout(lengths).cu_seqlens(), **options)
    outputs = dict(zip(("y", "final_states"), returned if isinstance(returned, tuple) else (returned,), strict=False))
    cotangents = cotangents or cotangents_of(outputs)
    into = {n: spoil(n, cotangents[n]) for n, y in outputs.items() if y.requires_grad}
    wrt = {n: x for n, x in leaves.items() if x.requires_grad}
    gradients = torch.autograd.grad(
        [outputs[n] for n in into], [*wrt.values()], [*into.values()], allow_unused=True, materialize_grads=True
    )
    named = zip((f"gradient of {n}" for n in wrt), gradients, strict=True)
    return {n: x.detach() for n, x in [*outputs.items(), *named]}


def wrong(control: Control, lengths: tuple[int, ...]) -> set[str]:
    """The tensors that miss the fp64 reference by more than fp32 sums do; gradients in the normal regime only."""
    found = set()
    for regime, full in (("normal", True), ("hard", False)):
        call = draw(control.op, lengths, regime, full)
        want = vjp(OPS[control.op].reference, call, lengths, dtype=torch.float64)
        for name, got in vjp(control.load(), call, lengths).items():
            if regime == "normal" or not name.startswith("gradient"):
                near = (got - want[name]).abs() <= 1e-4 * (1 + want[name].abs().amax() if got.numel() else 0)
                found |= set() if near.all() else {name}
    return found


def of_sequence(j: int, lengths: tuple[int, ...], name: str) -> slice | None:
    """The rows of sequence j in a tensor; None for a shared parameter."""
    name = name.removeprefix("gradient of ")
    if name in STATES:
        return slice(j, j + 1)
    return slice(sum(lengths[:j]), sum(lengths[: j + 1])) if name in TOKENS else None


def differing(j: int, lengths: tuple[int, ...], pack: Named, other: Named, *, whole: bool) -> set[str]:
    """The tensors in which sequence j of the pack has other bits than in `other`, a `whole` pack or j alone."""
    places = {name: place for name in pack if (place := of_sequence(j, lengths, name))}
    return {n for n, rows in places.items() if not torch.equal(pack[n][rows], other[n][rows] if whole else other[n])}


def leaks(control: Control, lengths: tuple[int, ...]) -> set[str]:
    """The tensors in which a sequence changes when all others, and the slack, are NaN."""
    found, kernel = set(), control.load()
    for j in range(len(lengths)):

        def alone(name: str, x: Tensor, j: int = j) -> Tensor:
            place = of_sequence(j, lengths, name)
            if place is None:
                return x
            spoiled = torch.full_like(x, torch.nan)
            spoiled[place] = x[place]
            return spoiled

        call = draw(control.op, lengths, "normal", full=True)
        before, after = vjp(kernel, call, lengths), vjp(kernel, call, lengths, spoil=alone)
        found |= differing(j, lengths, before, after, whole=True)
    return found


@sweep("name", [*CONTROLS][::2], [*CONTROLS])
def test_a_control_agrees_with_the_reference(name: str) -> None:
    assert {lengths: found for lengths in LAYOUTS if (found := wrong(CONTROLS[name], lengths))} == {}


@pytest.mark.parametrize("name", [name for name, control in CONTROLS.items() if control.promises.get("isolated")])
def test_nan_stays_in_its_sequence(name: str) -> None:
    for lengths in LAYOUTS:
        assert not leaks(CONTROLS[name], lengths), lengths


INDEPENDENT = [name for name, control in CONTROLS.items() if control.promises.get("grid") in ("sequence", "token")]


@pytest.mark.parametrize("name", INDEPENDENT)
def test_a_sequence_has_the_same_bits_alone(name: str) -> None:
    control = CONTROLS[name]
    for lengths in LAYOUTS:
        inputs, options = draw(control.op, lengths, "normal", full=True)
        pack = vjp(control.load(), (inputs, options), lengths)
        for j, length in enumerate(lengths):

            def own(tensors: Named, j: int = j, lengths: tuple[int, ...] = lengths) -> Named:
                places = {n: of_sequence(j, lengths, n) for n in tensors}
                return {n: x[place] if (place := places[n]) else x for n, x in tensors.items()}

            cotangents = own(cotangents_of(pack))
            alone = vjp(control.load(), (own(inputs), options), (length,), cotangents=cotangents)
            assert not differing(j, lengths, pack, alone, whole=False), (lengths, j)


CARRYING = [name for name, control in CONTROLS.items() if control.promises.get("state_entry") == "carry"]


@pytest.mark.parametrize("name", CARRYING)
def test_a_run_cut_at_a_chunk_has_the_same_bits(name: str) -> None:
    kernel, cut, length = CONTROLS[name].load(), CONTROLS[name].promises["chunk"], 41
    inputs, options = draw(CONTROLS[name].op, (length,), "normal", full=False)
    one = vjp(kernel, (inputs, options), (length,))
    c = cotangents_of(one)

    def part(rows: slice, **states: Tensor) -> tuple[Named, dict[str, Any]]:
        return {n: x[rows] if n in TOKENS else x for n, x in (inputs | states).items()}, options

    head_forward = vjp(kernel, part(slice(cut)), (cut,))
    tail = vjp(
        kernel,
        part(slice(cut, None), initial_states=head_forward["final_states"]),
        (length - cut,),
        cotangents={"y": c["y"][cut:], "final_states": c["final_states"]},
    )
    carried = {"y": c["y"][:cut], "final_states": tail["gradient of initial_states"]}
    head = vjp(kernel, part(slice(cut)), (cut,), cotangents=carried)
    for tensor in one:
        if tensor.removeprefix("gradient of ") in TOKENS:
            assert torch.equal(one[tensor], torch.cat([head[tensor], tail[tensor]])), tensor
    assert torch.equal(one["final_states"], tail["final_states"])
    assert torch.equal(one["gradient of initial_states"], head["gradient of initial_states"])
