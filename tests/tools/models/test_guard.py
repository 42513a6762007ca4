"""guard: the first batch of a training run stops it where documents leak, names the module, and costs two passes."""

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from packproof.base.errors import ArgumentError
from packproof.harness.report.failed import CheckFailed
from packproof.models.guard import documents_of, guard
from tests.tools.models.models import VOCABULARY, Hybrid, dropped_in

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


SEQ_IDX = torch.tensor([[0] * 3 + [1] * 5 + [2] * 4])


class Summed(nn.Module):
    """A running mean over each document, with what a subclass makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)

    def alone(self, x: Tensor, seq_idx: Tensor) -> Tensor:
        inside = (seq_idx[:, :, None] == seq_idx[:, None, :]) & torch.ones(x.shape[1], x.shape[1]).bool().tril()
        return inside.float() @ x

    def forward(self, input_ids: Tensor, seq_idx: Tensor) -> Any:
        return self.result(self.embedding(input_ids), seq_idx)

    def result(self, x: Tensor, seq_idx: Tensor) -> Any:
        return self.alone(x, seq_idx)


class InDict(Summed):
    def __init__(self, name: str, *, leaks: bool) -> None:
        super().__init__()
        self.name, self.leaks = name, leaks

    def result(self, x: Tensor, seq_idx: Tensor) -> dict[str, Any]:
        y = x.cumsum(1) if self.leaks else self.alone(x, seq_idx)
        return {"loss": y.sum(), self.name: {"values": [y]}}


@pytest.mark.parametrize("name", ["logits", "scores"])
def test_outputs_in_a_dict_are_judged(name: str) -> None:
    model = InDict(name, leaks=False)
    guard(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(tokens(), seq_idx=SEQ_IDX)
    guard(model := InDict(name, leaks=True))
    with pytest.raises(CheckFailed, match="every second one was changed, and others moved"):
        model(tokens(), seq_idx=SEQ_IDX)


class OfTokens(Summed):
    """(b t, d), as models return documents that lie end to end."""

    def result(self, x: Tensor, seq_idx: Tensor) -> Tensor:
        return x.cumsum(1).flatten(0, 1)


def test_outputs_of_tokens_end_to_end_are_judged() -> None:
    guard(model := OfTokens())
    with pytest.raises(CheckFailed):
        model(tokens().repeat(2, 1), seq_idx=SEQ_IDX.repeat(2, 1))


class LossOnly(Summed):
    def result(self, x: Tensor, seq_idx: Tensor) -> Any:
        return {"loss": self.alone(x, seq_idx).sum()}


def test_a_model_that_returns_a_loss_alone_trains_on_with_a_warning() -> None:
    model = LossOnly()
    guard(model)
    with pytest.warns(UserWarning, match="could not judge this batch.*no tensor with one row for each token"):
        model(tokens(), seq_idx=SEQ_IDX)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(tokens(), seq_idx=SEQ_IDX)


class Required(Summed):
    def forward(self, input_ids: Tensor, labels: Tensor, seq_idx: Tensor) -> Any:  # type: ignore[override]
        assert labels is not None
        return self.alone(self.embedding(input_ids), seq_idx)


def test_labels_that_forward_needs_are_passed() -> None:
    guard(model := Required())
    model(tokens(), tokens(), seq_idx=SEQ_IDX)


class Nan(Summed):
    def __init__(self, documents: tuple[int, ...]) -> None:
        super().__init__()
        self.documents = documents

    def result(self, x: Tensor, seq_idx: Tensor) -> Tensor:
        broken = torch.isin(seq_idx, torch.tensor(self.documents))[..., None]
        return self.alone(x, seq_idx).masked_fill(broken, float("nan"))


def test_outputs_that_are_all_nan_do_not_pass() -> None:
    guard(model := Nan((0, 1, 2)))
    with pytest.raises(CheckFailed, match="every output of this batch is NaN"):
        model(tokens(), seq_idx=SEQ_IDX)


def test_some_outputs_that_are_nan_are_said_and_the_others_judged() -> None:
    ids, seq_idx = tokens().repeat(2, 1), torch.cat([SEQ_IDX, SEQ_IDX + 3])
    guard(model := Nan((1,)))
    with pytest.warns(UserWarning, match="outputs of 5 of 12 tokens are NaN; the others were judged"):
        model(ids, seq_idx=seq_idx)


class Normed(Summed):
    """Each document's mean, beside a norm that counts batches; draws from three generators."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("calls", torch.zeros(()))

    def result(self, x: Tensor, seq_idx: Tensor) -> Tensor:
        self.norm(x.detach().mT)
        self.calls = self.calls + 1
        drawn = random.random() + np.random.rand()
        return self.alone(x, seq_idx) * drawn * torch.rand(())


