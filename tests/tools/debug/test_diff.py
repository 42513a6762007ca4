"""Where a kernel first diverges from its reference, for a replay file, a Case, or lengths alone."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import packproof
from packproof import ArgumentError, Promises, refs
from packproof.debug.diff import Divergence
from packproof.museum import convolution
from packproof.properties.cases.drawing import draw
from packproof.properties.ops.catalogue import SELECTIVE_SCAN
from tests.properties.pool_bugs import step


@packproof.kernel(op="selective_scan", promises=Promises(grid="sequence", chunk=4))
def forgets(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, *, cu_seqlens: Tensor) -> Any:
    """Drops the state at every fourth token of a sequence."""
    ends = cu_seqlens.tolist()
    cuts = sorted({*ends, *(k for a, b in pairwise(ends) for k in range(a, b, 4))})
    return refs.selective_scan(u, delta, A, B, C, cu_seqlens=torch.tensor(cuts))


def scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    y = refs.selective_scan(u, delta, A, B, C, cu_seqlens=cu_seqlens)
    assert isinstance(y, Tensor)
    return y


def first(found: Any) -> Divergence:
    assert isinstance(found.divergences[0], Divergence)
    return found.divergences[0]


def test_a_correct_kernel_has_no_divergence() -> None:
    found = packproof.diff(scan, case=[3, 0, 2], op="selective_scan")
    assert not found
    assert str(found).endswith("every output and gradient lies within its budget")


def test_the_first_wrong_token_with_chunk_and_state() -> None:
    found = packproof.diff(forgets, case=[2, 6])
    where = first(found)
    assert (where.tensor, where.sequence, where.token, where.chunk) == ("y", 1, 4, 1)
    assert (where.rows, where.of) == (2, 8)
    [rows] = where.ranges
    assert (rows.first, rows.last, rows.sequence, rows.tokens, rows.chunks) == (6, 7, 1, (4, 5), (1, 1))
    assert "  2 of 8 rows are wrong: rows 6 to 7 (sequence 1, tokens 4 to 5, chunk 1: all of the chunk)" in str(found)
    assert abs(where.got - where.expected) > where.budget

    assert found.case is not None
    sample = draw(SELECTIVE_SCAN, found.case).inputs
    h = torch.zeros(4, 3, dtype=torch.float64)
    for t in range(2, 7):
        u, delta, B, C = (sample[n][t].double() for n in ("u", "delta", "B", "C"))
        h, _ = refs.selective_scan_step(h, u, delta, sample["A"].double(), B[None], C[None])
    assert where.state is not None
    assert torch.allclose(where.state, h)
    assert "y: sequence 1, token 4, chunk 1, channel" in str(found)
    assert "  the state after it:" in str(found)


def test_gradients_show_their_rows_and_no_state() -> None:
    found = packproof.diff(forgets, [2, 6, 12])
    gradients = {d.tensor: d for d in found.divergences if d.tensor.startswith("gradient")}
    assert all(d.state is None for d in gradients.values())
    assert str(found).count("the state after it") == 1
    assert [(r.first, r.last, r.whole) for r in gradients["gradient of u"].ranges] == [(2, 5, "the chunk"), (8, 15, "")]
    assert [(r.sequence, r.whole) for r in gradients["gradient of delta"].ranges] == [
        (1, "the sequence"),
        (2, "the sequence"),
    ]


def test_every_way_to_name_a_case() -> None:
    for case in ([3, 0, 2], (3, 0, 2), packproof.PackLayout((3, 0, 2)), packproof.PackLayout((3, 0, 2), slack=1)):
        for op in ("selective_scan", SELECTIVE_SCAN):
            found = packproof.diff(scan, case, op=op)
            assert not found
            assert found.case is not None
            assert found.case.lengths == (3, 0, 2)
            assert not packproof.diff(scan, found.case.replace(seed=3), op=op)


def test_a_setting_of_ones_own() -> None:
    def conv(x: Tensor, weight: Tensor, bias: Any = None, *, cu_seqlens: Tensor, activation: Any = None) -> Any:
        return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, activation=activation)

    chosen: Any = {"sizes": {"d": 5}, "options": {"activation": "silu"}, "present": ["bias"], "seed": 3}
    for dtype in ("bf16", "bfloat16", torch.bfloat16):
        found = packproof.diff(conv, [3, 0, 5], op="causal_conv1d", dtype=dtype, **chosen)
        assert str(found).startswith("lengths [3, 0, 5], bf16, d=5 w=4, with bias, activation=silu, seed 3\n")
        assert not found


def test_tensors_of_ones_own() -> None:
    x, weight = torch.ones(9, 2), torch.ones(2, 3)
    found = packproof.diff(convolution.C1, [3, 0, 5], op="causal_conv1d", inputs={"weight": weight, "x": x})
    assert found.case is None
    assert str(found).startswith(
        "lengths [3, 0, 5], fp32, slack 1, d=2 w=3, tensors of your own\ny: sequence 2, token 0"
    )
    assert "  2 of 9 rows are wrong: rows 3 to 4 (sequence 2, tokens 0 to 1)" in str(found)
    zero = {"y": torch.zeros(9, 2)}
    quiet = packproof.diff(
        convolution.C1, [3, 0, 5], op="causal_conv1d", inputs={"weight": weight, "x": x}, cotangents=zero
    )
    assert [d.tensor for d in quiet.divergences] == ["y"]


def test_only_some_tensors() -> None:
    def leaky(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Any:
        return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens[[0, -1]])

    found = packproof.diff(leaky, [3, 0, 5], op="causal_conv1d")
    assert [d.tensor for d in found.only(["dx"]).divergences] == ["gradient of x"]
    assert [d.tensor for d in found.only(["y", "gradient of weight"]).divergences] == ["y", "gradient of weight"]


def test_states_and_slack_are_named_as_such() -> None:
    def f(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, return_final_states: bool = False) -> Any:
        y, states = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens, return_final_states=True)
        off = torch.zeros_like(y)
        off[cu_seqlens[-1] :] = 1
        return y + off, states * torch.tensor([1.0, 1, 2])[:, None, None]

    layout = packproof.PackLayout((3, 2, 4), slack=2)
    found = packproof.diff(f, layout, op="causal_conv1d", options={"return_final_states": True})
    y, states = found.divergences[:2]
    assert [str(rows) for rows in y.ranges] == ["rows 9 to 10 (slack rows 0 to 1)"]
    assert [str(rows) for rows in states.ranges] == ["sequence 2"]


@pytest.mark.usefixtures("working_folder")
def test_a_replay_file_is_enough() -> None:
    target = "packproof.museum.convolution:C1"
    with pytest.raises(packproof.CheckFailed):
        packproof.check(
            target, op="causal_conv1d", device="cpu", dtypes=["fp32"], properties=["packing"], profile="quick"
        )
    [file] = Path(".packproof").iterdir()
    found = packproof.diff(target, case=file)
    assert found.case is not None
    assert found.case.lengths == (1, 1)
    assert (first(found).tensor, first(found).sequence, first(found).token) == ("y", 1, 0)
    assert not packproof.diff(convolution.correct, None, str(file))


def test_two_kernels_against_each_other() -> None:
    found = packproof.diff(convolution.C1, convolution.correct, [2, 3], op="causal_conv1d")
    assert (first(found).sequence, first(found).token) == (1, 0)
    assert not packproof.diff(convolution.C1, convolution.C1, [2, 3], op="causal_conv1d")


def test_a_shared_gradient_has_no_token() -> None:
    def detached(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Any:
        return refs.causal_conv1d(x, 2 * weight - weight.detach(), cu_seqlens=cu_seqlens)

    [found] = packproof.diff(detached, case=[2, 3], op="causal_conv1d").divergences
    assert (found.tensor, found.sequence, found.token, len(found.channel)) == ("gradient of weight", -1, -1, 2)
    assert str(found).startswith("gradient of weight: shared, channel [0, ")


def test_a_state_of_a_pool_has_a_slot() -> None:
    found = packproof.diff(step("ssd", "padding is the last slot"), case=[1], op="ssd_update", seed=2)
    where = next(d for d in found.divergences if isinstance(d, Divergence) and d.tensor == "new_states")
    assert (where.slot, where.sequence, where.rows, where.of) == (1, -1, 1, 2)
    assert "\nnew_states: slot 1, channel [" in str(found)


def test_a_call_without_a_case_is_refused() -> None:
    with pytest.raises(ArgumentError, match="expected a replay file, a Case, a PackLayout or the lengths"):
        packproof.diff(scan, op="selective_scan")


@pytest.mark.parametrize("case", [5, [3, "a"], [2.5], [-1]])
def test_an_invalid_case_is_refused_in_one_line(case: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"^diff: case is .*; expected a replay file, a Case, a PackLayout or the lengths.*$"
    ):
        packproof.diff(scan, case=case, op="selective_scan")
