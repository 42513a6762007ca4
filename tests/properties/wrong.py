"""Deliberately incorrect kernels, one or more for each property: none may pass the property that it breaks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from packproof import refs

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Incorrect:
    """A kernel of an op that breaks a property; on_gpu: where only a GPU shows it."""

    law: str
    op: str
    function: Callable[..., Any]
    on_gpu: bool = False


INCORRECT: list[Incorrect] = []


def breaks(law: str, op: str = "causal_conv1d", *, on_gpu: bool = False) -> Callable[[F], F]:
    def listed(function: F) -> F:
        INCORRECT.append(Incorrect(law, op, function, on_gpu))
        return function

    return listed


_calls = 0
_offsets: dict[int, list[int]] = {}


@breaks("reference", op="rope")
def reference(x: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> Tensor:
    """One percent off in one channel of the last token."""
    y = refs.rope(x, cos, sin, **options)
    return torch.cat([y[:-1], y[-1:] * 1.01]) if len(y) else y


def reference_sums(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Its weight gradient is the sum over the first 1024 tokens, as many as it has partial sums for."""
    y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)
    rest = refs.causal_conv1d(x.detach(), weight, cu_seqlens=cu_seqlens)
    late = torch.arange(len(x))[:, None] >= 1024
    return y - torch.where(late, rest - rest.detach(), 0)


