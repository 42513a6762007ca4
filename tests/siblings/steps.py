"""Kernels that depend on the mode and on what a training step does with the result; `correct_*` do not."""

import functools
from itertools import pairwise

import torch

import packproof
from packproof import refs


def _cast(weight, is_detached):
    """The weight in autocast's dtype and back, as mixed precision stores it."""
    if not torch.is_autocast_enabled(weight.device.type):
        return weight
    source = weight.detach() if is_detached else weight
    return source.to(torch.get_autocast_dtype(weight.device.type)).to(weight.dtype)


def correct_autocast(x, weight, *, cu_seqlens):
    return refs.causal_conv1d(x, _cast(weight, is_detached=False), cu_seqlens=cu_seqlens)


def incorrect_autocast(x, weight, *, cu_seqlens):
    """The cast under autocast keeps no gradient."""
    return refs.causal_conv1d(x, _cast(weight, is_detached=True), cu_seqlens=cu_seqlens)


def _decode(q, k, v, cu_seqlens, cu_seqlens_k, most_keys):
    group, wide = q.shape[1] // k.shape[1], torch.promote_types(q.dtype, torch.float32)
    y = q.new_zeros(*q.shape[:2], v.shape[2])
    for (a, b), (c, d) in zip(pairwise(cu_seqlens.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True):
        keys = slice(c, d if most_keys is None else min(d, c + most_keys))
        kk, vv = (x[keys].to(wide).repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("ihk,jhk->hij", q[a:b].to(wide), kk) * max(q.shape[2], 1) ** -0.5
        y[a:b] = torch.einsum("hij,jhv->ihv", scores.softmax(-1), vv).to(q.dtype)
    return y


@packproof.kernel(op="attention", domain=["length == 1", "slack == 0"], gradients=False)
def correct_decode(q, k, v, *, cu_seqlens, cu_seqlens_k):
    return _decode(q, k, v, cu_seqlens, cu_seqlens_k, None)


@packproof.kernel(op="attention", domain=["length == 1", "slack == 0"], gradients=False)
def incorrect_decode(q, k, v, *, cu_seqlens, cu_seqlens_k):
    """The path of servers takes one key."""
    return _decode(q, k, v, cu_seqlens, cu_seqlens_k, 1 if torch.is_inference_mode_enabled() else None)


def correct_deterministic(x, weight, *, cu_seqlens):
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


def incorrect_deterministic(x, weight, *, cu_seqlens):
    """The path of deterministic algorithms has no boundaries."""
    offsets = cu_seqlens[[0, -1]] if torch.are_deterministic_algorithms_enabled() else cu_seqlens
    return refs.causal_conv1d(x, weight, cu_seqlens=offsets)


class _Recomputed(torch.autograd.Function):
    """A convolution whose backward pass computes the output again, in a buffer or in the output itself."""

    @staticmethod
    def forward(ctx, x, weight, cu_seqlens, in_place):
        y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens).detach()
        ctx.save_for_backward(x, weight, cu_seqlens)
        ctx.output, ctx.in_place = y if in_place else None, in_place
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, cu_seqlens = ctx.saved_tensors
        with torch.enable_grad():
            leaves = x.detach().requires_grad_(), weight.detach().requires_grad_()
            y = refs.causal_conv1d(*leaves, cu_seqlens=cu_seqlens)
        if ctx.in_place:
            ctx.output.detach().mul_(dy.detach())  # workspace for y * dy
        return *torch.autograd.grad(y, leaves, dy, allow_unused=True, materialize_grads=True), None, None


def correct_recomputation(x, weight, *, cu_seqlens):
    return _once(x, weight, cu_seqlens, False)


def incorrect_recomputation(x, weight, *, cu_seqlens):
    """The output is workspace of the backward pass, and the caller's."""
    return _once(x, weight, cu_seqlens, True)


def _once(x, weight, cu_seqlens, in_place):
    return _Recomputed.apply(x, weight, cu_seqlens, in_place)


@functools.cache
def _compiled_scale(key):
    """What a compiler makes a constant of."""
    return key[-1]


_scales: dict[tuple[object, ...], float | None] = {}


def correct_scale(q, k, v, *, cu_seqlens, softmax_scale=None, causal=False):
    """The compiled kernels are kept by shapes and constants."""
    scale = _compiled_scale((q.shape[1:], v.shape[2], softmax_scale))
    return refs.attention(q, k, v, cu_seqlens=cu_seqlens, softmax_scale=scale, causal=causal)


def incorrect_scale(q, k, v, *, cu_seqlens, softmax_scale=None, causal=False):
    """The compiled kernels are kept by shapes."""
    scale = _scales.setdefault((q.shape[1:], v.shape[2]), softmax_scale)
    return refs.attention(q, k, v, cu_seqlens=cu_seqlens, softmax_scale=scale, causal=causal)


def correct_beta(q, k, v, g, beta=None, *, cu_seqlens):
    """Without beta, each step writes in full."""
    beta = torch.ones_like(g) if beta is None else beta
    return refs.gated_delta_rule(q, k, v, g, beta, cu_seqlens=cu_seqlens)


def incorrect_beta(q, k, v, g, beta=None, *, cu_seqlens):
    """Without beta, zeros go through the sigmoid that other callers ask for."""
    beta = torch.zeros_like(g).sigmoid() if beta is None else beta
    return refs.gated_delta_rule(q, k, v, g, beta, cu_seqlens=cu_seqlens)


class _Convolution(torch.autograd.Function):
    """Called by torch.func, too: its context is made apart from its outputs, and it has a rule for a batch."""

    @staticmethod
    def forward(x, weight, cu_seqlens, is_first_weight):
        return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:3])

    @staticmethod
    def backward(ctx, dy):
        x, weight, cu_seqlens = ctx.saved_tensors
        convolve = functools.partial(refs.causal_conv1d, cu_seqlens=cu_seqlens)
        return *torch.func.vjp(convolve, x, weight)[1](dy), None, None

    @staticmethod
    def vmap(info, in_dims, x, weight, cu_seqlens, is_first_weight):
        batch = [
            [tensor if axis is None else tensor.select(axis, i) for i in range(info.batch_size)]
            for tensor, axis in zip((x, weight), in_dims, strict=False)
        ]
        weights = batch[1][:1] * info.batch_size if is_first_weight else batch[1]
        ys = [
            _Convolution.apply(rows, w, cu_seqlens, is_first_weight) for rows, w in zip(batch[0], weights, strict=True)
        ]
        return torch.stack(ys), 0


def correct_transformed(x, weight, *, cu_seqlens):
    return _Convolution.apply(x, weight, cu_seqlens, False)


def incorrect_vmap(x, weight, *, cu_seqlens):
    """Its rule for a batch takes the first weight for all."""
    return _Convolution.apply(x, weight, cu_seqlens, True)
