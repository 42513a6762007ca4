"""A pack run in pieces, with states handed on or with earlier keys: values and gradients of the pack, their budget."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from packproof.base.axes import has_key_rows, is_in_pool, role
from packproof.properties.bounds.budget import Budget
from packproof.properties.calling.tensor_key import TensorKey, gradient
from packproof.properties.cases.result_tensors import Tensors
from packproof.properties.cases.sample import Sample, Span, sum_in_float64
from packproof.properties.judgement.kernel_under_test import KernelUnderTest


@dataclass(frozen=True)
class Pieces:
    """A sample cut into pieces. The kernel is called with each piece, a pack of spans."""

    kernel: KernelUnderTest
    """The kernel to call."""
    sample: Sample
    """The whole pack."""
    piece_spans: Sequence[Sequence[Span]]
    """The spans of each piece. Every token is in one of them, every sequence in at least one."""
    note: str
    """A note for the text of faults."""
    with_earlier_keys: bool = False
    """Whether a span has the keys of all tokens up to its end, as from a cache; else those of its own tokens."""

    @property
    def _state_names(self) -> tuple[str, str]:
        """Names of the entering and the leaving state, "" where the op has none."""
        return self.sample.op.carried_names or ("", "")

    @property
    def _has_gradients(self) -> bool:
        return self.kernel.gradients and bool(self.sample.wrt)

    def _rows_of_states(self, spans: Sequence[Span]) -> list[int] | slice:
        """The rows of the states passed to a piece: of its sequences, or the whole pool."""
        return slice(None) if self.sample.op.pool else _sequence_numbers(spans)

    def _piece(self, spans: Sequence[Span]) -> Sample:
        return self.sample.piece(spans, with_earlier_keys=self.with_earlier_keys)

    @cached_property
    def _samples_and_runs(self) -> tuple[list[Sample], list[Tensors]]:
        """The pieces as samples with their entering states, and the runs that computed these states."""
        pieces, runs = [self._piece(spans) for spans in self.piece_spans], []
        if carried := self.sample.op.carried_states:
            states = {initial: self.sample.inputs[initial].clone() for initial, _ in carried}
            for k, (piece, spans) in enumerate(zip(pieces, self.piece_spans, strict=True)):
                rows, later_sequences = (
                    self._rows_of_states(spans),
                    {j for later_spans in self.piece_spans[k + 1 :] for j in _sequence_numbers(later_spans)},
                )
                entering = {initial: state[rows] for initial, state in states.items()}
                pieces[k] = dataclasses.replace(piece, inputs={**piece.inputs, **entering})
                if not later_sequences.isdisjoint(_sequence_numbers(spans)) or not self._has_gradients:
                    runs.append(self.kernel.run(pieces[k], gradients=False, note=self.note))
                    for initial, final in carried:
                        states[initial][rows] = runs[-1][TensorKey(final)].to(states[initial].dtype)
        elif not self._has_gradients:
            runs = [self.kernel.run(piece, gradients=False, note=self.note) for piece in pieces]
        return pieces, runs

    @cached_property
    def _runs(self) -> list[Tensors]:
        """Values and gradients of every piece.

        The last piece runs first: the gradient of the states entering a piece is the incoming gradient of the piece
        before it.
        """
        pieces, runs = self._samples_and_runs
        if not self._has_gradients:
            return runs
        initial, final = self._state_names
        piece_runs, state = [], self.sample.cotangents[final].clone() if initial else torch.empty(0)
        for piece, spans in zip(reversed(pieces), reversed(self.piece_spans), strict=True):
            rows = self._rows_of_states(spans)
            incoming = {**piece.cotangents, **({final: state[rows]} if initial else {})}
            piece_runs.append(self.kernel.run(dataclasses.replace(piece, cotangents=incoming), note=self.note))
            if initial:
                state[rows] = piece_runs[-1][gradient(initial)].to(state.dtype)
        return piece_runs[::-1]

    def joined_results(self) -> Tensors:
        """Values and gradients of the whole pack, without slack; shared gradients are summed."""
        return {key: self._join(key, [run[key] for run in self._runs]) for key in self._runs[0]}

    def _join(self, key: TensorKey, parts: Sequence[Tensor]) -> Tensor:
        axes, (initial, _) = self.sample.axes[key.name], self._state_names
        kind = role(axes)
        if is_in_pool(axes):
            return parts[-1]
        if has_key_rows(axes) and self.with_earlier_keys:
            return sum_in_float64(self._rows_of_keys(parts))[: self.sample.key_offsets[-1]]
        if kind == "shared":
            return sum_in_float64(parts)
        if kind == "token":
            return self._join_tokens(parts)
        if not key.is_gradient:
            return self._join_states(parts, lambda _, later: later)
        return self._join_states(parts, lambda earlier, later: earlier if key.name == initial else earlier + later)

    def _rows_of_keys(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The gradient that each piece gives to the rows of all keys: 0 for those of later tokens."""
        wholes = [part.new_zeros(self.sample.key_offsets[-1] + self.sample.slack, *part.shape[1:]) for part in parts]
        for whole, part, spans in zip(wholes, parts, self.piece_spans, strict=True):
            row = 0
            for j, _, end in spans:
                count, start = self.sample.keys_up_to(j, end), self.sample.key_offsets[j]
                whole[start : start + count] = part[row : row + count]
                row += count
        return wholes

    def _join_tokens(self, parts: Sequence[Tensor]) -> Tensor:
        """Rows of the pieces in the order of the pack."""
        rows_of_span: dict[tuple[int, int], Tensor] = {}
        for part, spans in zip(parts, self.piece_spans, strict=True):
            start = 0
            for j, a, b in spans:
                rows_of_span[j, a] = torch.cat([rows_of_span.get((j, a), part[:0]), part[start : start + b - a]])
                start += b - a
        return torch.cat([parts[0][:0], *(rows_of_span[span_start] for span_start in sorted(rows_of_span))])

    def _join_states(self, parts: Sequence[Tensor], join: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """A row for each sequence: its rows in the pieces, joined in order."""
        state_rows: dict[int, Tensor] = {}
        for part, spans in zip(parts, self.piece_spans, strict=True):
            for (j, _, _), row in zip(spans, part, strict=True):
                state_rows[j] = join(state_rows[j], row) if j in state_rows else row
        return torch.stack([state_rows[j] for j in range(len(self.sample.lengths))]) if state_rows else parts[0][:0]

    def budget(self, key: TensorKey, rows: int, handovers: int) -> Budget:
        """The budget for the first rows of one run against the pieces: the sum of both budgets.

        With `cumsum` the pieces have budgets of their own, since their chunks and cumulative sums differ.

        rows: number of rows.
        handovers: how often a state is handed on.
        """
        whole_budget = self.kernel.budget(key, self.sample, handovers=handovers, summands=self._summands(key))[:rows]
        if not self.kernel.promises.cumsum:
            return whole_budget * 2
        budgets = [self.kernel.budget(key, piece) for piece in self._samples_and_runs[0]]
        of_pieces = Budget(
            self._sum_term(key, [b.rounding for b in budgets]),
            lambda: self._sum_term(key, [b.operands for b in budgets]),
            self._sum_term(key, [b.accumulation for b in budgets]),
            lambda: any(b.vacuous for b in budgets),
        )
        return whole_budget * 2 + of_pieces

    def _summands(self, key: TensorKey) -> Sequence[Tensor]:
        """The summands of a gradient that is shared, or of keys, each stored and rounded.

        A kernel that cuts packs itself sums over its ranks internally: B bounds its summands.
        """
        if has_key_rows(self.sample.axes[key.name]) and self.with_earlier_keys:
            return self._rows_of_keys([run[key] for run in self._runs])
        if not self.kernel.is_shared(key, self.sample):
            return ()
        if self.kernel.takes_cuts:
            return (self.kernel.expect(self.sample).magnitudes[key],)
        return [run[key] for run in self._runs]

    def _sum_term(self, key: TensorKey, parts: Sequence[Tensor]) -> Tensor:
        """The sum of a budget's term over the pieces: a sequence's row may lie in several of them."""
        axes = self.sample.axes[key.name]
        if role(axes) == "sequence":
            return self._join_states(parts, lambda earlier, later: earlier + later)
        return sum_in_float64(parts) if is_in_pool(axes) else self._join(key, parts)


def _sequence_numbers(spans: Sequence[Span]) -> list[int]:
    return [j for j, _, _ in spans]
