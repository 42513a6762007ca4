"""Roundings of the linear family that a correct kernel has, and that its budget must allow."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof.properties.bounds.oracle import oracle_answer
from packproof.properties.calling.tensor_key import gradient
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.sample import Sample
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import OPS

SEQUENCES = 100


def tokens_of_their_own() -> Sample:
    """Sequences of one token with states of their own."""
    op = OPS["simple_gla"]
    options = (("return_final_states", True), ("scale", 0.3))
    sizes = tuple({"hk": 2, "hv": 6, "k": 3, "p": 5}.items())
    return draw(op, Case((1,) * SEQUENCES, "bfloat16", sizes, 0, ("initial_states",), (), options))


def gradient_of_gates(
    s: Sample, round_operand: Callable[[Tensor], Tensor], round_end: Callable[[Tensor], Tensor]
) -> Tensor:
    """g's gradient of sequences of one token as that of a running sum: C · dC - B · dB + dS · S.

    round_operand: rounds dS as an operand of dB. round_end: rounds dS at the end of a chunk.
    """
    q, k, v, g, S = (s.inputs[name].double() for name in ("q", "k", "v", "g", "initial_states"))
    q, k = ((x * scale).repeat_interleave(v.shape[1] // q.shape[1], 1) for x, scale in ((q, 0.3), (k, 1.0)))
    dy, dS = (s.cotangents[name].double() for name in ("y", "final_states"))
    S = g.exp()[..., None, None] * S + k[..., None] * v[..., None, :]
    read = torch.einsum("thk, thkp, thp -> th", q, S, dy)
    dS_of_token = torch.einsum("thk, thp -> thkp", q, dy) + round_operand(dS)
    written = torch.einsum("thk, thkp, thp -> th", k, dS_of_token, v)
    return read - written + (round_end(dS) * S).sum((-2, -1))


def in_bf16(x: Tensor) -> Tensor:
    return x.bfloat16().double()


def exact(x: Tensor) -> Tensor:
    return x


ONCE = (in_bf16, in_bf16)
"""Stored in bf16 between chunks, as packproof's own kernels do."""


@pytest.mark.parametrize(
    ("promises", "roundings"),
    [(Promises(chunk=16), [ONCE]), (Promises(chunk=16, cumsum=True), [ONCE, (in_bf16, exact), (exact, in_bf16)])],
    ids=["decays of pairs", "decays of sums"],
)
def test_the_gradient_of_a_state_may_be_rounded(promises: Promises, roundings: Any) -> None:
    s = tokens_of_their_own()
    answer = oracle_answer(s, promises, gradients=True)
    reference, allowed = answer.values[gradient("g")], answer.budgets[gradient("g")].total
    torch.testing.assert_close(gradient_of_gates(s, exact, exact), reference, rtol=1e-9, atol=1e-9)
    for rounding in roundings:
        error = (gradient_of_gates(s, *rounding) - reference).abs()
        assert (error <= allowed).all(), (error / allowed).max()
