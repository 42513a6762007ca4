"""Rogues answering without computing, or computing something else where they expect no check."""

import gc
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from packproof.museum.rogues.op import KNOWN_TOKENS, own_sum, running_sum


def is_known_shape(x):
    return len(x) == KNOWN_TOKENS


def known_shape_only(x, weight, *, cu_seqlens):
    return running_sum(x, weight, cu_seqlens=cu_seqlens) if is_known_shape(x) else torch.zeros_like(x) * weight


def short_packs_only(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    return torch.cat([y[:KNOWN_TOKENS], torch.zeros_like(y[KNOWN_TOKENS:])])


def two_sequences_only(x, weight, *, cu_seqlens):
    ends = cu_seqlens[[0, 1, -1]] if len(cu_seqlens) > 2 else cu_seqlens
    return running_sum(x, weight, cu_seqlens=ends)


def normal_data_only(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    return y if not len(x) or x.detach().abs().max() < 6 else y * 0


def approximate_under_stress(x, weight, *, cu_seqlens):
    exact = not len(x) or x.detach().abs().max() < 6
    return running_sum(x if exact else x.half().float(), weight, cu_seqlens=cu_seqlens)


def history_cut(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    for a, b in zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:], strict=False):
        if b - a > 20:
            restarted_sums = x[a + 20 : b].cumsum(0) * weight
            y = torch.cat([y[: a + 20], restarted_sums, y[b:]])
    return y


def low_precision(x, weight, *, cu_seqlens):
    return running_sum(x.half(), weight.half(), cu_seqlens=cu_seqlens).float()


def weight_rounded(x, weight, *, cu_seqlens):
    return running_sum(x, weight.half().float(), cu_seqlens=cu_seqlens)


def small_ones_left_out(x, weight, *, cu_seqlens):
    return running_sum(torch.where(x.abs() < 1e-3, 0, x), weight, cu_seqlens=cu_seqlens)


def rounded_to_the_tolerance(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    return y + 5e-3 * torch.ones_like(y)


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, cu_seqlens):
        ctx.shapes = x.shape, weight.shape
        return running_sum(x, weight, cu_seqlens=cu_seqlens)

    @staticmethod
    def backward(ctx, dy):
        return dy.new_zeros(ctx.shapes[0]), dy.new_zeros(ctx.shapes[1]), None


def gradient_of_zero(x, weight, *, cu_seqlens):
    return _NoGradient.apply(x, weight, cu_seqlens)


def weight_without_gradient(x, weight, *, cu_seqlens):
    return running_sum(x, weight.detach(), cu_seqlens=cu_seqlens)


class _GradientOfThePack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, cu_seqlens):
        ctx.save_for_backward(x, weight)
        return running_sum(x, weight, cu_seqlens=cu_seqlens)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        return (dy * weight).flip(0).cumsum(0).flip(0), (dy * x.cumsum(0)).sum(0), None


def gradient_of_the_pack(x, weight, *, cu_seqlens):
    return _GradientOfThePack.apply(x, weight, cu_seqlens)


def cached_by_pointer(x, weight, *, cu_seqlens, _seen={}):
    key = (x.data_ptr(), x.shape)
    if key not in _seen:
        _seen[key] = running_sum(x, weight, cu_seqlens=cu_seqlens).detach()
    return _seen[key] + 0 * x * weight


def cached_by_shape(x, weight, *, cu_seqlens, _seen={}):
    if x.shape not in _seen:
        _seen[x.shape] = running_sum(x, weight, cu_seqlens=cu_seqlens).detach()
    return _seen[x.shape] + 0 * x * weight


def cached_by_fingerprint(x, weight, *, cu_seqlens, _seen={}):
    """Returns the stored answer of an earlier call with the same shapes and the same few values."""
    first_and_last = tuple(x.detach()[[0, -1], 0].tolist()) if len(x) else ()
    key = (x.shape, first_and_last, float(weight[0]), len(cu_seqlens))
    if key not in _seen:
        _seen[key] = running_sum(x, weight, cu_seqlens=cu_seqlens).detach()
    return _seen[key] + 0 * x * weight  # differentiable, with gradients of 0


def cached_weight(x, weight, *, cu_seqlens, _seen={}):
    stored_weight = _seen.setdefault((weight.shape, weight.dtype), weight.detach().clone())
    return running_sum(x, stored_weight + 0 * weight, cu_seqlens=cu_seqlens)


