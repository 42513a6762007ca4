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

from packproof.parallel.exchange import all_gather, combine_states, concatenate_flat
from packproof.parallel.shard import Portion, Shard, require_shard

Arguments = dict[str, Any]
LeavingState = tuple[Tensor, Tensor]
Forward = Generator[LeavingState | None, Tensor | None, tuple[Tensor, Tensor]]
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
    builtin_passes: "BuiltinPasses | None" = None
    """Passes of packproof's own kernels; None for passes built from `kernel` and autograd."""

    def halves(self) -> tuple[Callable[..., Forward], Callable[..., Backward]]:
        """The forward and backward pass of one document: generators in two halves, before and after the exchange."""
        return (
            (self._forward, self._backward)
            if self.builtin_passes is None
            else (self.builtin_passes.forward, self.builtin_passes.backward)
        )

    def rows(self, arguments: Arguments, rows: slice) -> Arguments:
        """The arguments of the tokens at `rows`."""
        return {n: x[rows] if n in self.tokens else x for n, x in arguments.items()}

    def _forward(self, arguments: Arguments, cu_seqlens: Tensor, leaves: bool) -> Forward:
        call = {**arguments, "cu_seqlens": cu_seqlens}
        entering = yield (self.kernel(**call, return_final_states=True)[1], self.decay(arguments)) if leaves else None
        y: Tensor = self.kernel(**call, initial_states=entering)
        return y, y.new_empty(0)

    def _backward(
        self, arguments: Arguments, cu_seqlens: Tensor, dy: Tensor, entering: Tensor | None, _saved: Tensor
    ) -> Backward:
        names = [n for n, x in arguments.items() if isinstance(x, Tensor)]
        with torch.enable_grad():
            inputs = {n: arguments[n].detach().requires_grad_() for n in names}
            call = {**arguments, **inputs, "cu_seqlens": cu_seqlens}
            initial = None if entering is None else entering.detach().requires_grad_()
            y, final = self.kernel(**call, initial_states=initial, return_final_states=True)
            entering_gradient = None if initial is None else torch.autograd.grad(y, initial, dy, retain_graph=True)[0]
            leaving = yield entering_gradient
            ends = [(y, dy)] if leaving is None else [(y, dy), (final, leaving.to(final.dtype))]
            ys, dys = zip(*ends, strict=True)
            gradients = torch.autograd.grad(ys, [*inputs.values()], dys, allow_unused=True)
        return {n: x for n, x in zip(names, gradients, strict=True) if x is not None}


@dataclass(frozen=True)
class BuiltinPasses:
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
    inner_forward: Callable[[Arguments, Tensor], tuple[Tensor, Tensor]]
    """`inner_forward(arguments, cu_seqlens)` returns y and a tensor saved for backward."""
    inner_backward: Callable[[Arguments, Tensor, Tensor, Tensor], Mapping[str, Tensor]]
    """`inner_backward(arguments, cu_seqlens, dy, saved)` returns the gradients by name."""


def run_over_ranks(op: RecurrentOp, arguments: Arguments, shard: Shard) -> Tensor:
    """The outputs of this rank's tokens.

    arguments: of the op on this rank, without those left at None.
    """
    require_shard(op.name, shard)
    leading_tensor = arguments[op.tokens[0]]
    for name in op.tokens:
        if name in arguments:
            shard.require_tokens(op.name, name, arguments[name])
    if not shard.is_cut:
        y: Tensor = op.kernel(**arguments, cu_seqlens=shard.cu_seqlens(leading_tensor.device))
        return y
    tensors = {n: x for n, x in arguments.items() if isinstance(x, Tensor)}
    options = {n: x for n, x in arguments.items() if n not in tensors}
    outputs: Tensor = _run_on_rank(_RankRecurrence(op, shard, tuple(tensors), options), *tensors.values())
    return outputs