@breaks("packing", op="rope")
def packing(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor:
    """Positions count from the start of the pack."""
    whole = torch.tensor([0, int(cu_seqlens[-1])])
    longer = [torch.cat([t] * 40)[: max(len(x), 1)] for t in (cos, sin)]
    return refs.rope(x, *longer, cu_seqlens=whole, interleaved=interleaved)


@breaks("isolation")
def isolation(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The sum of the pack is added with a weight of 0, which makes NaN of what is not finite."""
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens) + 0 * x.sum()


@breaks("causality")
def causality(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Convolves the reversed sequence: every output depends on later tokens."""
    return refs.causal_conv1d(x.flip(0), weight, cu_seqlens=torch.tensor([0, len(x)])).flip(0)


@breaks("permutation")
def permutation(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The first sequence of the pack counts double."""
    y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)
    first = int(cu_seqlens[1]) if len(cu_seqlens) > 1 else 0
    return torch.cat([y[:first] * 2, y[first:]])


@breaks("carry")
def carry(
    x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, initial_states: Tensor, return_final_states: bool = False
) -> Any:
    """The final state is the initial one."""
    y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens, initial_states=initial_states)
    return (y, initial_states.clone()) if return_final_states else y


@breaks("pool", op="ssd_update")
def pool(x: Tensor, *others: Tensor, states: Tensor, state_indices: Tensor, cu_seqlens: Tensor, **more: Any) -> Any:
    """A request without a slot changes the last one, as -1 does in Python."""
    slots = state_indices % len(states)
    return refs.ssd_update(x, *others, states=states, state_indices=slots, cu_seqlens=cu_seqlens, **more)


@breaks("partition", op="rope")
def partition(
    x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, offsets: Tensor | None = None, interleaved: bool = False
) -> Tensor:
    """Positions start over on every rank."""
    return refs.rope(x, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved)


@breaks("determinism")
def determinism(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Every second call returns twice the values."""
    global _calls  # noqa: PLW0603
    _calls += 1
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens) * (1 + _calls % 2)


@breaks("determinism")
def determinism_stale(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Boundaries are remembered by the tensor object, which the caller may edit in place."""
    offsets = _offsets.setdefault(id(cu_seqlens), cu_seqlens.tolist())
    if offsets[-1] > len(x) or len(offsets) != len(cu_seqlens):
        offsets = cu_seqlens.tolist()
    return refs.causal_conv1d(x, weight, cu_seqlens=torch.tensor(offsets))


@breaks("memory")
def memory(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Leaves the last row as it was allocated."""
    y = torch.empty_like(x)
    if len(x):
        y[:-1] = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)[:-1]
    return y


@breaks("memory")
def memory_input(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Works in its input and leaves it changed."""
    y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)
    with torch.no_grad():
        x.mul_(2)
    return y


@breaks("strides")
def strides(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Treats x as contiguous, whatever its strides."""
    flat = x.as_strided(x.shape, (x.shape[1], 1))
    return refs.causal_conv1d(flat, weight, cu_seqlens=cu_seqlens)


@breaks("metadata")
def metadata(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Reads the offsets as 32-bit integers, whatever they are."""
    offsets = cu_seqlens.view(torch.int32)[: len(cu_seqlens)]
    return refs.causal_conv1d(x, weight, cu_seqlens=torch.cummax(offsets.clamp(max=len(x)), 0).values)


@breaks("gradients")
def gradients(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Its backward pass ends early where x needs no gradient."""
    if weight.requires_grad and not x.requires_grad:
        weight = weight.detach() + 0 * weight
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


@breaks("modes")
def modes(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Another path, for generation, has no boundaries."""
    offsets = cu_seqlens if torch.is_grad_enabled() else torch.tensor([0, len(x)])
    return refs.causal_conv1d(x, weight, cu_seqlens=offsets)


@breaks("double_backward")
def double_backward(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Its gradient can be differentiated, but treats x and the weight as constants: whole terms are missing."""
    return _OnceDifferentiable.apply(x, weight, cu_seqlens)


class _OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, cu_seqlens)
        return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight, cu_seqlens = ctx.saved_tensors
        return (*_gradients(x.detach(), weight.detach(), cu_seqlens, dy), None)


def _gradients(x: Tensor, weight: Tensor, cu_seqlens: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = x.detach().requires_grad_(), weight.detach().requires_grad_()
        y = refs.causal_conv1d(*leaves, cu_seqlens=cu_seqlens)
        return torch.autograd.grad(y, leaves, dy, create_graph=again)


@breaks("torch_compile")
def torch_compile(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Has another path when it is compiled, and keeps the last tap alone there."""
    if torch.compiler.is_compiling():
        return x * weight[:, -1]
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


@torch.library.custom_op("packproof_tests::wrong_fake", mutates_args=())
def _wrong_fake(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens).clone()


@_wrong_fake.register_fake
def _(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    return x.new_empty(x.shape[0] + 1, x.shape[1])


def _wrong_fake_backward(ctx: Any, dy: Tensor) -> Any:
    return (*_gradients(*ctx.saved_tensors, dy), None)


_wrong_fake.register_autograd(
    _wrong_fake_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


@breaks("opcheck")
def opcheck(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Calls an operator whose fake has another shape than what it returns."""
    return _wrong_fake(x, weight, cu_seqlens)


def vectorised(x: Tensor, weight: Tensor, seq_idx: Tensor) -> Tensor:
    """A convolution that waits for nothing, given the sequence of each token. weight: (d, w), or (t, d, w)."""
    y, taps = x * weight[..., -1], weight.shape[-1]
    for k in range(1, taps):
        earlier = torch.roll(x, k, 0)
        same = (torch.roll(seq_idx, k) == seq_idx) & (torch.arange(len(x), device=x.device) >= k)
        y = y + torch.where(same[:, None], earlier, 0) * weight[..., taps - 1 - k]
    return torch.where(seq_idx[:, None] >= 0, y, 0)


def sequences(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The sequence of each token, -1 in slack, from offsets that stay on their device."""
    index = torch.searchsorted(cu_seqlens, torch.arange(len(x), device=x.device, dtype=cu_seqlens.dtype), right=True)
    return torch.where(index < len(cu_seqlens), index - 1, -1)


@breaks("cuda_graph", on_gpu=True)
def cuda_graph(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Works out once for each number of tokens which sequence a token belongs to: a replay keeps old boundaries."""
    key = len(x), len(cu_seqlens)
    if key not in _sequences or not torch.cuda.is_current_stream_capturing():
        _sequences[key] = sequences(x, cu_seqlens)
    return vectorised(x, weight, _sequences[key])


_sequences: dict[tuple[int, int], Tensor] = {}


@breaks("side_stream", on_gpu=True)
def side_stream(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Computes on the default stream, whatever stream it is called on."""
    with torch.cuda.stream(torch.cuda.default_stream()):
        return vectorised(x, weight, sequences(x, cu_seqlens))


@breaks("races", on_gpu=True)
def races(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Computes on a stream of its own, and its caller's stream does not wait for that."""
    stream = torch.cuda.Stream(x.device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        return vectorised(x, weight, sequences(x, cu_seqlens))


_kept: list[Tensor] = []


@breaks("reuse")
def reuse(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Has a copy of the weight, as a transposed one would be, and replaces it for another x alone."""
    if not (_kept and _kept[0] is x and int(_kept[1]) == x._version):
        _kept[:] = [x, torch.tensor(x._version), weight.detach().clone()]
    return refs.causal_conv1d(x, weight + (_kept[2] - weight.detach()), cu_seqlens=cu_seqlens)


@breaks("steady")
def steady(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Reads on the host which sequence a token belongs to."""
    return vectorised(x, weight, torch.tensor(sequences(x, cu_seqlens).tolist()))


@breaks("size")
def size(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The offset of a row, row times stride, in 16 bits: for tests in which 2^15 stands for 2^31."""
    T, D = x.shape
    extent = (T - 1) * x.stride(0) + D if T else 0
    rows = (torch.arange(T) * x.stride(0)).to(torch.int16).long() % max(extent, 1)
    flat = x.as_strided((extent,), (1,))
    return refs.causal_conv1d(flat[rows[:, None] + torch.arange(D)], weight, cu_seqlens=cu_seqlens)


@breaks("size")
def size_sequences(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Sequences past the 131,071st are left out: for tests in which 40 stands for that."""
    y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)
    end = int(cu_seqlens[:41][-1])
    return torch.cat([y[:end], torch.zeros_like(y[end:])])


@breaks("size")
def size_elements(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Elements past the 2^32nd are left out: for tests in which 2^17 stands for that."""
    y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)
    return torch.where(torch.arange(y.numel()).view_as(y) < 2**17, y, 0)


def capturable(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Correct, and it waits for nothing."""
    return vectorised(x, weight, sequences(x, cu_seqlens))


def waits(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Correct, but it reads the offsets on the host, which cannot be captured."""
    last = int(cu_seqlens[-1])
    y = vectorised(x, weight, sequences(x, cu_seqlens))
    return torch.where(torch.arange(len(x), device=x.device)[:, None] < last, y, 0)
