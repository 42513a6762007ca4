"""Bugs of losses with a backward pass by hand: gradients that are computed in the forward pass, and where they go."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from packproof import refs
from packproof.base.errors import copy_signature_of
from packproof.museum.losses.vocabulary import logits_and_targets, token_losses

VOCABULARY_BLOCK = 16

Backward = Callable[..., tuple[Tensor | None, ...]]


def gradient_of_logits(
    x: Tensor, y: Tensor, ignore_index: int, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> Tensor:
    """The gradient of the cross entropy of each token by its logits x (t, nv), 0 where it does not count."""
    counts, p = y != ignore_index, x.softmax(-1)
    rows = torch.arange(len(x), device=x.device)
    gradient = p - label_smoothing / max(x.shape[1], 1) + 2 * z_loss * x.logsumexp(-1, keepdim=True) * p
    gradient[rows, torch.where(counts, y, 0)] -= 1 - label_smoothing
    return torch.where(counts[:, None], gradient, 0)


class _OwnBackward(torch.autograd.Function):
    """A value with a backward pass of its own: the gradients of `tensors`, by the incoming one and which are needed."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, backward: Backward, *tensors: Tensor) -> Tensor:
        ctx.own_backward = backward
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *dy: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *ctx.own_backward(dy[0], ctx.needs_input_grad[2:])


def _with_slack(dx: Tensor, like: Tensor) -> Tensor:
    return pad(dx, (0, 0, 0, len(like) - len(dx))).to(like.dtype)


@copy_signature_of(refs.linear_cross_entropy, bug="")
def linear_cross_entropy(
    bug: str, x: Tensor, weight: Tensor, labels: Tensor, cu_seqlens: Tensor, shift: bool, ignore_index: int,
    **terms: float,
) -> Tensor:  # fmt: skip
    """Op `linear_cross_entropy`: both gradients are computed in the forward pass, and scaled in the backward pass."""
    wide = torch.promote_types(x.dtype, torch.float32)
    rows, y = logits_and_targets(x.detach(), labels, cu_seqlens, shift, ignore_index)
    w = weight.detach().to(wide)
    if bug == "padded_vocabulary":
        w = pad(w, (0, 0, 0, -len(w) % VOCABULARY_BLOCK))
    logits, n = rows @ w.T, (y != ignore_index).sum().clamp(min=1)
    d_logits = gradient_of_logits(logits, y, ignore_index, **terms) / n
    saved = d_logits @ w, (d_logits.T @ rows)[: len(weight)]

    def scaled(dy: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        dx, dw = saved
        if bug == "saved_gradients_scaled":
            dx, dw = dx.mul_(dy), dw.mul_(dy)
        else:
            dx, dw = dx * dy, dw * dy
        buffer = torch.empty_like(weight) if needed[1] else None  # a frozen head has none
        if bug == "frozen_head":
            return _with_slack(dx, x), dw.to(buffer.dtype)  # type: ignore[union-attr]
        return _with_slack(dx, x), None if buffer is None else buffer.copy_(dw)

    value = token_losses(logits, y, ignore_index, **terms).sum() / n
    loss: Tensor = _OwnBackward.apply(value, scaled, x, weight)  # type: ignore[no-untyped-call]
    return loss


@copy_signature_of(refs.cross_entropy_sum, bug="")
def cross_entropy_sum(
    bug: str, logits: Tensor, labels: Tensor, cu_seqlens: Tensor, shift: bool, ignore_index: int, **terms: float
) -> Tensor:
    """Op `cross_entropy_sum`; the bugs write the gradient where the logits are."""
    x, y = logits_and_targets(logits.detach(), labels, cu_seqlens, shift, ignore_index)
    gradient = gradient_of_logits(x, y, ignore_index, **terms)
    value = token_losses(x, y, ignore_index, **terms).sum()
    if bug == "gradient_in_the_logits":
        logits.detach()[: len(x)] = gradient.to(logits.dtype)

    def backward(dy: Tensor, _: tuple[bool, ...]) -> tuple[Tensor]:
        if bug == "logits_overwritten":
            logits.detach()[: len(x)] = (gradient * dy).to(logits.dtype)
        return (_with_slack(gradient * dy, logits),)

    loss: Tensor = _OwnBackward.apply(value, backward, logits)  # type: ignore[no-untyped-call]
    return loss


@copy_signature_of(refs.token_logprobs, bug="")
def token_logprobs(
    bug: str, logits: Tensor, labels: Tensor, cu_seqlens: Tensor, shift: bool, ignore_index: int
) -> Tensor:
    """Op `token_logprobs`, with a backward pass that reads the incoming gradient row after row."""
    x, y = logits_and_targets(logits.detach(), labels, cu_seqlens, shift, ignore_index)
    gradient = -gradient_of_logits(x, y, ignore_index)

    def backward(dy: Tensor, _: tuple[bool, ...]) -> tuple[Tensor]:
        if bug == "one_incoming_gradient":  # its rows are taken to lie one after the other; after the first: anything
            elements = dy.untyped_storage().nbytes() // dy.element_size()
            dy = pad(dy.as_strided((min(len(dy), elements),), (1,)), (0, max(len(dy) - elements, 0)))
        return (_with_slack(gradient * dy[: len(x), None], logits),)

    values = pad(-token_losses(x, y, ignore_index), (0, len(logits) - len(x)))
    logprobs: Tensor = _OwnBackward.apply(values, backward, logits)  # type: ignore[no-untyped-call]
    return logprobs


def _with_bug(op: Callable[..., Tensor], bug: str) -> Callable[..., Tensor]:
    return partial(op, bug=bug)


saved_gradients_scaled = _with_bug(linear_cross_entropy, "saved_gradients_scaled")
frozen_head = _with_bug(linear_cross_entropy, "frozen_head")
padded_vocabulary = _with_bug(linear_cross_entropy, "padded_vocabulary")
gradient_in_the_logits = _with_bug(cross_entropy_sum, "gradient_in_the_logits")
logits_overwritten = _with_bug(cross_entropy_sum, "logits_overwritten")
one_incoming_gradient = _with_bug(token_logprobs, "one_incoming_gradient")