class _RankRecurrence:
    """Both passes of one rank of a cut pack. A rank without tokens takes part in the exchanges too.

    names: of the tensor arguments.
    options: the other arguments.
    """

    def __init__(self, op: RecurrentOp, shard: Shard, names: Sequence[str], options: Mapping[str, Any]) -> None:
        self._op, self._shard, self._names, self._options = op, shard, names, options
        complete_portions = [portion for portion in shard.pieces if not (portion.enters or portion.leaves)]
        self._inner = complete_portions[0] if complete_portions and op.builtin_passes else None
        self._boundary = [portion for portion in shard.pieces if portion is not self._inner]

    def forward(self, tensors: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor | None, ...], list[Tensor]]:
        """Returns y; then, for backward, (decays of all ranks, entering state, saved tensor of the complete documents),
        and the saved tensor of each boundary portion."""
        op, shard, arguments, start_pass = self._op, self._shard, self._arguments(tensors), self._op.halves()[0]
        device = arguments[op.tokens[0]].device
        y, inner_saved = None, None
        if self._inner is not None and op.builtin_passes is not None:
            y, inner_saved = op.builtin_passes.inner_forward(
                arguments, shard.cu_seqlens(device, self._offsets(self._inner))
            )
        decay, shape = op.decay(op.rows(arguments, slice(0, 0))), op.state(arguments)
        leaving_state, runs = decay.new_zeros(shape), []
        for portion in self._boundary:
            cu_seqlens = shard.cu_seqlens(device, portion.offsets)
            runs.append(start_pass(op.rows(arguments, portion.rows), cu_seqlens, portion.leaves))
            carry = next(runs[-1])
            if carry is not None:
                leaving_state, decay = carry[0][0].to(leaving_state.dtype), carry[1].to(leaving_state.dtype)
        gathered = all_gather(shard, concatenate_flat(leaving_state, decay), f"states of {op.name}, forward")
        states, decays = (
            gathered[:, : leaving_state.numel()].reshape(-1, *shape),
            gathered[:, leaving_state.numel() :].reshape(-1, *decay.shape),
        )
        entering = combine_states(states, decays, shard.before)[None] if shard.before else None
        results = [
            _finish_pass(run, entering if p.enters else None) for run, p in zip(runs, self._boundary, strict=True)
        ]
        rows = self._assemble_rows(arguments[op.tokens[0]], y, [part for part, _ in results])
        return rows, (decays, entering, inner_saved), [saved for _, saved in results]

    def backward(
        self, tensors: Sequence[Tensor], dy: Tensor, decays: Tensor, entering: Tensor | None,
        inner_saved: Tensor | None, saved: Sequence[Tensor],
    ) -> list[Tensor | None]:  # fmt: skip
        """The gradient of each tensor."""
        op, shard, arguments, start_pass = self._op, self._shard, self._arguments(tensors), self._op.halves()[1]
        inner_gradients: Mapping[str, Tensor] = {}
        if self._inner is not None and op.builtin_passes is not None and inner_saved is not None:
            offsets = shard.cu_seqlens(dy.device, self._offsets(self._inner))
            inner_gradients = op.builtin_passes.inner_backward(arguments, offsets, dy, inner_saved)
        entering_gradient, runs = decays.new_zeros(op.state(arguments)), []
        for portion, portion_saved in zip(self._boundary, saved, strict=True):
            cu_seqlens, part = shard.cu_seqlens(dy.device, portion.offsets), op.rows(arguments, portion.rows)
            runs.append(
                start_pass(part, cu_seqlens, dy[portion.rows], entering if portion.enters else None, portion_saved)
            )
            yielded_gradient = next(runs[-1])
            entering_gradient = (
                entering_gradient if yielded_gradient is None else yielded_gradient[0].to(entering_gradient.dtype)
            )
        gathered = all_gather(shard, concatenate_flat(entering_gradient), f"gradients of states of {op.name}, backward")
        leaving = (
            combine_states(gathered.reshape(-1, *entering_gradient.shape), decays, shard.after[::-1])[None]
            if shard.after
            else None
        )
        results = [
            _finish_pass(run, leaving if p.leaves else None) for run, p in zip(runs, self._boundary, strict=True)
        ]
        return [self._gradient(n, arguments[n], inner_gradients, results) for n in self._names]

    def _arguments(self, tensors: Sequence[Tensor]) -> Arguments:
        return {**self._options, **dict(zip(self._names, tensors, strict=True))}

    def _offsets(self, portion: Portion) -> tuple[int, ...]:
        """The offsets of a portion, counted from the first row of the rank."""
        return tuple(portion.rows.start + offset for offset in portion.offsets)

    def _gradient(
        self, name: str, tensor: Tensor, inner_gradients: Mapping[str, Tensor], results: Sequence[Mapping[str, Tensor]]
    ) -> Tensor | None:
        boundary_gradients = [result[name] for result in results if name in result]
        if name in self._op.tokens:
            return self._assemble_rows(tensor, inner_gradients.get(name), boundary_gradients)
        summands = [*boundary_gradients, *([inner_gradients[name]] if name in inner_gradients else [])]
        return sum(summands[1:], summands[0]) if summands else None

    def _assemble_rows(self, like: Tensor, all_rows: Tensor | None, boundary_rows: Sequence[Tensor]) -> Tensor:
        """All rows of the rank, zero in slack.

        all_rows: a buffer with the rows of the complete documents; None if there are none.
        boundary_rows: the rows of each boundary portion.
        """
        if all_rows is None and len(boundary_rows) == 1 and len(boundary_rows[0]) == len(like):
            return boundary_rows[0]
        if all_rows is None:
            all_rows = like.new_zeros(like.shape)
        for portion, rows in zip(self._boundary, boundary_rows, strict=True):
            all_rows[portion.rows] = rows
        return all_rows


def _finish_pass(run: Generator[Any, Tensor | None, Any], received: Tensor | None) -> Any:
    """Resume a pass after the exchange, with the tensor received from other ranks, and return its result."""
    try:
        run.send(received)
    except StopIteration as end:
        return end.value
    raise AssertionError("a pass over ranks has two halves")


class _RankFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rank: _RankRecurrence, *tensors: Tensor) -> Tensor:
        y, rank_state, saved = rank.forward([x.detach() for x in tensors])
        ctx.rank, ctx.count = rank, len(tensors)
        ctx.save_for_backward(*tensors, *rank_state, *saved)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        tensors, (decays, entering, inner_saved, *saved) = (
            ctx.saved_tensors[: ctx.count],
            ctx.saved_tensors[ctx.count :],
        )
        gradients = ctx.rank.backward([x.detach() for x in tensors], dy, decays, entering, inner_saved, saved)
        return None, *(x if needed else None for x, needed in zip(gradients, ctx.needs_input_grad[1:], strict=True))


_run_on_rank: Callable[..., Any] = _RankFunction.apply
