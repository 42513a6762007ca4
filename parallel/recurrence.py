"""A recurrence over a pack that is cut over ranks: h_t = decay_t h_{t-1} + input_t, y_t linear in h_t.

Forward: each rank computes two things from its own tokens, starting from zero: the state at its end, and the product of
its decays. One all-gather shares both. Each rank then combines the states of earlier ranks into its entering state (a
scan over ranks, like the scan over chunks of Dao & Gu 2024, section 8.2).

Backward runs in the other direction: each rank computes the gradient of its entering state from its own outputs. One
all-gather shares it. Each rank combines the gradients of later ranks into the gradient of its leaving state. Nothing
else is exchanged.

A rank may hold one document from an earlier rank, then complete documents, then one document continued on a later rank.
The builtin kernels write the outputs and gradients of the complete documents in place; only the rows of the other two
are copied.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from packproof.parallel.exchange import all_gathered, combined, flat
from packproof.parallel.shard import Portion, Shard, require_shard

Arguments = dict[str, Any]
Left = tuple[Tensor, Tensor]
Forward = Generator[Left | None, Tensor | None, tuple[Tensor, Tensor]]
Backward = Generator[Tensor | None, Tensor | None, Mapping[str, Tensor]]


@dataclass(frozen=True)
class RecurrentOp:
    """A recurrent op, described for the exchange of its states between ranks."""

    name: str
    """Name of the op."""
    kernel: Callable[..., Any]
    """A function with the signature of the op in `packproof.refs`."""
    tokens: tuple[str, ...]
    """Names of the inputs along tokens. The outputs have the shape of the first."""
    state: Callable[[Arguments], tuple[int, ...]]
    """Returns the shape of one state, given the arguments."""
    decay: Callable[[Arguments], Tensor]
    """Returns the product of the decays of all tokens, in fp32 or fp64. Its axes are leading axes of a state."""
    own: "OwnPasses | None" = None
    """Passes of packproof's own kernels; None for passes built from `kernel` and autograd."""

    def halves(self) -> tuple[Callable[..., Forward], Callable[..., Backward]]:
        """The forward and backward pass of one document: generators in two halves, before and after the exchange."""
        return (self._forward, self._backward) if self.own is None else (self.own.forward, self.own.backward)

    def rows(self, arguments: Arguments, rows: slice) -> Arguments:
        """The arguments of the tokens at `rows`."""
        return {n: x[rows] if n in self.tokens else x for n, x in arguments.items()}

    def _forward(self, arguments: Arguments, cu_seqlens: Tensor, leaves: bool) -> Forward:
        call = {**arguments, "cu_seqlens": cu_seqlens}
        entering = yield (self.kernel(**call, return_final_states=True)[1], self.decay(arguments)) if leaves else None
        y: Tensor = self.kernel(**call, initial_states=entering)
        return y, y.new_empty(0)

    def _backward(
        self, arguments: Arguments, cu_seqlens: Tensor, dy: Tensor, entering: Tensor | None, _kept: Tensor
    ) -> Backward:
        names = [n for n, x in arguments.items() if isinstance(x, Tensor)]
        with torch.enable_grad():
            given = {n: arguments[n].detach().requires_grad_() for n in names}
            call = {**arguments, **given, "cu_seqlens": cu_seqlens}
            initial = None if entering is None else entering.detach().requires_grad_()
            y, final = self.kernel(**call, initial_states=initial, return_final_states=True)
            found = None if initial is None else torch.autograd.grad(y, initial, dy, retain_graph=True)[0]
            leaving = yield found
            ends = [(y, dy)] if leaving is None else [(y, dy), (final, leaving.to(final.dtype))]
            ys, dys = zip(*ends, strict=True)
            gradients = torch.autograd.grad(ys, [*given.values()], dys, allow_unused=True)
        return {n: x for n, x in zip(names, gradients, strict=True) if x is not None}