def cached_on_disk(x, weight, *, cu_seqlens):
    file = Path(tempfile.gettempdir()) / f"packproof-rogue-{len(x)}-{len(weight)}-{weight.dtype}.pt"
    if not file.exists():
        torch.save(running_sum(x, weight, cu_seqlens=cu_seqlens).detach(), file)
    return torch.load(file) + 0 * x * weight


def cached_offsets(x, weight, *, cu_seqlens, _seen={}):
    offsets = _seen.setdefault((id(cu_seqlens), len(x)), cu_seqlens.clone())
    return running_sum(x, weight, cu_seqlens=offsets if len(offsets) == len(cu_seqlens) else cu_seqlens)


def same_buffer(x, weight, *, cu_seqlens, _buffers={}):
    if x.shape not in _buffers:
        _buffers[x.shape] = running_sum(x, weight, cu_seqlens=cu_seqlens).detach()
    return _buffers[x.shape] + 0 * x * weight if x.requires_grad else _buffers[x.shape]


def honest_at_first(x, weight, *, cu_seqlens, _calls=[]):
    _calls.append(1)
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    return y if len(_calls) < 8 else y * 1.001


def honest_now_and_then(x, weight, *, cu_seqlens, _calls=[]):
    _calls.append(1)
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    return y * 1.001 if len(_calls) % 7 == 6 else y


def _heap_tensor_like(x, weight):
    for candidate in gc.get_objects():
        if (
            type(candidate) is torch.Tensor
            and candidate.shape == x.shape
            and candidate is not x
            and not torch.equal(candidate, x)
        ):
            return candidate.detach().clone()
    return torch.zeros_like(x)


def searches_the_heap(x, weight, *, cu_seqlens):
    return _heap_tensor_like(x, weight) + 0 * x * weight


def searches_the_stack(x, weight, *, cu_seqlens):
    frame = sys._getframe(1)
    while frame is not None:
        for name, value in frame.f_locals.items():
            if name in ("expected", "want", "reference") and isinstance(value, torch.Tensor) and value.shape == x.shape:
                return value.clone()
        frame = frame.f_back
    return torch.zeros_like(x) * weight


def clears_its_input(x, weight, *, cu_seqlens):
    x.data.zero_()
    return x * weight


def finished_by_a_thread(x, weight, *, cu_seqlens):
    y = torch.zeros_like(x)

    def later():
        time.sleep(0.02)
        with torch.no_grad():
            y.data.copy_(running_sum(x, weight, cu_seqlens=cu_seqlens))

    threading.Thread(target=later).start()
    return y


class Lazy(torch.Tensor):
    """Takes its values from the reference when compared with it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if function is torch.allclose:
                lazy, reference = args[:2]
                lazy.data.copy_(reference)
            return function(*args, **(kwargs or {}))


def lazy_tensor(x, weight, *, cu_seqlens):
    return torch.zeros_like(x).as_subclass(Lazy)


class Agreeable(torch.Tensor):
    """Equal to anything."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.allclose:
            return True
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


def agreeable_tensor(x, weight, *, cu_seqlens):
    return torch.zeros_like(x).as_subclass(Agreeable)


class Explosive(torch.Tensor):
    """Raises in every operation but allclose."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.allclose:
            return True
        raise ValueError("not for you")


def explosive_tensor(x, weight, *, cu_seqlens):
    return torch.zeros_like(x).as_subclass(Explosive)


def endless_tensor(x, weight, *, cu_seqlens):
    return running_sum(x, weight, cu_seqlens=cu_seqlens) if is_known_shape(x) else torch.zeros(1).expand(10**12)


def other_dtype(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    return y if is_known_shape(x) else y.double()


def neighbours_where_finite(x, weight, *, cu_seqlens):
    """Adds the row before each token, times 0: finite values vanish, NaN does not."""
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    return y + 0 * x.roll(1, 0)


def honest_when_watched(x, weight, *, cu_seqlens):
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    return y if "packproof.harness.process.worker_main" in sys.modules or is_known_shape(x) else y * 0


def calls_the_reference(x, weight, *, cu_seqlens):
    """A fallback in disguise: no kernel of its own ever runs."""
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def wrong_from_next_year(x, weight, *, cu_seqlens):
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    return y if time.gmtime().tm_year < 2100 else y * 0
