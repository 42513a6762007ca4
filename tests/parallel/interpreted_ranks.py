"""packproof's own kernels on ranks, in the interpreter: each pass in two halves, with the exchange between them."""

from itertools import product
from typing import Any

import pytest
import torch

from packproof import kernels
from packproof.bench.ranks import ours
from packproof.kernels.attention_tiles import BLOCK_INTERPRETED
from packproof.kernels.selective_scan import INTERPRETED as SCAN
from packproof.kernels.ssd import INTERPRETED as SSD
from packproof.parallel.scans import (
    _scan_backward,
    _scan_decay,
    _scan_forward,
    _ssd_backward,
    _ssd_decay,
    _ssd_forward,
)
from packproof.properties.cases.case import Case
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.comparison import record_comparisons
from tests.kernels.cases import normal, offsets
from tests.parallel.test_partition import Subject
from tests.sweeps import sweep

SEGMENTS = {"selective_scan": SCAN["segment"], "ssd": SSD["segment"]}
HALVES: dict[str, Any] = {
    "selective_scan": (_scan_forward, _scan_backward, _scan_decay),
    "ssd": (_ssd_forward, _ssd_backward, _ssd_decay),
}


def cases(op: str, judged: Subject) -> list[Case]:
    """A document that goes on over three ranks and ends on a fourth; documents of a rank between one that enters and
    one that leaves; and one cut where a segment ends."""
    several, *_ = [c for c in judged.golden if c.cuts is not None and len(c.cuts) == 4]
    u, sizes = SEGMENTS[op], tuple(judged.space.plain_sizes[0].items())
    several = several.replace(sizes=sizes, lengths=(2, u + 3, 1), cuts=(3, 3, u + 1, u + 2))
    between = several.replace(lengths=(3, 2, u + 1, 4), cuts=(1, u + 8))
    return [several, between, several.replace(lengths=(u + 2, 3), cuts=(u,))]


@sweep("op, dtype", [("selective_scan", "float32")], [*product(SEGMENTS, ("float32", "bfloat16"))])
def test_ranks_compute_what_one_computes(op: str, dtype: str) -> None:
    """Bit for bit where no document is on more than two ranks, and the cut is the end of a segment."""
    judged = Subject(op, ours.parallel_kernel(op, None), Promises(), dtype)
    *several, at_segment = cases(op, judged)
    assert [judged.found(case) for case in several] == [[], []]
    carried = Promises(grid="sequence", chunk=SEGMENTS[op], state_entry="carry")
    assert Subject(op, ours.parallel_kernel(op, None), carried, dtype).found(at_segment) == []


def test_a_convolution_adds_to_the_gradient_of_its_kernel() -> None:
    """In place: the tokens before two cuts get gradients from both ranks after them."""
    judged = Subject("causal_conv1d", ours.parallel_kernel("causal_conv1d", None), Promises())
    [case] = [c for c in judged.golden if c.lengths == (5, 3)]
    assert judged.found(case.replace(cuts=(2, 3))) == []


@sweep(
    "op, dtype",
    [("attention, zig-zag", "float32")],
    [*product(("attention", "attention, zig-zag"), ("float32", "bfloat16"))],
)
def test_attention_reads_the_keys_of_other_ranks(op: str, dtype: str) -> None:
    """Bit for bit where a cut is at the end of a block of queries, and no other cut lies in between."""
    judged, u = Subject(op, ours.parallel_kernel(op, None), Promises(), dtype), BLOCK_INTERPRETED
    for causal, window in ((True, (-1, -1)), (False, (5, 2))):
        options = {"causal": causal, "window_size": window, "softmax_scale": None, "softcap": 0.0}
        case = judged.golden[0].replace(slack=1, options=tuple(options.items()), regime="normal")
        assert judged.found(case.replace(lengths=(2, u + 3, 1), cuts=(3, 3, u + 1, u + 2))) == []
        if op == "attention":
            kept = Subject(op, ours.parallel_kernel(op, None), Promises(grid="sequence", chunk=u), dtype)
            with record_comparisons() as made:
                assert kept.found(case.replace(lengths=(3 * u - 2, 3), cuts=(u, 2 * u))) == []
            assert {c.start for c in made if c.allowed is None and c.key.name == "y"} == {0}


@pytest.mark.parametrize("length", [1, 35, *(pytest.param(n, marks=pytest.mark.proof) for n in (15, 16))])
@pytest.mark.parametrize("op", SEGMENTS)
def test_the_first_halves_find_the_states_of_the_kernel(op: str, length: int) -> None:
    """What leaves from zero, how much of what enters is left, and the gradient of what enters."""
    given = {"A": -normal(2).abs(), "B": normal(length, 1, 3), "C": normal(length, 1, 3), "z": normal(length, 2, 2)}
    given |= {"x": normal(length, 2, 2), "dt": normal(length, 2).abs(), "dt_bias": normal(2)}
    if op == "selective_scan":
        names = {"x": "u", "dt": "delta", "dt_bias": "delta_bias"}
        given = {names.get(n, n): x[:, 0] if n in ("x", "z") else x for n, x in given.items()}
        given["A"] = given["A"][:, None].expand(2, 3).contiguous()
    softplus = {"delta_softplus" if op == "selective_scan" else "dt_softplus": True}
    forward, backward, decay_of = HALVES[op]
    zero = torch.zeros(1, 2, *([3] if op == "selective_scan" else [2, 3]), requires_grad=True)
    y, final = getattr(kernels, op)(
        **given, **softplus, cu_seqlens=offsets([length]), initial_states=zero, return_final_states=True
    )
    dy = normal(*y.shape)
    run = forward({**given, **softplus}, offsets([length]), True)
    left, decay = next(run)
    torch.testing.assert_close(left, final, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(decay, decay_of({**given, **softplus}), rtol=1e-5, atol=1e-30)
    with pytest.raises(StopIteration) as end:
        run.send(zero.detach())
    _, kept = end.value.value
    entering = next(backward({**given, **softplus}, offsets([length]), dy, zero.detach(), kept))
    torch.testing.assert_close(entering, torch.autograd.grad(y, zero, dy)[0], rtol=1e-5, atol=1e-6)