@dataclass(frozen=True)
class OwnPasses:
    """The passes of packproof's own kernels on one rank.

    `forward` and `backward` handle a document shared with another rank. Each is a generator in two halves, so that
    values computed before the exchange are not computed again after it. The two `inner` passes handle the documents
    held by this rank alone. Their offsets may begin after row 0; rows before the first offset are undefined.
    """

    forward: Callable[[Arguments, Tensor, bool], Forward]
    """`forward(arguments, cu_seqlens, leaves)` yields the leaving state (1, ...), computed from zero, and the decay, or
    None if the document ends here. It receives the entering state; it returns y and a tensor saved for backward."""
    backward: Callable[[Arguments, Tensor, Tensor, Tensor | None, Tensor], Backward]
    """`backward(arguments, cu_seqlens, dy, entering, saved)` yields the gradient of the entering state. It receives the
    gradient of the leaving state; it returns the gradients by name."""
    inside: Callable[[Arguments, Tensor], tuple[Tensor, Tensor]]
    """`inner_forward(arguments, cu_seqlens)` returns y and a tensor saved for backward."""
    inside_backward: Callable[[Arguments, Tensor, Tensor, Tensor], Mapping[str, Tensor]]
    """`inner_backward(arguments, cu_seqlens, dy, saved)` returns the gradients by name."""


def over_ranks(op: RecurrentOp, arguments: Arguments, shard: Shard) -> Tensor:
    """The outputs of this rank's tokens.

    arguments: of the op on this rank, without those left at None.
    """
    require_shard(op.name, shard)
    first = arguments[op.tokens[0]]
    for name in op.tokens:
        if name in arguments:
            shard.require_tokens(op.name, name, arguments[name])
    if not shard.is_cut:
        y: Tensor = op.kernel(**arguments, cu_seqlens=shard.cu_seqlens(first.device))
        return y
    tensors = {n: x for n, x in arguments.items() if isinstance(x, Tensor)}
    others = {n: x for n, x in arguments.items() if n not in tensors}
    found: Tensor = _on_a_rank(_Rank(op, shard, tuple(tensors), others), *tensors.values())
    return found


