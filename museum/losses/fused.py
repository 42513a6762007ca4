"""Bugs of losses with a backward pass by hand: gradients that are computed in the forward pass, and where they go."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from packproof.museum.losses.vocabulary import logits_and_targets

VOCABULARY_BLOCK = 16

Backward = Callable[..., tuple[Tensor | None, ...]]


def softmax_minus_target(x: Tensor, y: Tensor, ignore_index: int) -> Tensor:
    """The gradient of the cross entropy of each token by its logits x (t, nv), 0 where it does not count."""
    counts = y != ignore_index
    rows = torch.arange(len(x), device=x.device)
    gradient = x.softmax(-1)
    gradient[rows, torch.where(counts, y, 0)] -= 1
    return torch.where(counts[:, None], gradient, 0)


def losses_of(x: Tensor, y: Tensor, ignore_index: int) -> Tensor:
    """The cross entropy of each token, 0 where it does not count."""
    counts = y != ignore_index
    target = x.gather(-1, torch.where(counts, y, 0)[:, None])[:, 0]
    return torch.where(counts, x.logsumexp(-1) - target, 0)


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


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    cu_seqlens: Tensor,
    shift: bool = False,
    ignore_index: int = -100,
    bug: str = "",
) -> Tensor:
    """Op `linear_cross_entropy`: both gradients are computed in the forward pass, and scaled in the backward pass."""
    wide = torch.promote_types(x.dtype, torch.float32)
    rows, y = logits_and_targets(x.detach(), labels, cu_seqlens, shift, ignore_index)
    w = weight.detach().to(wide)
    if bug == "padded_vocabulary":
        w = pad(w, (0, 0, 0, -len(w) % VOCABULARY_BLOCK))
    logits, n = rows @ w.T, (y != ignore_index).sum().clamp(min=1)
    d_logits = softmax_minus_target(logits, y, ignore_index) / n
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

    value = losses_of(logits, y, ignore_index).sum() / n
    loss: Tensor = _OwnBackward.apply(value, scaled, x, weight)  # type: ignore[no-untyped-call]
    return loss


def cross_entropy_sum(
    logits: Tensor,
    labels: Tensor,
    *,
    cu_seqlens: Tensor,
    shift: bool = False,
    ignore_index: int = -100,
    bug: str = "",
) -> Tensor:
    """Op `cross_entropy_sum`; the bugs write the gradient where the logits are."""
    x, y = logits_and_targets(logits.detach(), labels, cu_seqlens, shift, ignore_index)
    gradient = softmax_minus_target(x, y, ignore_index)
    value = losses_of(x, y, ignore_index).sum()
    if bug == "gradient_in_the_logits":
        logits.detach()[: len(x)] = gradient.to(logits.dtype)

    def backward(dy: Tensor, _: tuple[bool, ...]) -> tuple[Tensor]:
        if bug == "logits_overwritten":
            logits.detach()[: len(x)] = (gradient * dy).to(logits.dtype)
        return (_with_slack(gradient * dy, logits),)

    loss: Tensor = _OwnBackward.apply(value, backward, logits)  # type: ignore[no-untyped-call]
    return loss


def token_logprobs(
    logits: Tensor,
    labels: Tensor,
    *,
    cu_seqlens: Tensor,
    shift: bool = False,
    ignore_index: int = -100,
    bug: str = "",
) -> Tensor:
    """Op `token_logprobs`, with a backward pass that reads the incoming gradient row after row."""
    x, y = logits_and_targets(logits.detach(), labels, cu_seqlens, shift, ignore_index)
    gradient = -softmax_minus_target(x, y, ignore_index)

    def backward(dy: Tensor, _: tuple[bool, ...]) -> tuple[Tensor]:
        if bug == "one_incoming_gradient":  # its rows are taken to lie one after the other; after the first: anything
            elements = dy.untyped_storage().nbytes() // dy.element_size()
            dy = pad(dy.as_strided((min(len(dy), elements),), (1,)), (0, max(len(dy) - elements, 0)))
        return (_with_slack(gradient * dy[: len(x), None], logits),)

    values = pad(-losses_of(x, y, ignore_index), (0, len(logits) - len(x)))
    logprobs: Tensor = _OwnBackward.apply(values, backward, logits)  # type: ignore[no-untyped-call]
    return logprobs


saved_gradients_scaled = partial(linear_cross_entropy, bug="saved_gradients_scaled")
frozen_head = partial(linear_cross_entropy, bug="frozen_head")
padded_vocabulary = partial(linear_cross_entropy, bug="padded_vocabulary")
gradient_in_the_logits = partial(cross_entropy_sum, bug="gradient_in_the_logits")
logits_overwritten = partial(cross_entropy_sum, bug="logits_overwritten")
one_incoming_gradient = partial(token_logprobs, bug="one_incoming_gradient")
