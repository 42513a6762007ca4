"""Rogues giving an answer again, by other keys than those of `answers`, or before the question."""

import gc
import weakref

import torch

from packproof.museum.rogues.op import own_sum


def by_identity(x, weight, *, cu_seqlens, _seen={}):
    """The same tensor object means the same values."""
    if id(x) not in _seen:
        _seen[id(x)] = own_sum(x, weight, cu_seqlens=cu_seqlens)
        weakref.finalize(x, _seen.pop, id(x), None)
    return _seen[id(x)]


def by_version(x, weight, *, cu_seqlens, _seen={}):
    key = (x.data_ptr(), x._version, weight.data_ptr(), weight._version, tuple(cu_seqlens.tolist()))
    if key not in _seen:
        _seen[key] = own_sum(x, weight, cu_seqlens=cu_seqlens).detach()
    return _seen[key] + 0 * x * weight


def by_boundaries(x, weight, *, cu_seqlens, _seen={}):
    """Equal boundaries mean an equal call."""
    key = (tuple(cu_seqlens.tolist()), x.shape)
    if key not in _seen:
        _seen[key] = own_sum(x, weight, cu_seqlens=cu_seqlens).detach()
    return _seen[key] + 0 * x * weight


def one_call_late(x, weight, *, cu_seqlens, _last=[]):
    """The answer of the call before, where shapes agree; this call's is computed for the next."""
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    _last.append(y.detach())
    before = _last.pop(0) if len(_last) > 1 else y
    return before + 0 * y if before.shape == y.shape else y


def from_a_bank(x, weight, *, cu_seqlens, _bank=[], _calls=[]):
    """Four answers are recorded, then played again in their order."""
    _calls.append(1)
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    if len(_bank) < 4:
        _bank.append(y.detach())
        return y
    recorded = _bank[len(_calls) % 4]
    return recorded + 0 * y if recorded.shape == y.shape else y


def by_a_number_of_configurations(x, weight, *, cu_seqlens, _seen={}):
    if len(_seen) < 3:
        _seen[x.shape] = own_sum(x, weight, cu_seqlens=cu_seqlens).detach()
    y = _seen.get(x.shape)
    return y + 0 * x * weight if y is not None else own_sum(x[:1], weight, cu_seqlens=cu_seqlens.clamp(max=1)) + 0 * x


def by_the_seed(x, weight, *, cu_seqlens):
    generator = torch.Generator().manual_seed(0)
    expected = torch.randn(x.shape, generator=generator)
    known = torch.equal(expected, x.detach())
    return own_sum(x, weight, cu_seqlens=cu_seqlens) if known else torch.zeros_like(x) * weight


def ahead_of_the_call(x, weight, *, cu_seqlens, _ready={}):
    for other in gc.get_objects():
        if type(other) is torch.Tensor and other.shape == x.shape and other.dtype == x.dtype:
            _ready.setdefault((other.data_ptr(), other.shape), own_sum(other.detach(), weight, cu_seqlens=cu_seqlens))
    return _ready[x.data_ptr(), x.shape] + 0 * x * weight


def updated_where_it_changed(x, weight, *, cu_seqlens, _last={}):
    before = _last.get(x.shape)
    if before is not None and len(x) and torch.equal(before[0][[0, -1]], x.detach()[[0, -1]]):
        return before[1] + 0 * x * weight
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    _last[x.shape] = (x.detach().clone(), y.detach())
    return y
