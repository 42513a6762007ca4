"""Ops on a pool: each request as the packed op from its state, at once, in chunks, token by token; and its slots."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.base.axes import parse
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.ops.catalogue import OPS
from tests.properties.pool_bugs import FORMS

LENGTHS = (3, 0, 1, 5)


def problem(op: str, lengths: tuple[int, ...] = LENGTHS, slack: int = 2, seed: int = 3) -> dict[str, Any]:
    """A call in fp64 with all that the op has; by this seed some requests have no slot."""
    declared = OPS[f"{op}_update"]
    optional = tuple(name for name, spec in declared.inputs.items() if parse(spec).optional)
    options = tuple((name, values[-1]) for name, values in declared.options.items())
    case = Case(lengths, "float64", tuple(declared.sizes[0].items()), slack, optional, options=options, seed=seed)
    sample = draw(declared, case)
    return {**sample.inputs, **sample.options, "cu_seqlens": sample.cu_seqlens}


def update(op: str, call: dict[str, Any], **changes: Any) -> tuple[Tensor, Tensor]:
    function: Callable[..., tuple[Tensor, Tensor]] = getattr(refs, f"{op}_update")
    return function(**{**call, **changes})


def of_tokens(op: str, call: dict[str, Any], rows: list[Tensor]) -> dict[str, Any]:
    """The same call with these rows of each sequence."""
    declared = OPS[f"{op}_update"]
    packed = {n for n, spec in declared.inputs.items() if parse(spec).alternatives[0][0] == "t"}
    ends = torch.tensor([0, *(len(one) for one in rows)]).cumsum(0)
    every = torch.cat(rows)
    return {**call, **{n: call[n][every] for n in packed if n in call}, "cu_seqlens": ends}


@pytest.mark.parametrize("op", FORMS)
def test_each_request_is_the_packed_op_from_its_slot(op: str) -> None:
    call = problem(op)
    y, pool = update(op, call)
    ends, slots = call["cu_seqlens"].tolist(), call["state_indices"].tolist()
    assert -1 in slots
    used = set()
    for j, slot in enumerate(slots):
        rows = torch.arange(ends[j], ends[j + 1])
        one = of_tokens(op, call, [rows])
        states = one.pop("states")
        del one["state_indices"]
        if slot < 0:
            assert not y[rows].any()
            continue
        want, state = FORMS[op][0](**one, initial_states=states[slot : slot + 1], return_final_states=True)
        assert torch.equal(y[rows], want)
        assert torch.equal(pool[slot], state[0])
        used.add(slot)
    idle = [slot for slot in range(len(pool)) if slot not in used]
    assert torch.equal(pool[idle], call["states"][idle])
    assert not y[ends[-1] :].any()


@pytest.mark.parametrize("op", FORMS)
def test_prefill_at_once_is_prefill_in_chunks_is_token_by_token(op: str) -> None:
    call = problem(op, slack=0)
    whole, pool = update(op, call)
    starts = call["cu_seqlens"][:-1]
    for chunk in (1, 2, 3):
        found, states = torch.zeros_like(whole), call["states"]
        for begin in range(0, max(LENGTHS), chunk):
            rows = [
                start + torch.arange(min(begin, n), min(begin + chunk, n))
                for start, n in zip(starts, LENGTHS, strict=True)
            ]
            y, states = update(op, of_tokens(op, {**call, "states": states}, rows))
            found[torch.cat(rows)] = y
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)
        torch.testing.assert_close(states, pool, rtol=0, atol=1e-12)


@pytest.mark.parametrize("op", FORMS)
def test_nothing_that_comes_in_is_changed(op: str) -> None:
    call = problem(op)
    before = {name: x.clone() for name, x in call.items() if isinstance(x, Tensor)}
    update(op, call)
    assert all(torch.equal(call[name], x) for name, x in before.items())


@pytest.mark.parametrize("op", FORMS)
def test_what_slots_of_no_request_hold_goes_nowhere(op: str) -> None:
    call = problem(op)
    slots = [slot for slot in call["state_indices"].tolist() if slot >= 0]
    states = torch.full_like(call["states"], float("nan"))
    states[slots] = call["states"][slots]
    y, pool = update(op, call, states=states)
    want, _ = update(op, call)
    assert torch.equal(y, want)
    assert pool[slots].isfinite().all()


@pytest.mark.parametrize("op", FORMS)
def test_without_slots_or_requests_nothing_happens(op: str) -> None:
    call = problem(op)
    y, pool = update(op, call, state_indices=torch.full_like(call["state_indices"], -1))
    assert not y.any()
    assert torch.equal(pool, call["states"])
    nothing = {"states": call["states"][:0], "state_indices": call["state_indices"][:0]}
    y, pool = update(op, call, **nothing, cu_seqlens=torch.tensor([0]))
    assert not y.any()
    assert pool.shape == (0, *call["states"].shape[1:])
