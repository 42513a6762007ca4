"""The intermediates of an SSD: they sum to its output, chain to its states, and are those of each sequence alone."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.refs import PackLayout

LAYOUT = PackLayout((7, 0, 1, 3, 4), slack=2)
T, S, H, P, G, N = LAYOUT.total_tokens, LAYOUT.n_sequences, 4, 3, 2, 5
CHUNKS = (1, 2, 3, 64)
each_chunk = pytest.mark.parametrize("chunk", CHUNKS)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def inputs() -> dict[str, Any]:
    return {
        "x": normal(T, H, P, seed=0),
        "dt": normal(T, H, seed=1),
        "A": -normal(H, seed=2).abs(),
        "B": normal(T, G, N, seed=3),
        "C": normal(T, G, N, seed=4),
        "dt_bias": normal(H, seed=5),
        "initial_states": normal(S, H, P, N, seed=6),
        "dt_softplus": True,
        "cu_seqlens": LAYOUT.cu_seqlens(),
    }


def state(given: dict[str, Any], token: int) -> Tensor:
    return refs.ssd_state(**{name: value for name, value in given.items() if name != "C"}, token=token)


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@each_chunk
def test_the_parts_sum_to_the_output(chunk: int) -> None:
    given = inputs()
    D, z = normal(H, P, seed=7), normal(T, H, P, seed=8)
    parts = refs.ssd_intermediates(**given, chunk=chunk)
    y = (parts.diagonal + parts.off_diagonal + D * given["x"]) * torch.nn.functional.silu(z)
    close(y[: LAYOUT.n_tokens], refs.ssd(**given, D=D, z=z)[: LAYOUT.n_tokens])
    assert not any(part[-LAYOUT.slack :].any() for part in parts[:4])


@each_chunk
def test_states_pass_from_chunk_to_chunk(chunk: int) -> None:
    """As mamba's _state_passing_fwd has it: the decay of the whole chunk, and what the chunk adds."""
    given = inputs()
    parts = refs.ssd_intermediates(**given, chunk=chunk)
    _, final = refs.ssd(**given, return_final_states=True)
    cuts = parts.cu_chunks.tolist()
    assert cuts == sorted({*LAYOUT.offsets, LAYOUT.n_tokens, *(s + i for s, n in spans() for i in range(0, n, chunk))})
    for c, (start, end) in enumerate(pairwise(cuts)):
        sequence = int(LAYOUT.seq_idx()[start])
        after = parts.chunk_states[c] + parts.log_decay[end - 1].exp()[:, None, None] * parts.passed_states[c]
        last = end == LAYOUT.slices[sequence].stop
        close(after, final[sequence] if last else parts.passed_states[c + 1])
        if start == LAYOUT.offsets[sequence]:
            assert torch.equal(parts.passed_states[c], given["initial_states"][sequence])


def spans() -> list[tuple[int, int]]:
    return list(zip(LAYOUT.offsets, LAYOUT.lengths, strict=True))


def test_the_step_and_the_decay_are_those_of_the_equation() -> None:
    given = inputs()
    parts = refs.ssd_intermediates(**given, chunk=3)
    dt = torch.nn.functional.softplus(given["dt"] + given["dt_bias"])
    close(parts.dt[: LAYOUT.n_tokens], dt[: LAYOUT.n_tokens])
    for start, end in pairwise(parts.cu_chunks.tolist()):
        close(parts.log_decay[start:end], (dt * given["A"])[start:end].cumsum(0))


def test_the_state_after_each_token_is_that_of_the_recurrence() -> None:
    """By steps, and as the final state of the tokens up to it; with chunks of one, it enters the next chunk."""
    given = inputs()
    dt = torch.nn.functional.softplus(given["dt"] + given["dt_bias"])
    B, C = (given[name].repeat_interleave(H // G, dim=1) for name in ("B", "C"))
    passed = refs.ssd_intermediates(**given, chunk=1).passed_states
    for j, rows in enumerate(LAYOUT.slices):
        h = given["initial_states"][j]
        for i in range(rows.start, rows.stop):
            close(passed[i], h)
            h, _ = refs.ssd_step(h, given["x"][i], dt[i], given["A"], B[i], C[i])
            close(state(given, i), h)


@each_chunk
def test_a_pack_has_the_parts_of_each_sequence_alone(chunk: int) -> None:
    given = inputs()
    packed = refs.ssd_intermediates(**given, chunk=chunk)
    first = 0
    for j, rows in enumerate(LAYOUT.slices):
        own = {name: given[name][rows] for name in ("x", "dt", "B", "C")}
        own |= {"initial_states": given["initial_states"][j : j + 1]}
        own |= {"cu_seqlens": torch.tensor([0, rows.stop - rows.start])}
        alone = refs.ssd_intermediates(**given | own, chunk=chunk)
        chunks = slice(first, first + len(alone.chunk_states))
        first = chunks.stop
        for name in ("dt", "log_decay", "diagonal", "off_diagonal"):
            assert torch.equal(getattr(packed, name)[rows], getattr(alone, name)), name
        for name in ("chunk_states", "passed_states"):
            assert torch.equal(getattr(packed, name)[chunks], getattr(alone, name)), name


def test_without_states_without_sequences_and_in_bf16() -> None:
    given = inputs() | {"initial_states": None, "dt_bias": None, "dt_softplus": False}
    none = refs.ssd_intermediates(**given | {"cu_seqlens": torch.tensor([0])})
    assert (none.diagonal.shape, none.chunk_states.shape, none.cu_chunks.tolist()) == ((T, H, P), (0, H, P, N), [0])
    assert not refs.ssd_intermediates(**given).passed_states[0].any()
    low = {name: value.bfloat16() for name, value in given.items() if name in ("x", "dt", "B", "C")}
    parts = refs.ssd_intermediates(**given | low | {"A": given["A"].float()})
    assert {part.dtype for part in parts[:6]} == {torch.float32}


def test_they_are_differentiable() -> None:
    given = inputs()
    x = given["x"].requires_grad_()
    [dx] = torch.autograd.grad((parts := refs.ssd_intermediates(**given, chunk=2)).diagonal.sum(), x, retain_graph=True)
    [other] = torch.autograd.grad(parts.off_diagonal.sum(), x)
    [whole] = torch.autograd.grad(refs.ssd(**given).sum(), x)
    close(dx + other, whole)
