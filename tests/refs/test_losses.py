"""The losses against torch's own in float64, written per token and per sequence, and their shift."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence
from torch.nn import functional

from packproof import refs
from packproof.base.errors import ArgumentError

CU_SEQLENS = torch.tensor([0, 4, 4, 5, 11])
SLACK, N = 2, 7


def tensors(seed: int, ignored: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    rows = int(CU_SEQLENS[-1]) + SLACK
    logits = torch.randn(rows, N, generator=g, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(N, (rows,), generator=g)
    labels[torch.rand(rows, generator=g) < 0.3] = ignored
    return logits, labels


def by_torch(logits: Tensor, labels: Tensor, *, shift: bool, ignore_index: int, **terms: float) -> list[Tensor]:
    """The losses of the tokens of each sequence that count, one after another."""
    losses = []
    for a, b in pairwise(CU_SEQLENS.tolist()):
        x, y = (logits[a : b - 1], labels[a + 1 : b]) if shift else (logits[a:b], labels[a:b])
        x, y = x[y != ignore_index], y[y != ignore_index]
        loss = functional.cross_entropy(x, y, label_smoothing=terms["label_smoothing"], reduction="none")
        losses.append(loss + terms["z_loss"] * x.exp().sum(-1).log() ** 2)
    return losses


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("ignore_index", [-100, 3])
def test_cross_entropy_is_torchs_value_and_gradient(shift: bool, ignore_index: int) -> None:
    logits, labels = tensors(0, ignore_index)
    options: dict[str, Any] = {"shift": shift, "ignore_index": ignore_index, "label_smoothing": 0.1, "z_loss": 0.01}
    losses = by_torch(logits, labels, **options)
    tokens = torch.cat(losses)
    pairs = [
        (refs.cross_entropy, tokens.mean()),
        (refs.cross_entropy_sum, tokens.sum()),
        (refs.cross_entropy_sequences, torch.stack([x.sum() / max(len(x), 1) for x in losses])),
    ]
    for f, expected in pairs:
        y = f(logits, labels, cu_seqlens=CU_SEQLENS, **options)
        same(y, expected)
        weights = torch.arange(1.0, 1 + y.numel(), dtype=torch.float64).view(y.shape)
        gradients = [torch.autograd.grad((x * weights).sum(), logits, retain_graph=True)[0] for x in (y, expected)]
        same(*gradients)


def test_a_fused_projection_has_the_loss_of_its_logits() -> None:
    labels = tensors(0, -100)[1]
    g = torch.Generator().manual_seed(5)
    x, weight = (torch.randn(n, 3, generator=g, dtype=torch.float64) for n in (len(labels), N))
    options: dict[str, Any] = {"cu_seqlens": CU_SEQLENS, "shift": True, "label_smoothing": 0.1}
    same(refs.linear_cross_entropy(x, weight, labels, **options), refs.cross_entropy(x @ weight.T, labels, **options))


def test_measures_of_tokens_are_those_of_torchs_distributions() -> None:
    logits, labels = tensors(1, -100)
    other, n = tensors(2, -100)[0], int(CU_SEQLENS[-1])
    p, q = Categorical(logits=logits[:n]), Categorical(logits=other[:n])
    counts = labels[:n] != -100
    logprobs = torch.where(counts, p.log_prob(labels[:n].clamp(min=0)), 0)
    for y, expected in (
        (refs.token_entropy(logits, cu_seqlens=CU_SEQLENS), p.entropy()),
        (refs.kl_divergence(logits, other, cu_seqlens=CU_SEQLENS), kl_divergence(p, q)),
        (refs.token_logprobs(logits, labels, cu_seqlens=CU_SEQLENS), logprobs),
    ):
        same(y[:n], expected)
        assert torch.equal(y[n:], torch.zeros(SLACK, dtype=torch.float64))


def test_nothing_counts() -> None:
    logits, labels = tensors(0, -100)
    for f in (refs.cross_entropy, refs.cross_entropy_sum, refs.cross_entropy_sequences):
        y = f(logits, torch.full_like(labels, -100), cu_seqlens=CU_SEQLENS)
        assert torch.equal(y, torch.zeros_like(y))
        assert f(logits, labels, cu_seqlens=torch.tensor([0])).numel() <= 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"labels": torch.full((13,), 7)}, "labels has 7 but 0 to 6 was expected, or ignore_index"),
        ({"labels": torch.zeros(13)}, "labels is float32 but int32 or int64 was expected"),
        ({"z_loss": -1.0}, "z_loss is -1.0 but a finite number, 0 or more, was expected"),
    ],
)
def test_a_wrong_call_is_answered_by_name(change: dict[str, Any], text: str) -> None:
    logits, labels = tensors(0, -100)
    with pytest.raises(ArgumentError, match=text):
        refs.cross_entropy(**{"logits": logits, "labels": labels, "cu_seqlens": CU_SEQLENS, **change})


PAIR = {"logprobs": torch.zeros(4), "ref_logprobs": torch.zeros(4), "mask": torch.ones(4, dtype=torch.int64)}
RESPONSE = {"logprobs": torch.zeros(4), "old_logprobs": torch.zeros(4), "advantages": torch.zeros(1)}


@pytest.mark.parametrize(
    ("f", "arguments", "text"),
    [
        (
            refs.dpo_loss,
            {**PAIR, "chosen_lengths": torch.tensor([5])},
            "chosen_lengths has 5 but 0 to 4, the tokens of",
        ),
        (
            refs.dpo_loss,
            {**PAIR, "chosen_lengths": torch.tensor([1]), "beta": -1.0},
            "beta is -1.0 but a finite number",
        ),
        (refs.policy_loss, {**RESPONSE, "mask": torch.full((4,), 2)}, "mask has 2 but 1 was expected for a token that"),
        (refs.policy_loss, {**RESPONSE, "mask": torch.ones(4)}, "mask is float32 but int32 or int64 was expected"),
        (refs.router_load, {"logits": torch.zeros(4, 2), "top": 3}, "top is 3 but logits has 2 experts"),
        (refs.router_balance_loss_sequences, {"logits": torch.zeros(4, 2), "scores": "relu"}, "scores is 'relu' but"),
    ],
)
def test_a_wrong_call_of_another_loss_is_answered_by_name(f: Any, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        f(**arguments, cu_seqlens=torch.tensor([0, 4]))
