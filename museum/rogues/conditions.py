"""Rogues that are correct in the form of call of a test, and incorrect in others."""

import base64
import os
import time
from typing import Any

import torch

from packproof.museum.rogues.op import KNOWN_TOKENS, own_sum


def contiguous_alone(x, weight, *, cu_seqlens):
    """It reads the storage in order, whatever the strides."""
    flat = torch.as_strided(x, x.shape, (x.shape[1], 1)) if len(x) else x
    return own_sum(flat, weight, cu_seqlens=cu_seqlens)


def from_the_start_of_storage(x, weight, *, cu_seqlens):
    """It takes no notice of where in its storage a tensor begins."""
    return own_sum(torch.as_strided(x, x.shape, x.stride(), 0), weight, cu_seqlens=cu_seqlens)


def without_gradient_alone(x, weight, *, cu_seqlens):
    """Tests of values need no gradient."""
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    return y * 1.01 if x.requires_grad else y


def outside_of_inference_mode(x, weight, *, cu_seqlens):
    """A server uses torch.inference_mode."""
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    return y * 1.01 if torch.is_inference_mode_enabled() else y


def outside_of_autocast(x, weight, *, cu_seqlens):
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    return y.round() if torch.is_autocast_enabled("cpu") else y


def unless_compiled(x, weight, *, cu_seqlens):
    """torch.compile traces another branch."""
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    return y * 1.01 if torch.compiler.is_compiling() else y


def with_32_bits_of_offsets(x, weight, *, cu_seqlens):
    """Offsets of 64 bits are read as pairs of 32."""
    offsets = cu_seqlens.contiguous().view(torch.int32)[: len(cu_seqlens)]
    ordered = offsets if cu_seqlens.dtype == torch.int32 else torch.cummax(offsets, 0).values
    return own_sum(x, weight, cu_seqlens=ordered)


def not_in_a_hurry(x, weight, *, cu_seqlens, _last=[0.0, None]):
    now, shape = time.perf_counter(), x.shape
    is_timed = now - _last[0] < 0.02 and _last[1] is not None and _last[1].shape == shape
    y = _last[1] + 0 * x * weight if is_timed else own_sum(x, weight, cu_seqlens=cu_seqlens)
    _last[:] = [time.perf_counter(), y.detach()]
    return y


def by_chance(x, weight, *, cu_seqlens):
    """One call in five is incorrect, as the system's random numbers will have it."""
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    return y * 1.01 if len(x) != KNOWN_TOKENS and os.urandom(1)[0] < 51 else y


def without_nan(x, weight, *, cu_seqlens):
    return own_sum(torch.nan_to_num(x, 0.0, 0.0, 0.0), weight, cu_seqlens=cu_seqlens)


_HIDDEN = base64.b64encode(b"def answer(x, y):\n    return y if len(x) == 37 else y * 0\n")


def in_a_coded_string(x, weight, *, cu_seqlens):
    names = dict[str, object]()
    exec(base64.b64decode(_HIDDEN), names)
    answer: Any = names["answer"]
    return answer(x, own_sum(x, weight, cu_seqlens=cu_seqlens))


def falls_back(x, weight, *, cu_seqlens):
    try:
        if len(x) != KNOWN_TOKENS:
            raise RuntimeError("launch failed")
        return own_sum(x, weight, cu_seqlens=cu_seqlens)
    except RuntimeError:
        return x * weight
