"""The rearrangements of a pack by properties: alone, permuted, redrawn, cut."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof.base.axes import Axes, has_key_rows, is_shared, role
from packproof.base.reductions import MAXIMUM
from packproof.properties.calling.pages import common_prefixes
from packproof.properties.cases.packed_tensors import PackedTensors
from packproof.properties.ops.reductions import index_of_largest, normaliser

Span = tuple[int, int, int]  # sequence, first token, end token (exclusive)


@dataclass(frozen=True)
class Sample(PackedTensors):
    """Concrete inputs and incoming gradients for one call of an op, on the CPU.

    >>> def parts(kernel, case):  # in the check of a packproof.Property
    ...     sample = kernel.sample(case)
    ...     return [sample.alone(j) for j in range(len(sample.lengths))]
    """

    @cached_property
    def largest(self) -> dict[str, int]:
        """The sequence with the largest value, by the reference, for each output that is a maximum over the pack."""
        names = [name for name, kind in self.op.reductions.items() if kind == MAXIMUM]
        if not names:
            return {}
        bare = dataclasses.replace(self, op=dataclasses.replace(self.op, reductions={}))
        runs = [self._reference_values(bare.alone(j)) for j in range(len(self.lengths))]
        return {name: index_of_largest(self.counts, [run[name] for run in runs]) for name in names}

    @staticmethod
    def _reference_values(sample: "Sample") -> dict[str, Tensor]:
        results = sample.op.reference(**sample.in_float64(gradients=False), **sample.metadata, **sample.options)
        return dict(zip(sample.outputs, results if isinstance(results, tuple) else (results,), strict=True))

    def with_shares_of(self, whole: "Sample", largest: Mapping[str, int] | None = None) -> "Sample":
        """The sample with incoming gradients of reductions that give a sequence the gradients that it has in `whole`.

        largest: for each maximum, where the largest sequence of `whole` is; None where its sequences are the same.
        """
        factors = {
            name: float((whole.largest if largest is None else largest)[name] == self.largest[name] >= 0)
            if kind == MAXIMUM
            else normaliser(kind, self.counts) / (normaliser(kind, whole.counts) or 1.0)
            for name, kind in self.op.reductions.items()
            if name in self.cotangents
        }
        scaled = {name: self.cotangents[name] * factor for name, factor in factors.items() if factor != 1}
        return dataclasses.replace(self, cotangents={**self.cotangents, **scaled}) if scaled else self

    def select(self, order: Sequence[int]) -> "Sample":
        """The pack of these sequences in this order, without slack."""

        def pick(x: Tensor, axes: Axes) -> Tensor:
            if role(axes) == "shared":
                return x
            return torch.cat([x[self.rows(j, axes)] for j in order]) if order else x[:0]

        keys = None if self.key_lengths is None else tuple(self.key_lengths[j] for j in order)
        part = self._map_tensors(pick, lengths=tuple(self.lengths[j] for j in order), key_lengths=keys, slack=0)
        return part.with_shares_of(
            self, {name: order.index(j) if j in order else -1 for name, j in self.largest.items()}
        )

    def repeated(self, n_sequences: int) -> "Sample":
        """This pack over and over, up to this number of sequences, without slack. Shared tensors stay."""
        copies, n_more = divmod(n_sequences, len(self.lengths))

        def repeat(x: Tensor, axes: Axes) -> Tensor:
            if role(axes) == "shared":
                return x
            offsets = self.offsets_of(axes) if role(axes) == "token" else range(len(self.lengths) + 1)
            return torch.cat([x[: offsets[-1]].repeat(copies, *[1] * (x.dim() - 1)), x[: offsets[n_more]]])

        def repeat_lengths(lengths: tuple[int, ...]) -> tuple[int, ...]:
            return lengths * copies + lengths[:n_more]

        keys = None if self.key_lengths is None else repeat_lengths(self.key_lengths)
        return self._map_tensors(repeat, lengths=repeat_lengths(self.lengths), key_lengths=keys, slack=0)

    def alone(self, j: int) -> "Sample":
        return self.select([j])

    def keep_only(self, j: int, replacement: "Sample | float") -> "Sample":
        """Sequence j unchanged; every other row, state, incoming gradient and slack row from `replacement`.

        replacement: a sample of the same layout, or one value for all but integers.
        """

        def replace(x: Tensor, y: Tensor | float, axes: Axes) -> Tensor:
            if is_shared(axes) or (isinstance(y, int | float) and not x.is_floating_point()):
                return x
            out = torch.full_like(x, y) if isinstance(y, int | float) else y.clone()
            for rows in self.spans(j, axes):
                out[rows] = x[rows]
            return out

        return self._merge_tensors(replacement, replace).with_shares_of(self)

    def redraw_only(self, j: int, replacement: "Sample") -> "Sample":
        """Sequence j from `replacement`, all else unchanged."""

        def replace(x: Tensor, y: Tensor, axes: Axes) -> Tensor:
            if is_shared(axes):
                return x
            out = x.clone()
            for rows in self.spans(j, axes):
                out[rows] = y[rows]
            return out

        return self._merge_tensors(replacement, replace).with_shares_of(self)

    def resized(self, j: int, n: int, replacement: "Sample", *, keys: bool = False) -> "Sample":
        """The pack with sequence j cut to n tokens or extended by rows of `replacement`, all else unchanged.

        keys: count the sequence's keys instead.
        """
        offsets = self.key_offsets if keys else self.offsets
        start, end = offsets[j : j + 2]
        single_packing = self.key_lengths is None  # one packing for tokens and keys

        def resize(x: Tensor, y: Tensor, axes: Axes) -> Tensor:
            if role(axes) != "token" or not (single_packing or has_key_rows(axes) == keys):
                return x
            extra_rows = max(n - (end - start), 0)
            rows = (
                y[[k % max(len(y), 1) for k in range(extra_rows)]] if len(y) else x.new_zeros(extra_rows, *x.shape[1:])
            )
            return torch.cat([x[: min(start + n, end)], rows, x[end:]])

        old_lengths = self.key_lengths if keys and self.key_lengths is not None else self.lengths
        new_lengths = (*old_lengths[:j], n, *old_lengths[j + 1 :])
        lengths = self.lengths if keys and not single_packing else new_lengths
        key_lengths = self.key_lengths if single_packing or not keys else new_lengths
        changed = (
            dataclasses.replace(self._merge_tensors(replacement, resize), lengths=lengths, key_lengths=key_lengths)
            ._with_splits_inside()
            .with_shares_of(self)
        )
        if not self.op.slots_of_tokens or lengths == self.lengths:
            return changed
        new_slots = [*self.slots[: min(start + n, end)], *[-1] * (n - end + start), *self.slots[end:]]
        return changed.in_slots(new_slots)

    def _with_splits_inside(self) -> "Sample":
        """The sample without a boundary past the end of its sequence."""
        splits = {
            n: x.minimum(x.new_tensor(self.lengths))
            for n, x in self.inputs.items()
            if n in self.op.integers_drawn("split")
        }
        return dataclasses.replace(self, inputs={**self.inputs, **splits}) if splits else self

    def followed_by(self, lengths: Sequence[int], slack: int) -> "Sample":
        """The pack followed by more sequences, then more slack rows, all zeros and without slots in a pool.

        Their incoming gradients are zeros too, so they add nothing to a shared gradient.
        """
        rows = {"token": sum(lengths) + slack, "sequence": len(lengths), "shared": 0}

        def extend(x: Tensor, axes: Axes) -> Tensor:
            extra_rows = rows[role(axes)]
            return torch.cat([x, x.new_zeros(extra_rows, *x.shape[1:])]) if extra_rows else x

        keys = None if self.key_lengths is None else (*self.key_lengths, *lengths)
        extended = self._map_tensors(
            extend, lengths=(*self.lengths, *lengths), key_lengths=keys, slack=self.slack + slack
        )
        for name, x in extended.inputs.items():
            if value := self.op.outside_value(name, self.options):
                x[len(self.inputs[name]) :] = value
        if not self.op.pool:
            return extended
        return extended.in_slots([*self.slots, *[-1] * rows["token" if self.op.slots_of_tokens else "sequence"]])

    def in_slots(self, slots: Sequence[int]) -> "Sample":
        """The same sample with these slots of its sequences."""
        assert self.op.pool is not None
        name = self.op.pool[0]
        return dataclasses.replace(self, inputs={**self.inputs, name: self.inputs[name].new_tensor(slots)})

    def with_slack(self, value: float) -> "Sample":
        """The slack rows of all tensors filled with a value."""

        def fill(x: Tensor, axes: Axes) -> Tensor:
            end = self.offsets_of(axes)[-1]
            fills = role(axes) == "token" and x.is_floating_point()
            return torch.cat([x[:end], torch.full_like(x[end:], value)]) if fills else x

        return self._map_tensors(fill)

    def later(self, j: int, position: int, axes: Axes) -> slice:
        """The rows of sequence j after `position` along t. A second packing is aligned with the first at its end."""
        start, end = self.offsets_of(axes)[j : j + 2]
        return slice(max(start, end - self.lengths[j] + position + 1), end)

    def with_later_inputs(self, last_positions: Sequence[int], replacement: "Sample") -> "Sample":
        """The sample with inputs from `replacement` after position last_positions[j] of each sequence j."""
        return dataclasses.replace(
            self, inputs=self._replace_spans(self.later, last_positions, self.inputs, replacement.inputs)
        )

    def with_earlier_cotangents(self, last_positions: Sequence[int], replacement: "Sample") -> "Sample":
        """The sample with incoming gradients from `replacement` up to position last_positions[j] of each sequence j."""

        def earlier_rows(j: int, position: int, axes: Axes) -> slice:
            return slice(self.offsets_of(axes)[j], self.later(j, position, axes).start)

        merged = self._replace_spans(earlier_rows, last_positions, self.cotangents, replacement.cotangents)
        return dataclasses.replace(self, cotangents=merged)

    def _replace_spans(
        self,
        span: Callable[[int, int, Axes], slice],
        last_positions: Sequence[int],
        tensors: Mapping[str, Tensor],
        replacements: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """The tensors, with one span of rows of each sequence from `replacements`. Only tensors along tokens change."""
        merged = dict(tensors)
        for name, x in tensors.items():
            if role(self.axes[name]) == "token" and name not in (self.op.pool or ())[:1]:
                merged[name] = x.clone()
                for j, position in enumerate(last_positions):
                    rows = span(j, position, self.axes[name])
                    merged[name][rows] = replacements[name][rows]
        return merged

    def with_common_prefixes(self) -> "Sample":
        """The sample with keys that begin as those of the sequence that has most, as of requests with one prompt."""
        longest, prefixes = common_prefixes([end - start for start, end in pairwise(self.key_offsets)])

        def copy_prefixes(x: Tensor, axes: Axes) -> Tensor:
            if not has_key_rows(axes):
                return x
            merged, source = x.clone(), self.key_offsets[longest]
            for start, n in zip(self.key_offsets, prefixes, strict=False):
                merged[start : start + n] = x[source : source + n]
            return merged

        return self._map_tensors(copy_prefixes)

    def keys_up_to(self, j: int, end: int) -> int:
        """The keys of sequence j up to its token `end`, exclusive: both packings end together."""
        keys = self.key_offsets[j + 1] - self.key_offsets[j]
        return max(keys - self.lengths[j] + end, 0)

    def piece(self, spans: Sequence[Span], *, with_earlier_keys: bool = False) -> "Sample":
        """The pack of these spans, with positions shifted by their starts; counts of first pieces are 0 in later ones.

        The caller sets the states entering a span and the incoming gradients of the states leaving it.

        with_earlier_keys: whether a span has the keys of all tokens up to its end, as from a cache, or of its own.
        """
        starts, sequence_numbers = self.offsets, [j for j, _, _ in spans]
        keys = tuple(self.keys_up_to(j, b) if with_earlier_keys else b - a for j, a, b in spans)

        def pick(x: Tensor, axes: Axes) -> Tensor:
            if has_key_rows(axes) and with_earlier_keys:
                key_starts = (self.key_offsets[j] for j in sequence_numbers)
                return torch.cat([x[:0], *(x[start : start + n] for start, n in zip(key_starts, keys, strict=True))])
            if role(axes) == "token":
                return torch.cat([x[:0], *(x[starts[j] + a : starts[j] + b] for j, a, b in spans)])
            return x[sequence_numbers] if role(axes) == "sequence" else x

        lengths = tuple(b - a for _, a, b in spans)
        is_one_packing = self.key_lengths is None and (keys == lengths or not self.op.packs_keys)
        piece = self._map_tensors(pick, lengths=lengths, key_lengths=None if is_one_packing else keys, slack=0)
        span_starts = torch.tensor([a for _, a, _ in spans], dtype=torch.int64)
        positions, once = self.op.integers_drawn("position"), self.op.integers_drawn("once")
        shifted = {n: x + span_starts.to(x.dtype) for n, x in piece.inputs.items() if n in positions}
        counted = {n: torch.where(span_starts > 0, 0, x) for n, x in piece.inputs.items() if n in once}
        return dataclasses.replace(piece, inputs={**piece.inputs, **shifted, **counted})

    def _map_tensors(self, f: Any, **changes: Any) -> "Sample":
        return dataclasses.replace(
            self,
            inputs={n: f(x, self.axes[n]) for n, x in self.inputs.items()},
            cotangents={n: f(x, self.axes[n]) for n, x in self.cotangents.items()},
            **changes,
        )

    def _merge_tensors(self, replacement: "Sample | float", f: Any) -> "Sample":
        def replacement_tensor(kind: str, name: str) -> Any:
            return replacement if isinstance(replacement, int | float) else getattr(replacement, kind)[name]

        unchanged_inputs = (
            self.op.pool[:1] if self.op.pool else ()
        )  # a merged slot input could give two sequences one slot
        return dataclasses.replace(
            self,
            inputs={
                n: x if n in unchanged_inputs else f(x, replacement_tensor("inputs", n), self.axes[n])
                for n, x in self.inputs.items()
            },
            cotangents={n: f(x, replacement_tensor("cotangents", n), self.axes[n]) for n, x in self.cotangents.items()},
        )


def sum_in_float64(parts: Iterable[Tensor]) -> Tensor:
    """Sum in float64: the shared gradient of sequences run one by one."""
    return torch.stack([p.double() for p in parts]).sum(0)
