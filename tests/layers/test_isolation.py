"""check_module proves the blocks, and detects what is planted in one of their parts."""

from collections.abc import Callable
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from packproof import refs
from packproof.harness.report.failed import CheckFailed
from packproof.models.check import check_module
from tests.layers.blocks import FORMS, WIDTH
from tests.layers.hybrid import as_it_came, boundaries_dropped_in_attention, one_document, with_rotated_keys
from tests.sweeps import sweep

CHUNK = 4  # layouts are drawn around it, so that they are short
OPS = SimpleNamespace(
    causal_conv1d=refs.causal_conv1d,
    selective_scan=refs.selective_scan,
    ssd=partial(refs.ssd_chunked, chunk=CHUNK),
    rope_qk=refs.rope_qk,
    attention=refs.attention,
)


def proven(block: nn.Module, convention: str = "cu_seqlens") -> set[str]:
    block.chunk_size = CHUNK  # type: ignore[assignment]
    verdicts = check_module(block, convention=convention, inputs=WIDTH, profile="quick")
    return {f"{verdict.cell.property}: {verdict.status}" for verdict in verdicts}


DTYPES = (torch.bfloat16, torch.float32, torch.float64)
BLOCKS = ("mamba", "mamba2", "attention")


@sweep("name, dtype", sample=[*zip(BLOCKS, DTYPES, strict=True)], rest=[*product(BLOCKS, DTYPES)])
def test_a_block_isolates_and_equals_each_sequence_alone(name: str, dtype: torch.dtype) -> None:
    flat, recompute = dtype == torch.float32, dtype == torch.bfloat16
    block = FORMS[name].block(OPS, recompute=recompute).to(dtype)
    convention = "cu_seqlens_flat" if flat else "cu_seqlens"
    assert proven(block, convention) == {"isolation: passed", "packing: passed", "padding: passed"}


def with_a_leak_in(op: str) -> SimpleNamespace:
    """The op over the whole pack as if it were one sequence."""

    def leaking(x: Tensor, *rest: Any, cu_seqlens: Tensor, **options: Any) -> Tensor:
        return getattr(OPS, op)(x, *rest, cu_seqlens=cu_seqlens[[0, -1]], **options)

    return SimpleNamespace(**{**vars(OPS), op: leaking})


class NormOverThePack(nn.Module):
    """Divides by the root mean square of all tokens."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels, self.weight = channels, nn.Parameter(torch.ones(channels))

    def forward(self, y: Tensor) -> Tensor:
        return y / (y.square().mean() + 1e-5).sqrt() * self.weight


def with_a_norm_over_the_pack() -> nn.Module:
    block = FORMS["mamba2"].block(OPS)
    block.norm = NormOverThePack(2 * WIDTH)
    return block


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda: FORMS["mamba"].block(with_a_leak_in("causal_conv1d")), r"the model itself \(MambaBlock\)"),
        (lambda: FORMS["mamba"].block(with_a_leak_in("selective_scan")), r"the model itself \(MambaBlock\)"),
        (lambda: FORMS["mamba2"].block(with_a_leak_in("causal_conv1d")), r"the model itself \(Mamba2Block\)"),
        (lambda: FORMS["mamba2"].block(with_a_leak_in("ssd")), r"the model itself \(Mamba2Block\)"),
        (lambda: FORMS["attention"].block(with_a_leak_in("causal_conv1d")), r"the model itself \(AttentionBlock\)"),
        (lambda: FORMS["attention"].block(with_a_leak_in("attention")), r"the model itself \(AttentionBlock\)"),
        (with_a_norm_over_the_pack, r"norm \(NormOverThePack\)"),
    ],
    ids=["conv of mamba", "scan", "conv of mamba2", "ssd", "conv of attention", "attention", "norm over the pack"],
)
def test_a_planted_leak_is_detected(make: Callable[[], nn.Module], culprit: str) -> None:
    with pytest.raises(CheckFailed, match=rf"lengths \[1, 1\](.|\n)*first module that leaks: {culprit}"):
        proven(make())


def hybrid_proven(model: nn.Module) -> None:
    check_module(model, convention="cu_seqlens", profile="quick")


def test_a_hybrid_isolates_and_equals_each_document_alone() -> None:
    hybrid_proven(with_rotated_keys(OPS, as_it_came))


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (boundaries_dropped_in_attention(OPS), r"isolation(.|\n)*lengths \[1, 1\](.|\n)*module that leaks"),
        pytest.param(
            with_rotated_keys(OPS, one_document),
            r"packing(.|\n)*lengths \[1, 2\](.|\n)*from the document alone",
            marks=pytest.mark.proof,
        ),
    ],
    ids=["boundaries dropped in attention", "positions of keys that run on"],
)
def test_the_mixer_of_a_hybrid_that_is_wrong_is_named(model: nn.Module, told: str) -> None:
    with pytest.raises(CheckFailed, match=rf"FAILED  {told}: mixers\.1 \(AttentionBlock\)"):
        hybrid_proven(model)
