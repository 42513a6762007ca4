"""A recurrence over a pack that is cut over ranks: h_t = decay_t h_{t-1} + input_t, y_t linear in h_t.

A rank finds the state that its own tokens leave, from zero, and the product of their decays; an all-gather tells both
to all, and each rank combines those before it into the state that enters it (a scan over ranks, as Mamba-2's paper has
it for chunks: Dao & Gu 2024, section 8.2). The gradient of the state goes the other way: a rank finds that of the state
that enters it, as far as its own outputs reach, and combines those after it into the gradient of the state that leaves.
With both at its ends a rank computes what one rank would: nothing else is exchanged.
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
    """An op as ranks need it.

    name: of the op. kernel: called as the op of `packproof.refs`. tokens: the inputs along tokens, of which outputs
    have the shape of the first. state: the shape of one state, from the arguments. decay: the product of the decays of
    some tokens, from their arguments, of axes with which a state begins, in fp32 or fp64.
    forward, backward: one document in two halves, so that what it computes before the exchange is not computed again.
    `forward(arguments, cu_seqlens, leaves)` yields the state (1, ...) that leaves, from zero, and the decay, if it goes
    on; is sent the state that enters, and returns y and what backward starts from. `backward(arguments, cu_seqlens, dy,
    entering, kept)` yields the gradient of the state that enters, is sent that of the one that leaves, and returns the
    gradients by name.
    """

    name: str
    kernel: Callable[..., Any]
    tokens: tuple[str, ...]
    state: Callable[[Arguments], tuple[int, ...]]
    decay: Callable[[Arguments], Tensor]
    forward: Callable[[Arguments, Tensor, bool], Forward] | None = None
    backward: Callable[[Arguments, Tensor, Tensor, Tensor | None, Tensor], Backward] | None = None

    def halves(self) -> tuple[Callable[..., Forward], Callable[..., Backward]]:
        """`forward` and `backward`, or what the kernel itself gives for them."""
        if self.forward is not None and self.backward is not None:
            return self.forward, self.backward
        return self._forward, self._backward

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


def over_ranks(op: RecurrentOp, arguments: Arguments, shard: Shard) -> Tensor:
    """The outputs of the rank's tokens. arguments: those of the op on this rank, without what is None."""
    require_shard(op.name, shard)
    first = arguments[op.tokens[0]]
    for name in op.tokens:
        if name in arguments:
            shard.require_tokens(op.name, name, arguments[name])
    parts, ys = _split(op, arguments, shard), dict[int, Tensor]()
    for k, portion in enumerate(shard.pieces):
        if not (portion.enters or portion.leaves):
            ys[k] = op.kernel(**parts[k], cu_seqlens=shard.cu_seqlens(first.device, portion.offsets))
    if shard.is_cut:
        ys |= _crossing(op, arguments, parts, shard)
    slack = parts[-1][op.tokens[0]]
    every = [ys[k] for k in sorted(ys)]
    return every[0] if len(every) == 1 and not len(slack) else torch.cat([*every, slack * 0])


def _split(op: RecurrentOp, arguments: Arguments, shard: Shard) -> list[Arguments]:
    """The arguments of each portion, and last those of the slack: at once, since each slice of its own would have a
    gradient of the whole."""
    along = {n: arguments[n] for n in op.tokens if n in arguments}
    sizes = [portion.rows.stop - portion.rows.start for portion in shard.pieces]
    rest = len(arguments[op.tokens[0]]) - sum(sizes)
    if len(sizes) == 1 and not rest:
        return [arguments, {**arguments, **{n: x[:0] for n, x in along.items()}}]
    cut = {n: x.split([*sizes, rest]) for n, x in along.items()}
    return [{**arguments, **{n: x[k] for n, x in cut.items()}} for k in range(len(sizes) + 1)]


def _crossing(op: RecurrentOp, arguments: Arguments, parts: Sequence[Arguments], shard: Shard) -> dict[int, Tensor]:
    """The outputs of the portions that come from another rank or go on there. A rank without any takes part too: what
    it is given has no tokens, and its gradient none either, but autograd then reaches the exchange of backward."""
    numbers = [k for k, portion in enumerate(shard.pieces) if portion.enters or portion.leaves]
    names = [n for n, x in arguments.items() if isinstance(x, Tensor)]
    others = {n: x for n, x in arguments.items() if n not in names}
    nothing = {**parts[-1], **{n: parts[-1][n][:0] for n in op.tokens if n in arguments}}
    given = [parts[k] for k in numbers] or [nothing]
    tensors = [part[n] for part in given for n in names]
    crossing = _Crossing(op, [shard.pieces[k] for k in numbers], names, others)
    ys = _crossed(crossing, shard, *tensors)
    return dict(zip(numbers or [len(shard.pieces)], ys, strict=True))


