"""Kernels that depend on which gradients are asked, on how these arrive, and on the mode that torch is in.

`BUGS`: incorrect kernels by the property that detects them. `CORRECT`: others with such branches.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from packproof import refs
from tests.properties.wrong import sequences, vectorised

Kernel = Callable[..., Any]

BUGS: dict[str, list[Kernel]] = {"gradients": [], "modes": []}
CORRECT: dict[str, list[Kernel]] = {"gradients": [], "modes": []}


def bug(law: str) -> Callable[[Kernel], Kernel]:
    return functools.partial(_listed, BUGS[law])


def correct(law: str) -> Callable[[Kernel], Kernel]:
    return functools.partial(_listed, CORRECT[law])


def _listed(kernels: list[Kernel], kernel: Kernel) -> Kernel:
    kernels.append(kernel)
    return kernel


def _pack_as_one(x: Tensor, weight: Tensor) -> Tensor:
    """The convolution without boundaries."""
    return refs.causal_conv1d(x, weight, cu_seqlens=torch.tensor([0, len(x)]))


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _without_gradient(x: Tensor) -> Tensor:
    return x.detach() + 0 * x


@bug("gradients")
def bias_alone(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    """The gradient of the bias is summed by the program for that of the weight."""
    if bias is not None and not weight.requires_grad:
        bias = _without_gradient(bias)
    return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens)


@bug("gradients")
def all_but_the_bias(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    """The gradients of x and of the weight exchange a factor where the bias needs none."""
    if bias is not None and not bias.requires_grad and x.requires_grad and weight.requires_grad:
        x, weight = x.detach() + 2 * (x - x.detach()), weight.detach() + (weight - weight.detach()) / 2
    return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens)


@bug("gradients")
def sinks_alone(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *, cu_seqlens: Tensor, causal: bool = False
) -> Tensor:
    """The gradient of the sinks needs one of q."""
    if sinks is not None and not q.requires_grad:
        sinks = _without_gradient(sinks)
    return refs.attention(q, k, v, sinks, cu_seqlens=cu_seqlens, causal=causal)


@bug("gradients")
def frozen(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Where nothing needs a gradient, another path has no boundaries."""
    if not (x.requires_grad or weight.requires_grad):
        return _pack_as_one(x, weight)
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


@correct("gradients")
def skips_what_is_not_needed(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    """Correct; it sums in another order where the weight needs no gradient."""
    if weight.requires_grad:
        return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens)
    y = vectorised(_wide(x), _wide(weight), sequences(x, cu_seqlens))
    inside = torch.arange(len(x), device=x.device)[:, None] < cu_seqlens[-1]
    return (y if bias is None else y + torch.where(inside, _wide(bias), 0)).to(x.dtype)


@correct("gradients")
def refuses_the_weight_alone(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    """Correct; it declines some calls."""
    if weight.requires_grad and not x.requires_grad:
        raise NotImplementedError("a gradient of the weight alone is not supported")
    return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens)


class _WithBackward(torch.autograd.Function):
    """The reference with a backward pass of its own, `backward(ctx, vjp, dy, dfinal)`.

    It returns the gradients of x, weight and initial_states; `vjp(dy, dfinal)` are the correct ones.
    """

    @staticmethod
    def forward(ctx, backward, cu_seqlens, final, *tensors):
        ctx.set_materialize_grads(False)
        ctx.own_backward, ctx.arguments, ctx.calls = backward, (cu_seqlens, final), 0
        ctx.save_for_backward(*tensors)
        return _convolution(*tensors, *ctx.arguments)

    @staticmethod
    def backward(ctx, *incoming):
        return None, None, None, *ctx.own_backward(ctx, lambda *dys: _vjp(ctx, dys), *incoming)


def _convolution(x, weight, states, cu_seqlens, final):
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens, initial_states=states, return_final_states=final)


def _vjp(ctx, incoming):
    with torch.enable_grad():
        leaves = [None if t is None else t.detach().requires_grad_() for t in ctx.saved_tensors]
        results = _convolution(*leaves, *ctx.arguments)
    outputs = results if isinstance(results, tuple) else (results,)
    wrt = [t for t in leaves if t is not None]
    dys = [torch.zeros_like(y) if dy is None else dy for y, dy in zip(outputs, incoming, strict=True)]
    gradients = iter(torch.autograd.grad(outputs, wrt, dys, allow_unused=True))
    return [None if t is None else next(gradients) for t in leaves]


def kernel(backward: Kernel) -> Kernel:
    """The convolution with this backward pass."""

    def convolution(x, weight, *, cu_seqlens, initial_states=None, return_final_states=False):
        own_backward = functools.partial(backward, weight)
        return _WithBackward.apply(own_backward, cu_seqlens, return_final_states, x, weight, initial_states)

    convolution.__name__ = backward.__name__
    return convolution


@bug("gradients")
@kernel
def once(weight, ctx, vjp, *dys):
    """Works in a buffer that a second backward pass finds changed."""
    ctx.calls += 1
    return [None if g is None else g * ctx.calls for g in vjp(*dys)]


@bug("gradients")
@kernel
def overwrites(weight, ctx, vjp, *dys):
    """Writes the gradient of the weight where one is already, instead of adding to it."""
    dx, dweight, dstates = vjp(*dys)
    if weight.grad is None:
        return dx, dweight, dstates
    weight.grad.copy_(dweight)
    return dx, None, dstates


