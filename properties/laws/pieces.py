"""A pack run in pieces with states handed on: values and gradients of the whole pack, and their budget."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from packproof.properties.bounds.budget import Budget
from packproof.properties.cases.sample import Sample, Span, total
from packproof.properties.kernel_under_test import KernelUnderTest, Tensors
from packproof.properties.tensor_key import TensorKey, gradient
from packproof.refs.axes import in_pool, role


@dataclass(frozen=True)
class Pieces:
    """A sample cut into pieces. The kernel is called with each piece, a pack of spans."""

    kernel: KernelUnderTest
    """The kernel to call."""
    sample: Sample
    """The whole pack."""
    cuts: Sequence[Sequence[Span]]
    """The spans of each piece. Every token is in one of them, every sequence in at least one."""
    note: str
    """A note for the text of faults."""

    @property
    def _state(self) -> tuple[str, str]:
        """Names of the entering and the leaving state, "" where the op has none."""
        return self.sample.op.handed_on or ("", "")

    @property
    def _differentiated(self) -> bool:
        return self.kernel.gradients and bool(self.sample.wrt)

    def _rows(self, spans: Sequence[Span]) -> list[int] | slice:
        """The rows of the states passed to a piece: of its sequences, or the whole pool."""
        return slice(None) if self.sample.op.pool else _sequences(spans)

    @cached_property
    def _forward(self) -> tuple[list[Sample], list[Tensors]]:
        """The pieces as samples with their entering states, and the runs that computed these states."""
        initial, final = self._state
        pieces, runs = [self.sample.piece(spans) for spans in self.cuts], []
        if initial:
            state = self.sample.inputs[initial].clone()
            for k, (piece, spans) in enumerate(zip(pieces, self.cuts, strict=True)):
                rows, later = self._rows(spans), {j for after in self.cuts[k + 1 :] for j in _sequences(after)}
                pieces[k] = dataclasses.replace(piece, inputs={**piece.inputs, initial: state[rows]})
                if not later.isdisjoint(_sequences(spans)) or not self._differentiated:
                    runs.append(self.kernel.run(pieces[k], gradients=False, note=self.note))
                    state[rows] = runs[-1][TensorKey(final)].to(state.dtype)
        elif not self._differentiated:
            runs = [self.kernel.run(piece, gradients=False, note=self.note) for piece in pieces]
        return pieces, runs

    @cached_property
    def _runs(self) -> list[Tensors]:
        """Values and gradients of every piece.

        The last piece runs first: the gradient of the states entering a piece is the incoming gradient of the piece
        before it.
        """
        pieces, runs = self._forward
        if not self._differentiated:
            return runs
        initial, final = self._state
        found, state = [], self.sample.cotangents[final].clone() if initial else torch.empty(0)
        for piece, spans in zip(reversed(pieces), reversed(self.cuts), strict=True):
            rows = self._rows(spans)
            incoming = {**piece.cotangents, **({final: state[rows]} if initial else {})}
            found.append(self.kernel.run(dataclasses.replace(piece, cotangents=incoming), note=self.note))
            if initial:
                state[rows] = found[-1][gradient(initial)].to(state.dtype)
        return found[::-1]

    def joined(self) -> Tensors:
        """Values and gradients of the whole pack, without slack; shared gradients are summed."""
        return {key: self._join(key, [run[key] for run in self._runs]) for key in self._runs[0]}

    def _join(self, key: TensorKey, parts: Sequence[Tensor]) -> Tensor:
        axes, (initial, _) = self.sample.axes[key.name], self._state
        kind = role(axes)
        if in_pool(axes):
            return parts[-1]
        if kind == "shared":
            return total(parts)
        if kind == "token":
            return self._tokens(parts)
        if not key.is_gradient:
            return self._states(parts, lambda _, last: last)
        return self._states(parts, lambda first, last: first if key.name == initial else first + last)

    def _tokens(self, parts: Sequence[Tensor]) -> Tensor:
        """Rows of the pieces in the order of the pack."""
        found: dict[tuple[int, int], Tensor] = {}
        for part, spans in zip(parts, self.cuts, strict=True):
            start = 0
            for j, a, b in spans:
                found[j, a] = torch.cat([found.get((j, a), part[:0]), part[start : start + b - a]])
                start += b - a
        return torch.cat([parts[0][:0], *(found[place] for place in sorted(found))])

    def _states(self, parts: Sequence[Tensor], join: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """A row for each sequence: its rows in the pieces, joined in order."""
        found: dict[int, Tensor] = {}
        for part, spans in zip(parts, self.cuts, strict=True):
            for (j, _, _), row in zip(spans, part, strict=True):
                found[j] = join(found[j], row) if j in found else row
        return torch.stack([found[j] for j in range(len(self.sample.lengths))]) if found else parts[0][:0]

    def allowed(self, key: TensorKey, rows: int, handed_on: int) -> Budget:
        """The budget for the first rows of one run against the pieces: the sum of both budgets.

        With `cumsum` the pieces have budgets of their own, since their chunks and cumulative sums differ.

        rows: number of rows.
        handovers: how often a state is handed on.
        """
        own = self.kernel.budget(key, self.sample, pieces=handed_on, summands=self._summands(key))[:rows]
        if not self.kernel.promises.cumsum:
            return own * 2
        budgets = [self.kernel.budget(key, piece) for piece in self._forward[0]]
        terms = {term: self._sum(key, [getattr(b, term) for b in budgets]) for term in _TERMS}
        return own * 2 + Budget(**terms, vacuous=any(b.vacuous for b in budgets))

    def _summands(self, key: TensorKey) -> Sequence[Tensor]:
        """The summands of a shared gradient, each stored and rounded.

        A kernel that cuts packs itself sums over its ranks internally: B bounds its summands.
        """
        if not self.kernel.shared(key, self.sample):
            return ()
        if self.kernel.takes_cuts:
            return (self.kernel.expect(self.sample).absolute[key],)
        return [run[key] for run in self._runs]

    def _sum(self, key: TensorKey, parts: Sequence[Tensor]) -> Tensor:
        """The sum of a budget's term over the pieces: a sequence's row may lie in several of them."""
        axes = self.sample.axes[key.name]
        if role(axes) == "sequence":
            return self._states(parts, lambda first, last: first + last)
        return total(parts) if in_pool(axes) else self._join(key, parts)


_TERMS = ("stored", "operands", "accumulation")


def _sequences(spans: Sequence[Span]) -> list[int]:
    return [j for j, _, _ in spans]
