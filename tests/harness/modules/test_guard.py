"""guard: the first batch of a training run stops it where documents leak, names the module, and costs two passes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from packproof.harness.modules.guard import documents_of, guard
from packproof.harness.results.failed import CheckFailed
from packproof.refs.errors import ArgumentError
from tests.harness.modules.models import VOCABULARY, Hybrid, dropped_in

LENGTHS = (3, 5, 4)
CU_SEQLENS = torch.tensor([0, 3, 8, 12], dtype=torch.int32)


def tokens() -> Tensor:
    return torch.randint(VOCABULARY, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(0))


def passes(model: nn.Module) -> list[int]:
    """A list that gets an entry for each forward pass of the model."""
    seen: list[int] = []
    model.register_forward_hook(lambda *_: seen.append(1))
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_correct_model_trains_on_and_pays_two_passes_once(dtype: torch.dtype) -> None:
    model = Hybrid().to(dtype)
    guard(model)
    seen = passes(model)
    model(tokens(), cu_seqlens=CU_SEQLENS)
    assert len(seen) <= 4  # a third where rounding in the experts moved something, and the training's own
    del seen[:]
    model(tokens(), cu_seqlens=CU_SEQLENS)
    assert len(seen) == 1


@pytest.mark.parametrize("number", range(4))
def test_a_leaking_model_is_stopped_at_the_module_that_leaks(number: int) -> None:
    torch.manual_seed(0)
    model = dropped_in(number)
    guard(model)
    with pytest.raises(CheckFailed, match=f"first module that leaks: layers.{number}.mixer \\("):
        model(tokens(), cu_seqlens=CU_SEQLENS)


class Dropped(nn.Module):
    """Attention of one head over what the mask lets through, with dropout; takes every argument."""

    def __init__(self, told: Callable[[dict[str, Any]], Tensor | None]) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(VOCABULARY, 8), nn.Dropout(0.5)
        self.told = told

    def forward(self, input_ids: Tensor, **kwargs: Any) -> Tensor:
        x = self.dropout(self.embedding(input_ids))
        document = self.told(kwargs)
        document = torch.zeros_like(input_ids) if document is None else document
        mask = (document[:, :, None] == document[:, None, :]) & torch.ones(x.shape[1], x.shape[1]).bool().tril()
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def test_dropout_is_no_leak_and_draws_what_it_would_have_drawn() -> None:
    model = Dropped(lambda kwargs: kwargs["seq_idx"])
    ids, seq_idx = tokens().repeat(2, 1), torch.tensor([[0] * 3 + [1] * 9, [0] * 12])
    torch.manual_seed(1)
    want = model(ids, seq_idx=seq_idx)
    guard(model)
    torch.manual_seed(1)
    assert torch.equal(model(ids, seq_idx=seq_idx), want)


def test_a_boundary_that_is_swallowed_is_a_leak() -> None:
    model = Dropped(lambda kwargs: None)
    guard(model)
    with pytest.raises(CheckFailed, match="the call had seq_idx"):
        model(tokens(), seq_idx=torch.tensor([[0] * 3 + [1] * 9]))


def test_a_batch_of_single_documents_waits_for_the_next() -> None:
    model = Dropped(lambda kwargs: None)
    guard(model)
    model(tokens(), seq_idx=torch.zeros(1, 12, dtype=torch.int32))
    with pytest.raises(CheckFailed):
        model(tokens(), seq_idx=torch.tensor([[0] * 3 + [1] * 9]))


def test_a_guard_can_be_removed() -> None:
    model = Dropped(lambda kwargs: None)
    guard(model).remove()
    model(tokens(), seq_idx=torch.tensor([[0] * 3 + [1] * 9]))


@pytest.mark.parametrize(
    "call",
    [
        {"cu_seq_lens_q": CU_SEQLENS},
        {"seq_idx": torch.tensor([[4] * 3 + [5] * 5 + [6] * 4])},
        {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 3]])},
        {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 3]]).expand(3, 1, -1)},
    ],
    ids=["cu_seq_lens_q", "seq_idx", "position_ids", "position_ids of three axes"],
)
def test_documents_as_each_argument_says_them(call: dict[str, Tensor]) -> None:
    found = documents_of({"input_ids": tokens(), **call})
    assert (found[:, 1:] != found[:, :-1]).int().tolist() == [[0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0]]


def test_a_batch_without_boundaries_is_refused() -> None:
    model = Dropped(lambda kwargs: None)
    guard(model)
    with pytest.raises(ArgumentError, match="says nowhere where its documents begin"):
        model(tokens())
    guard(model := Dropped(lambda kwargs: None), lambda call: torch.arange(12))
    with pytest.raises(
        ArgumentError, match=r"documents returned \(12,\), expected the document of each token, \(b, t\)"
    ):
        model(tokens())
    guard(model := Dropped(lambda kwargs: None), lambda call: torch.tensor([[0] * 3 + [1] * 9]))
    with pytest.raises(CheckFailed):
        model(tokens())