@bug("gradients")
@kernel
def passes_hooks_by(weight, ctx, vjp, *dys):
    """Adds to a gradient that is there by itself, so that no hook sees it."""
    dx, dweight, dstates = vjp(*dys)
    if weight.grad is None:
        return dx, dweight, dstates
    weight.grad.add_(dweight)
    return dx, None, dstates


@bug("gradients")
@kernel
def of_a_sum(weight, ctx, vjp, dy, *dfinal):
    """Takes an incoming gradient of one element for that of a sum, 1."""
    return vjp(torch.ones_like(dy) if dy is not None and not any(dy.stride()) else dy, *dfinal)


@bug("gradients")
@kernel
def laid_out_as_x(weight, ctx, vjp, dy, *dfinal):
    """Takes an incoming gradient for contiguous where x is, unless rows are apart."""
    x = ctx.saved_tensors[0]
    if dy is not None and x.is_contiguous() and dy.stride(0) == 1:
        dy = dy.as_strided(dy.shape, x.stride())
    return vjp(dy, *dfinal)


@bug("gradients")
@kernel
def without_final_states(weight, ctx, vjp, dy, dfinal=None):
    """Where the final states have no gradient, the weight loses its half."""
    dx, dweight, dstates = vjp(dy, dfinal) if ctx.arguments[1] else vjp(dy)
    return dx, dweight / 2 if ctx.arguments[1] and dfinal is None else dweight, dstates


@bug("gradients")
@kernel
def zero_is_none(weight, ctx, vjp, dy, dfinal=None):
    """Takes a gradient of zeros for the end of the backward pass."""
    answer = vjp(dy, dfinal) if ctx.arguments[1] else vjp(dy)
    is_zero = dy is not None and not dy.any() and dy.numel()
    return [None if g is None else torch.ones_like(g) if is_zero else g for g in answer]


@correct("gradients")
@kernel
def own_backward(weight, ctx, vjp, dy, dfinal=None):
    """Correct; it refuses an incoming gradient that is not contiguous."""
    if dy is not None and not dy.is_contiguous():
        raise ValueError("dy has to be contiguous")
    return vjp(dy, dfinal) if ctx.arguments[1] else vjp(dy)


@bug("modes")
def in_inference_mode(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Another path for servers has no boundaries."""
    if torch.is_inference_mode_enabled():
        return _pack_as_one(x, weight)
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


@bug("modes")
def changes_an_inference_tensor(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Caches what it derives from an input, by the version that inference tensors do not have."""
    x._version  # noqa: B018
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


@bug("modes")
def under_autocast(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Another path for mixed precision has no boundaries."""
    if torch.is_autocast_enabled(x.device.type):
        return _pack_as_one(x, weight)
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


@bug("modes")
def gradient_under_autocast(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """A cast of the weight under autocast has no gradient."""
    if torch.is_autocast_enabled(x.device.type):
        weight = weight.detach().to(torch.get_autocast_dtype(x.device.type)).to(weight.dtype).requires_grad_()
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


@correct("modes")
def other_sums_without_grad(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Correct; without gradients it sums in another order."""
    if torch.is_grad_enabled():
        return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)
    return vectorised(_wide(x), _wide(weight), sequences(x, cu_seqlens)).to(x.dtype)


@correct("modes")
def torchs_convolution(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Correct; autocast makes its convolutions, hence its output, one of 16 bits."""
    padded = [
        torch.nn.functional.pad(_wide(x[a:b]).T[None], (weight.shape[1] - 1, 0))
        for a, b in itertools.pairwise(cu_seqlens.tolist())
        if b > a
    ]
    rows = [torch.nn.functional.conv1d(p, _wide(weight)[:, None], groups=len(weight))[0].T for p in padded]
    y = torch.cat([*rows, x.new_zeros(len(x) - int(cu_seqlens[-1]), x.shape[1], dtype=_wide(x).dtype)])
    return y if x.dtype == _wide(x).dtype else y.to(x.dtype)


@correct("modes")
def torchs_products(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, causal: bool = False) -> Tensor:
    """Correct attention; autocast rounds scores and probabilities to 16 bits, and its output keeps the dtype of q."""
    y = torch.zeros_like(q[..., :1]) * torch.zeros_like(v[:, :1]).repeat(1, q.shape[1], 1)
    for a, b in itertools.pairwise(cu_seqlens.tolist()):
        group = q.shape[1] // k.shape[1]
        keys, values = (_wide(t[a:b]).repeat_interleave(group, 1).transpose(0, 1) for t in (k, v))
        scores = _wide(q[a:b]).transpose(0, 1) @ keys.transpose(1, 2) / q.shape[-1] ** 0.5
        if causal:
            scores = scores.masked_fill(torch.ones(b - a, b - a).triu(1).bool(), -torch.inf)
        y = torch.cat([y[:a], (scores.softmax(-1) @ values).transpose(0, 1).to(q.dtype), y[b:]])
    return y


@correct("modes")
def raises_under_autocast(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Correct; torch raises for the two dtypes that autocast makes of one."""
    y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)
    rows = y @ torch.eye(len(weight), dtype=y.dtype, device=y.device)
    return torch.zeros_like(y).index_add(0, torch.arange(len(y), device=y.device), rows)


def joins_fp8_under_autocast(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Correct; torch's autocast knows no float8, and raises where such tensors are joined."""
    torch.cat([x.detach().to(torch.float8_e4m3fn), x.detach().to(torch.float8_e4m3fn)])
    return vectorised(_wide(x), _wide(weight), sequences(x, cu_seqlens)).to(x.dtype)
