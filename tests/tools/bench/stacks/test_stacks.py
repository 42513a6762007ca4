"""Stacks in each mode: the same predictions and gradients; a leak, a NaN and an error are seen, and have no time."""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from packproof import refs
from packproof.base.errors import UsageError
from packproof.bench.stacks.documents import Documents, documents
from packproof.bench.stacks.model import Stack, mamba_ssm_stack, packproof_stack
from packproof.bench.stacks.results import Trained
from packproof.bench.stacks.run import StacksRequest, losses, mismatch_reason, run_stacks
from packproof.bench.stacks.shapes import MODES, SHAPES
from packproof.layers import Mamba2Block
from tests.in_process import installed
from tests.sweeps import sweep

EVERY = ("single", "padded", "packed", "mamba_ssm")
FEW = Documents(tuple(torch.arange(n) % 61 for n in (5, 1, 3, 7, 2)), capacity=10, packs=2)
OPS = {name: getattr(refs, name) for name in ("causal_conv1d", "selective_scan", "ssd")}


def as_one(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The op without the boundaries of a pack."""

    def leaking(*tensors: Tensor, cu_seqlens: Tensor, **options: Any) -> Tensor:
        return op(*tensors, cu_seqlens=cu_seqlens[[0, -1]], **options)

    return leaking


def trained(model: str, *modes: str, ops: Any = None) -> dict[str, Trained]:
    request = StacksRequest((model,), modes, steps=1, capacity=64, packs=1, device="cpu")
    return {event.mode: event for event in run_stacks(request, ops) if isinstance(event, Trained)}


@pytest.mark.parametrize("mode", EVERY)
@pytest.mark.parametrize("of", [FEW, documents(4096, 8, vocabulary=50_280, tiny=False, seed=1)], ids=["few", "many"])
def test_each_mode_makes_every_prediction_once(of: Documents, mode: str) -> None:
    passes = of.passes(mode)
    assert set(MODES) == set(EVERY)
    assert sorted(torch.cat([one.prediction_indices for one in passes]).tolist()) == list(range(of.predictions))
    nexts, pasts = (torch.cat([tokens[at] for tokens in of.tokens]) for at in (slice(1, None), slice(None, -1)))
    for one in passes:
        assert one.input_ids.numel() <= of.capacity
        assert torch.equal(one.targets, nexts[one.prediction_indices])
        assert torch.equal(one.input_ids[0, one.rows], pasts[one.prediction_indices])
        assert torch.equal(one.seq_idx[0, one.rows], one.seq_idx[0, one.rows + 1])
        assert one.seq_idx.min() >= 0


def test_documents_have_the_mean_of_those_of_the_paper_and_fill_the_packs() -> None:
    found = documents(4096, 8, vocabulary=9, tiny=False, seed=0)
    assert abs(sum(found.lengths) / len(found.lengths) - 646) < 15
    assert sum(found.lengths) > 0.98 * 8 * 4096
    assert len(found.passes("packed")) == 8
    assert found.lengths != sorted(found.lengths)


@pytest.mark.parametrize("model", ["mamba-tiny", "mamba2-tiny"])
def test_gradients_of_packs_are_the_sums_over_documents(model: str) -> None:
    def gradients(mode: str) -> dict[str, Tensor]:
        stack = packproof_stack(SHAPES[model], refs, "cpu", torch.float32, seed=0).double()
        for one in FEW.passes(mode):
            (stack(one).sum() / FEW.predictions).backward()
        return {name: parameter.grad for name, parameter in stack.named_parameters() if parameter.grad is not None}

    single = gradients("single")
    assert all(gradient.abs().max() > 0 for gradient in single.values())
    for mode in ("padded", "packed"):
        torch.testing.assert_close(gradients(mode), single, rtol=1e-10, atol=1e-14)


def test_each_mode_is_trained_on_the_same_loss() -> None:
    found = trained("mamba2-tiny", *EVERY)
    assert {mode: row.status for mode, row in found.items()} == {
        **dict.fromkeys(("single", "padded", "packed"), "timed"),
        "mamba_ssm": "not installed",
    }
    single, _, packed, _ = found.values()
    assert (single.apart, single.apart_wide, single.passes) == (1.0, 0.0, 3)
    assert packed.passes == 1
    for row in (found["padded"], packed):
        assert row.losses == pytest.approx(single.losses, rel=1e-6)
        assert row.losses[1] < row.losses[0]
    assert trained("mamba-tiny", "mamba_ssm")["mamba_ssm"].status == "cannot"


@sweep("model, op", [("mamba2-tiny", "ssd")], [("mamba-tiny", "selective_scan"), ("mamba2-tiny", "causal_conv1d")])
def test_a_leak_between_documents_is_seen_and_not_timed(model: str, op: str) -> None:
    found = trained(model, "single", "packed", ops=SimpleNamespace(**{**OPS, op: as_one(OPS[op])}))
    assert found["single"].status == "timed"
    assert (found["packed"].status, found["packed"].seconds, found["packed"].bad) == ("wrong", (), True)
    assert "its losses are not those of one document at a time: they differ by" in found["packed"].reason


def test_a_small_leak_is_more_than_rounding_at_twice_the_precision() -> None:
    row = Trained("mamba2-1.4b", "packed", "timed", apart=1.1, apart_wide=0.001)
    assert mismatch_reason(row) == ""
    assert "differ by 0.5 x the rounding of one document at a time at twice" in mismatch_reason(
        replace(row, apart_wide=0.5)
    )
    assert mismatch_reason(replace(row, apart=2.1)).endswith(
        "2.1 x the rounding of one document at a time, and 2 x is allowed"
    )
    assert mismatch_reason(replace(row, apart=float("nan")))
    assert mismatch_reason(replace(row, apart_wide=float("nan")))
    assert replace(row, mode="mamba_ssm", status="wrong").bad is False


@pytest.mark.parametrize(("error", "status"), [(torch.OutOfMemoryError, "too large"), (ValueError, "failed")])
def test_an_error_of_one_mode_leaves_the_others(
    error: type[Exception], status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusing(*tensors: Tensor, cu_seqlens: Tensor, **options: Any) -> Any:
        if len(cu_seqlens) > 2:
            raise error("no packs\nhere")
        return refs.ssd(*tensors, cu_seqlens=cu_seqlens, **options)

    found = trained("mamba2-tiny", "packed", "single", ops=SimpleNamespace(**{**OPS, "ssd": refusing}))
    assert found["packed"].status == status
    assert found["packed"].reason.endswith("no packs")
    assert found["single"].status == "timed"
    assert ("Traceback" in capsys.readouterr().err) == (status == "failed")


def test_the_block_of_mamba_ssm_gets_weights_and_boundaries() -> None:
    class Mamba2(nn.Module):
        """As mamba-ssm's: `seq_idx`, and parameters of the same names."""

        def __new__(cls, d_model: int, **sizes: Any) -> Any:
            block = Mamba2Block(d_model, ops=refs, **sizes)
            whole = block.forward

            def forward(u: Tensor, seq_idx: Tensor) -> Tensor:
                return whole(u, cu_seqlens=starts(seq_idx[0]))

            block.forward = forward  # type: ignore[method-assign, assignment]
            return block

    def starts(seq_idx: Tensor) -> Tensor:
        return torch.tensor([0, *(1 + seq_idx.diff().nonzero()[:, 0]).tolist(), len(seq_idx)])

    module = ModuleType("mamba_ssm.modules.mamba2")
    module.Mamba2 = Mamba2  # type: ignore[attr-defined]
    shape = SHAPES["mamba2-tiny"]
    stack = packproof_stack(shape, refs, "cpu", torch.float32, seed=0)
    with installed({module.__name__: module}, reimported=module.__name__):
        theirs: Stack = mamba_ssm_stack(shape, "cpu", torch.float32, stack)
    found = [losses(each, FEW.passes("packed"), FEW.predictions) for each in (stack, theirs)]
    torch.testing.assert_close(*found)


def test_what_cannot_run_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match=r"--tokens: 1000; documents have up to 2,048 tokens, and none is cut"):
        documents(1000, 4, vocabulary=9, tiny=False, seed=0)
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="sees no CUDA device here; use --device cpu"):
            next(run_stacks(StacksRequest(("mamba2-1.4b",), ("packed",))))