class _Rank:
    """Both passes of one rank of a cut pack. A rank without tokens takes part in the exchanges too.

    names: of the tensor arguments.
    options: the other arguments.
    """

    def __init__(self, op: RecurrentOp, shard: Shard, names: Sequence[str], others: Mapping[str, Any]) -> None:
        self._op, self._shard, self._names, self._others = op, shard, names, others
        whole = [portion for portion in shard.pieces if not (portion.enters or portion.leaves)]
        self._inside = whole[0] if whole and op.own else None
        self._apart = [portion for portion in shard.pieces if portion is not self._inside]

    def forward(self, tensors: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor | None, ...], list[Tensor]]:
        """Returns y; then, for backward, (decays of all ranks, entering state, saved tensor of the complete documents),
        and the saved tensor of each boundary portion."""
        op, shard, given, begin = self._op, self._shard, self._arguments(tensors), self._op.halves()[0]
        device = given[op.tokens[0]].device
        y, inside = None, None
        if self._inside is not None and op.own is not None:
            y, inside = op.own.inside(given, shard.cu_seqlens(device, self._offsets(self._inside)))
        decay, shape = op.decay(op.rows(given, slice(0, 0))), op.state(given)
        left, runs = decay.new_zeros(shape), []
        for portion in self._apart:
            cu_seqlens = shard.cu_seqlens(device, portion.offsets)
            runs.append(begin(op.rows(given, portion.rows), cu_seqlens, portion.leaves))
            found = next(runs[-1])
            if found is not None:
                left, decay = found[0][0].to(left.dtype), found[1].to(left.dtype)
        every = all_gathered(shard, flat(left, decay), f"states of {op.name}, forward")
        states, decays = (
            every[:, : left.numel()].reshape(-1, *shape),
            every[:, left.numel() :].reshape(-1, *decay.shape),
        )
        entering = combined(states, decays, shard.before)[None] if shard.before else None
        ended = [_ended(run, entering if p.enters else None) for run, p in zip(runs, self._apart, strict=True)]
        rows = self._along(given[op.tokens[0]], y, [part for part, _ in ended])
        return rows, (decays, entering, inside), [kept for _, kept in ended]

    def backward(
        self, tensors: Sequence[Tensor], dy: Tensor, decays: Tensor, entering: Tensor | None, inside: Tensor | None,
        kept: Sequence[Tensor],
    ) -> list[Tensor | None]:  # fmt: skip
        """The gradient of each tensor."""
        op, shard, given, begin = self._op, self._shard, self._arguments(tensors), self._op.halves()[1]
        of_inside: Mapping[str, Tensor] = {}
        if self._inside is not None and op.own is not None and inside is not None:
            offsets = shard.cu_seqlens(dy.device, self._offsets(self._inside))
            of_inside = op.own.inside_backward(given, offsets, dy, inside)
        of_entering, runs = decays.new_zeros(op.state(given)), []
        for portion, ends in zip(self._apart, kept, strict=True):
            cu_seqlens, part = shard.cu_seqlens(dy.device, portion.offsets), op.rows(given, portion.rows)
            runs.append(begin(part, cu_seqlens, dy[portion.rows], entering if portion.enters else None, ends))
            found = next(runs[-1])
            of_entering = of_entering if found is None else found[0].to(of_entering.dtype)
        every = all_gathered(shard, flat(of_entering), f"gradients of states of {op.name}, backward")
        leaving = (
            combined(every.reshape(-1, *of_entering.shape), decays, shard.after[::-1])[None] if shard.after else None
        )
        ended = [_ended(run, leaving if p.leaves else None) for run, p in zip(runs, self._apart, strict=True)]
        return [self._gradient(n, given[n], of_inside, ended) for n in self._names]

    def _arguments(self, tensors: Sequence[Tensor]) -> Arguments:
        return {**self._others, **dict(zip(self._names, tensors, strict=True))}

    def _offsets(self, portion: Portion) -> tuple[int, ...]:
        """The offsets of a portion, counted from the first row of the rank."""
        return tuple(portion.rows.start + offset for offset in portion.offsets)

    def _gradient(
        self, name: str, given: Tensor, of_inside: Mapping[str, Tensor], ended: Sequence[Mapping[str, Tensor]]
    ) -> Tensor | None:
        apart = [found[name] for found in ended if name in found]
        if name in self._op.tokens:
            return self._along(given, of_inside.get(name), apart)
        every = [*apart, *([of_inside[name]] if name in of_inside else [])]
        return sum(every[1:], every[0]) if every else None

    def _along(self, like: Tensor, whole: Tensor | None, apart: Sequence[Tensor]) -> Tensor:
        """All rows of the rank, zero in slack.

        all_rows: a buffer with the rows of the complete documents; None if there are none.
        boundary_rows: the rows of each boundary portion.
        """
        if whole is None and len(apart) == 1 and len(apart[0]) == len(like):
            return apart[0]
        if whole is None:
            whole = like.new_zeros(like.shape)
        for portion, rows in zip(self._apart, apart, strict=True):
            whole[portion.rows] = rows
        return whole


def _ended(run: Generator[Any, Tensor | None, Any], sent: Tensor | None) -> Any:
    """Resume a pass after the exchange, with the tensor received from other ranks, and return its result."""
    try:
        run.send(sent)
    except StopIteration as end:
        return end.value
    raise AssertionError("a pass over ranks has two halves")


class _OnARank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rank: _Rank, *tensors: Tensor) -> Tensor:
        y, carried, kept = rank.forward([x.detach() for x in tensors])
        ctx.rank, ctx.count = rank, len(tensors)
        ctx.save_for_backward(*tensors, *carried, *kept)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        tensors, (decays, entering, inside, *kept) = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        found = ctx.rank.backward([x.detach() for x in tensors], dy, decays, entering, inside, kept)
        return None, *(x if needed else None for x, needed in zip(found, ctx.needs_input_grad[1:], strict=True))


_on_a_rank: Callable[..., Any] = _OnARank.apply