class _Crossing:
    """The portions of a rank that come from another or go on there: at most the first and the last.

    names: of the tensors that each of them has. others: arguments that are no tensors.
    """

    def __init__(
        self, op: RecurrentOp, portions: Sequence[Portion], names: Sequence[str], others: Mapping[str, Any]
    ) -> None:
        self._op, self.portions, self._names, self._others = op, portions, names, others

    def arguments(self, tensors: Sequence[Tensor]) -> list[Arguments]:
        """Those of each portion; of none, those of no tokens."""
        each = len(self._names)
        parts = [tensors[k : k + each] for k in range(0, len(tensors), each)]
        return [{**self._others, **dict(zip(self._names, part, strict=True))} for part in parts]

    def forward(
        self, tensors: Sequence[Tensor], shard: Shard
    ) -> tuple[list[Tensor], list[Tensor], Tensor | None, Tensor]:
        """y and what backward starts from, of each portion; the state that enters; the decays of all ranks."""
        op, given, begin = self._op, self.arguments(tensors), self._op.halves()[0]
        decay = op.decay({**given[0], **{n: given[0][n][:0] for n in op.tokens if n in given[0]}})
        left, shape = decay.new_zeros(op.state(given[0])), op.state(given[0])
        runs = []
        for arguments, portion in zip(given, self.portions, strict=False):
            device = arguments[op.tokens[0]].device
            runs.append(begin(arguments, shard.cu_seqlens(device, portion.offsets), portion.leaves))
            found = next(runs[-1])
            if found is not None:
                left, decay = found[0][0].to(left.dtype), found[1].to(left.dtype)
        every = all_gathered(shard, flat(left, decay), f"states of {op.name}, forward")
        states, decays = (
            every[:, : left.numel()].reshape(-1, *shape),
            every[:, left.numel() :].reshape(-1, *decay.shape),
        )
        entering = combined(states, decays, shard.before)[None] if shard.before else None
        ended = [
            _ended(run, entering if portion.enters else None) for run, portion in zip(runs, self.portions, strict=True)
        ]
        if not ended:
            return [given[0][op.tokens[0]] * 0], [left.new_empty(0)], None, decays
        return [y for y, _ in ended], [kept for _, kept in ended], entering, decays

    def backward(
        self, tensors: Sequence[Tensor], shard: Shard, dys: Sequence[Tensor], entering: Tensor | None,
        decays: Tensor, kept: Sequence[Tensor],
    ) -> list[Tensor | None]:  # fmt: skip
        """The gradient of each tensor."""
        op, given, begin = self._op, self.arguments(tensors), self._op.halves()[1]
        shape = op.state(given[0])
        of_entering, runs = decays.new_zeros(shape), []
        for arguments, portion, dy, ends in zip(given, self.portions, dys, kept, strict=False):
            offsets = shard.cu_seqlens(dy.device, portion.offsets)
            runs.append(begin(arguments, offsets, dy, entering if portion.enters else None, ends))
            found = next(runs[-1])
            of_entering = of_entering if found is None else found[0].to(of_entering.dtype)
        every = all_gathered(shard, flat(of_entering), f"gradients of states of {op.name}, backward")
        leaving = combined(every.reshape(-1, *shape), decays, shard.after[::-1])[None] if shard.after else None
        gradients = [
            _ended(run, leaving if portion.leaves else None) for run, portion in zip(runs, self.portions, strict=True)
        ]
        if not gradients:
            return [None] * len(tensors)
        return [found.get(n) for found in gradients for n in self._names]


def _ended(run: Generator[Any, Tensor | None, Any], sent: Tensor | None) -> Any:
    """What the second half returns, once it was sent what comes from other ranks."""
    try:
        run.send(sent)
    except StopIteration as end:
        return end.value
    raise AssertionError("a pass over ranks has two halves")


class _Crossed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, crossing: _Crossing, shard: Shard, *tensors: Tensor) -> tuple[Tensor, ...]:
        ys, kept, entering, decays = crossing.forward([x.detach() for x in tensors], shard)
        ctx.crossing, ctx.shard, ctx.count, ctx.enters = crossing, shard, len(tensors), entering is not None
        ctx.save_for_backward(*tensors, decays, *kept, *([entering] if entering is not None else []))
        return tuple(ys)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *dys: Tensor) -> Any:
        saved = ctx.saved_tensors
        tensors, decays, kept = saved[: ctx.count], saved[ctx.count], saved[ctx.count + 1 :]
        entering = kept[-1] if ctx.enters else None
        found = ctx.crossing.backward([x.detach() for x in tensors], ctx.shard, dys, entering, decays, kept)
        wanted = ctx.needs_input_grad[2:]
        return None, None, *(x if needed else None for x, needed in zip(found, wanted, strict=True))


_crossed: Callable[..., Any] = _Crossed.apply