def test_buffers_and_random_numbers_are_those_of_a_run_without_a_guard() -> None:
    torch.manual_seed(0)
    model = Normed()
    state = {name: value.clone() for name, value in model.state_dict().items()}

    def run() -> tuple[Tensor, dict[str, Tensor]]:
        model.load_state_dict(state)
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        return model(tokens(), seq_idx=SEQ_IDX), {name: value.clone() for name, value in model.state_dict().items()}

    y, after = run()
    guard(model)
    guarded, guarded_after = run()
    assert torch.equal(y, guarded)
    assert all(torch.equal(after[name], guarded_after[name]) for name in after)
    assert all(parameter.grad is None for parameter in model.parameters())


class WithGradients(Summed):
    """Another path where gradients are on, as a training kernel is."""

    def result(self, x: Tensor, seq_idx: Tensor) -> Tensor:
        return x.cumsum(1) if torch.is_grad_enabled() else self.alone(x, seq_idx)


def test_a_leak_that_exists_only_with_gradients_on() -> None:
    guard(model := WithGradients())
    with pytest.raises(CheckFailed, match="others moved"):
        model(tokens(), seq_idx=SEQ_IDX)
    guard(model)
    with torch.no_grad():
        model(tokens(), seq_idx=SEQ_IDX)  # as it is called here it does not leak


class _LeakingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Tensor:
        return dy[0].flip(1).cumsum(1).flip(1)


class InBackward(Summed):
    def result(self, x: Tensor, seq_idx: Tensor) -> Tensor:
        return _LeakingBackward.apply(x)


def test_a_leak_of_the_backward_pass_alone() -> None:
    guard(model := InBackward())
    with pytest.raises(CheckFailed, match="others keep their values, but they have a gradient at its tokens"):
        model(tokens(), seq_idx=SEQ_IDX)


class Checkpointed(Summed):
    """What is run twice, first without and then with gradients, by the checkpointing that takes `backward()` alone."""

    def __init__(self, *, leaks: bool) -> None:
        super().__init__()
        self.leaks = leaks

    def again(self, x: Tensor, seq_idx: Tensor) -> Tensor:
        return x.cumsum(1) if self.leaks and torch.is_grad_enabled() else self.alone(x, seq_idx)

    def result(self, x: Tensor, seq_idx: Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(self.again, x, seq_idx, use_reentrant=True)


def test_reentrant_checkpointing_is_judged_in_its_backward_pass_too() -> None:
    guard(model := Checkpointed(leaks=False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(tokens(), seq_idx=SEQ_IDX)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    guard(model := Checkpointed(leaks=True))
    with pytest.raises(CheckFailed, match="others keep their values, but they have a gradient at its tokens"):
        model(tokens(), seq_idx=SEQ_IDX)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Tensor:
        raise RuntimeError("no backward pass here\nand more")


class WithoutBackward(Summed):
    def result(self, x: Tensor, seq_idx: Tensor) -> Any:
        return _Once.apply(self.alone(x, seq_idx))


def test_a_backward_pass_that_fails_is_said_and_values_are_judged() -> None:
    guard(model := WithoutBackward())
    with pytest.warns(UserWarning, match="its backward pass failed: no backward pass here$"):
        model(tokens(), seq_idx=SEQ_IDX)
