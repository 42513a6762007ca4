"""Where a kernel first diverges from its reference, for a replay file, a Case, or lengths alone."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import packproof
from packproof import Promises, UsageError, refs
from packproof.harness.debug.diff import Divergence
from packproof.museum import convolution
from packproof.properties.cases.sample import draw
from packproof.properties.ops import SELECTIVE_SCAN


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
    assert abs(where.got - where.expected) > where.budget

    sample = draw(SELECTIVE_SCAN, found.case).inputs
    h = torch.zeros(4, 3, dtype=torch.float64)
    for t in range(2, 7):
        u, delta, B, C = (sample[n][t].double() for n in ("u", "delta", "B", "C"))
        h, _ = refs.selective_scan_step(h, u, delta, sample["A"].double(), B[None], C[None])
    assert where.state is not None
    assert torch.allclose(where.state, h)
    assert "y: sequence 1, token 4, chunk 1, channel" in str(found)
    assert "  the state after it:" in str(found)


def test_a_replay_file_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    target = "packproof.museum.convolution:C1"
    with pytest.raises(packproof.CheckFailed):
        packproof.check(
            target, op="causal_conv1d", device="cpu", dtypes=["fp32"], properties=["packing"], profile="quick"
        )
    [file] = Path(".packproof").iterdir()
    found = packproof.diff(target, case=file)
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


def test_a_call_without_a_case_is_refused() -> None:
    with pytest.raises(UsageError, match="expected a replay file, a Case or the lengths"):
        packproof.diff(scan, op="selective_scan")


@pytest.mark.parametrize("case", [5, [3, "a"], [2.5], [-1]])
def test_an_invalid_case_is_refused_in_one_line(case: Any) -> None:
    with pytest.raises(UsageError, match=r"^diff: case is .*; expected a replay file, a Case or the lengths.*$"):
        packproof.diff(scan, case=case, op="selective_scan")
