"""A recurrence over a pack that is cut over ranks: h_t = decay_t h_{t-1} + input_t, y_t linear in h_t.

A rank finds the state that its own tokens leave, from zero, and the product of their decays; an all-gather tells both
to all, and each rank combines those before it into the state that enters it (a scan over ranks, as Mamba-2's paper has
it for chunks: Dao & Gu 2024, section 8.2). The gradient of the state goes the other way: a rank finds that of the state
that enters it, as far as its own outputs reach, and combines those after it into the gradient of the state that leaves.
With both at its ends a rank computes what one rank would: nothing else is exchanged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from packproof.parallel.exchange import all_gathered, combined, flat
from packproof.parallel.shard import Portion, Shard

Arguments = dict[str, Any]


@dataclass(frozen=True)
class RecurrentOp:
    """An op as ranks need it.

    op: its name. kernel: called as the op of `packproof.refs`. tokens: the inputs along tokens, of which outputs have
    the shape of the first. state: the shape of one state, from the arguments. decay: the product of the decays of a
    piece, from its arguments, of axes with which a state begins. final_state: the state (1, ...) that a piece leaves,
    from zero. entering: the gradient of the state that enters a piece, from its arguments and the gradient of y.
    """

    op: str
    kernel: Callable[..., Any]
    tokens: tuple[str, ...]
    state: Callable[[Arguments], tuple[int, ...]]
    decay: Callable[[Arguments], Tensor]
    final_state: Callable[[Arguments, Tensor], Tensor] | None = None
    entering: Callable[[Arguments, Tensor, Tensor], Tensor] | None = None

    def piece(self, arguments: Arguments, piece: Portion) -> Arguments:
        """The arguments with the rows of one piece."""
        return {n: x[piece.rows] if n in self.tokens else x for n, x in arguments.items()}

    def found_final_state(self, arguments: Arguments, cu_seqlens: Tensor) -> Tensor:
        if self.final_state is not None:
            return self.final_state(arguments, cu_seqlens)
        final: Tensor = self.kernel(**arguments, cu_seqlens=cu_seqlens, return_final_states=True)[1]
        return final

    def found_entering(self, arguments: Arguments, cu_seqlens: Tensor, dy: Tensor) -> Tensor:
        if self.entering is not None:
            return self.entering(arguments, cu_seqlens, dy)
        dtype = torch.promote_types(dy.dtype, torch.float32)
        with torch.enable_grad():
            zero = dy.new_zeros((1, *self.state(arguments)), dtype=dtype, requires_grad=True)
            y = self.kernel(**arguments, cu_seqlens=cu_seqlens, initial_states=zero)
            return torch.autograd.grad(y, zero, dy)[0]


def over_ranks(recurrence: RecurrentOp, arguments: Arguments, shard: Shard) -> Tensor:
    """The outputs of the rank's tokens. arguments: those of the op on this rank, without what is None."""
    first = arguments[recurrence.tokens[0]]
    for name in recurrence.tokens:
        if name in arguments:
            shard.require_tokens(recurrence.op, name, arguments[name])
    entering, decays = _entering_state(recurrence, arguments, shard) if shard.is_cut else (None, None)
    ys, leaving, tokens = [], None, _split(recurrence, arguments, shard)
    for k, piece in enumerate(shard.pieces):
        given = {"initial_states": entering} if piece.enters else {}
        found = recurrence.kernel(
            **{**arguments, **{n: parts[k] for n, parts in tokens.items()}},
            **given,
            cu_seqlens=shard.cu_seqlens(first.device, piece.offsets),
            **({"return_final_states": True} if piece.leaves else {}),
        )
        y, leaving = found if piece.leaves else (found, None)
        ys.append(y)
    slack = first[shard.tokens :]
    if len(slack) or not ys:
        ys.append(slack * 0)
    y = ys[0] if len(ys) == 1 else torch.cat(ys)
    if decays is None or not y.requires_grad:
        return y
    names = [n for n, x in arguments.items() if isinstance(x, Tensor)]
    others = {n: x for n, x in arguments.items() if n not in names}
    tensors = [arguments[n] for n in names]
    result: Tensor = _gradient_of_states(y, leaving, recurrence, shard, decays, names, others, *tensors)
    return result


def _split(recurrence: RecurrentOp, arguments: Arguments, shard: Shard) -> dict[str, tuple[Tensor, ...]]:
    """The tensors along tokens by pieces: at once, since each slice of its own would have a gradient of the whole."""
    given = {n: arguments[n] for n in recurrence.tokens if n in arguments}
    sizes = [piece.rows.stop - piece.rows.start for piece in shard.pieces]
    if sizes == [len(arguments[recurrence.tokens[0]])]:
        return {n: (x,) for n, x in given.items()}
    return {n: x.split([*sizes, len(x) - sum(sizes)]) for n, x in given.items()}


def _entering_state(recurrence: RecurrentOp, arguments: Arguments, shard: Shard) -> tuple[Tensor | None, Tensor]:
    """The state (1, ...) that enters this rank, None where none does, and the decays of all ranks."""
    first, shape = arguments[recurrence.tokens[0]], recurrence.state(arguments)
    with torch.no_grad():
        fixed = {n: x.detach() if isinstance(x, Tensor) else x for n, x in arguments.items()}
        decay = recurrence.decay({n: x[:0] if n in recurrence.tokens else x for n, x in fixed.items()})
        state = decay.new_zeros(shape)
        if shard.pieces:
            piece = shard.pieces[-1]
            if piece.leaves:
                mine = recurrence.piece(fixed, piece)
                offsets = shard.cu_seqlens(first.device, piece.offsets)
                state = recurrence.found_final_state(mine, offsets)[0].to(decay.dtype)
            if shard.pieces[0].enters:
                decay = recurrence.decay(recurrence.piece(fixed, shard.pieces[0]))
        every = all_gathered(shard, flat(state, decay), f"states of {recurrence.op}, forward")
        states = every[:, : state.numel()].reshape(-1, *shape)
        decays = every[:, state.numel() :].reshape(-1, *decay.shape)
        return combined(states, decays, shard.before)[None] if shard.before else None, decays


class _GradientOfStates(torch.autograd.Function):
    """y as it is; in backward the gradient of the state that leaves the rank, on its way to the kernel."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, leaving: Tensor | None, recurrence: RecurrentOp, shard: Shard, decays: Tensor,
        names: Sequence[str], others: Mapping[str, Any], *tensors: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.recurrence, ctx.shard, ctx.names, ctx.others = recurrence, shard, names, others
        ctx.state = None if leaving is None else leaving.dtype
        ctx.save_for_backward(decays, *tensors)
        return y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        recurrence, shard = ctx.recurrence, ctx.shard
        decays, *tensors = ctx.saved_tensors
        arguments = {**ctx.others, **{n: x.detach() for n, x in zip(ctx.names, tensors, strict=True)}}
        shape = recurrence.state(arguments)
        entering = decays.new_zeros(shape)
        if shard.enters:
            piece = shard.pieces[0]
            mine, offsets = recurrence.piece(arguments, piece), shard.cu_seqlens(dy.device, piece.offsets)
            entering = recurrence.found_entering(mine, offsets, dy[piece.rows])[0].to(decays.dtype)
        every = all_gathered(shard, flat(entering), f"gradients of states of {recurrence.op}, backward")
        leaving = None
        if shard.after:
            gradients = every.reshape(-1, *shape)
            leaving = combined(gradients, decays, shard.after[::-1])[None].to(ctx.state)
        return dy, leaving, *[None] * (5 + len(tensors))


_gradient_of_states: Callable[..., Any] = _GradientOfStates.apply
