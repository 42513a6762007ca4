"""A language model that takes labels, with a loss of choice."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.tools.models.models import Attention, Hybrid

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def token_losses(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each token, and its label: the next token's inside the document, -100 at the last."""
    next_labels = labels.roll(-1)
    next_labels[cu_seqlens[1:].long() - 1] = -100
    return cross_entropy(logits, next_labels, reduction="none"), next_labels


def over_row(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Shifts over the whole row, as the classes of flash-linear-attention do (fla#1217)."""
    return cross_entropy(logits[:-1], labels[1:])


def rolled(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Rolls the row: the last token of a document takes the first label of the next one (verl#6475)."""
    return cross_entropy(logits, labels.roll(-1))


def mean_over_tokens(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
    values, next_labels = token_losses(logits, labels, cu_seqlens)
    return values.sum() / (next_labels != -100).sum()


def summed(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
    return token_losses(logits, labels, cu_seqlens)[0].sum()


def per_token(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
    return token_losses(logits, labels, cu_seqlens)[0][None]


def mean_over_sequences(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
    lengths = cu_seqlens.diff().tolist()
    parts = zip(*(x.split(lengths) for x in token_losses(logits, labels, cu_seqlens)), strict=True)
    means = [values.sum() / (labels != -100).sum() for values, labels in parts if bool((labels != -100).any())]
    return torch.stack(means or [logits.sum() * 0]).mean()


def aligned(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Does not shift: the trainer has."""
    return cross_entropy(logits, labels)


def over_rows(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Divides by all tokens, ignored ones too."""
    return token_losses(logits, labels, cu_seqlens)[0].mean()


def chunk_means(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Means of chunks are summed: the loss grows with their number (Automodel#3803)."""
    values, next_labels = token_losses(logits, labels, cu_seqlens)
    chunks = zip(values.split(4), next_labels.split(4), strict=True)
    return torch.stack([part.sum() / (kept != -100).sum().clamp(min=1) for part, kept in chunks]).sum()


def balanced_over_pack(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Adds a balance loss over the pack instead of each sequence (Megatron-LM#6108)."""
    return summed(logits, labels, cu_seqlens) + logits.softmax(-1).mean(0).square().sum()


def half_gradient(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Right in value; of documents past the first, half of the gradient is lost."""
    start = int(cu_seqlens[1])
    later = logits[start:]
    return mean_over_tokens(torch.cat([logits[:start], (later + later.detach()) / 2]), labels, cu_seqlens)


def detached(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
    return mean_over_tokens(logits.detach(), labels, cu_seqlens)


def of_logits_alone(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
    return logits.square().mean()


class LanguageModel(Hybrid):
    """One layer of attention and a loss."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(mixers=[Attention])
        self.layers[0].experts = torch.nn.Identity()
        self._loss = loss

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, cu_seqlens: Tensor, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        logits = super().forward(input_ids, cu_seqlens)
        return {"logits": logits} if labels is None else {"loss": self._loss(logits[0], labels[0], cu_seqlens)}


class CausalModel(Hybrid):
    """As transformers' causal models: documents from position_ids, labels shifted over the row, num_items_in_batch."""

    def __init__(self, divide: Callable[[Tensor, int, Mapping[str, int]], Tensor]) -> None:
        super().__init__(mixers=[Attention])
        self.layers[0].experts = torch.nn.Identity()
        self._divide = divide

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        **kwargs: int,
    ) -> dict[str, Tensor]:
        starts = (position_ids[0] == 0).nonzero().flatten()
        cu_seqlens = torch.cat([starts, torch.tensor([input_ids.shape[1]])]).int()
        logits = super().forward(input_ids, cu_seqlens)
        if labels is None:
            return {"logits": logits}
        target = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:] if shift_labels is None else shift_labels
        values = cross_entropy(logits[0].float(), target[0], reduction="none")
        return {"loss": self._divide(values.sum(), int((target != -100).sum()), kwargs), "logits": logits}


def by_items(total: Tensor, count: int, kwargs: Mapping[str, int]) -> Tensor:
    return total / kwargs.get("num_items_in_batch", count)


def by_count(total: Tensor, count: int, kwargs: Mapping[str, int]) -> Tensor:
    """Takes no notice of num_items_in_batch."""
    return total / count


def mean_by_items(total: Tensor, count: int, kwargs: Mapping[str, int]) -> Tensor:
    """Divides the mean once more."""
    return total / count / kwargs.get("num_items_in_batch", 1)


class NamedItems(CausalModel):
    """Has num_items_in_batch by name."""

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        labels: Tensor | None = None,
        num_items_in_batch: int | None = None,
    ) -> dict[str, Tensor]:
        kwargs = {} if num_items_in_batch is None else {"num_items_in_batch": num_items_in_batch}
        return super().forward(input_ids, position_ids, labels, None, **kwargs)
