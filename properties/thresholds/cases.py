"""Cases past thresholds: the integers in a kernel's source, and powers of two.

A kernel often takes another path past a constant of its own: a table of 300 entries, a tile of 4,096 tokens, a model's
original length. The cases have one token or sequence less than the constant, as many, one more, and twice as many; of
channels, one more. They are sparse, so that the reference stays quick: many short sequences that repeat themselves
(`Case.period`), one long sequence with the fewest channels, and a few tokens with many channels on one axis.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from packproof.base.axes import is_shared, parse
from packproof.properties.cases.case import Case
from packproof.properties.cases.fitting import fit_sizes
from packproof.properties.cases.layouts import Lengths
from packproof.properties.cases.space import Sizes, Space, golden_case
from packproof.properties.ops.op import Op
from packproof.properties.thresholds.reach import CHANNELS, KEYS, LENGTH, SEQUENCES, TOKENS, Reach, counts

_CALL = 16  # what a call costs beside its tokens, in tokens of the reference
_TOKENS_PER_SECOND = 4_000  # of a reference, with its bounds and gradients
_KERNEL_TOKENS = 32  # tokens of a kernel for one of the reference, which is a loop in Python
_PAIRS = 128  # pairs of tokens for one: attention's reference computes all keys of a query at once
_KEY_PAIRS = 16_384  # pairs of keys for one token: its magnitude op has a row for each
_CHANNELS = 512  # channels that cost as much as one
_WIDE = 64  # channels of a model: axes of fewer, such as the taps of a convolution, have no thresholds
_MAX_FILLER = 256  # rows of slack added to reach a multiple of the domain
_FEW_TOKENS = (2, 1)
_HALF_PERIOD = 3  # sequences: no power of two, so that an index that wraps meets another sequence
_BESIDE = ((1, 0), (1, -1), (2, 1), (2, 0))  # sizes beside a constant: factor, and tokens or sequences more
_SMALLEST_POWER = 64  # golden layouts have more sequences than a smaller one
_SMALLEST_POWER_OF_TOKENS = 256


def axes_of(space: Space) -> tuple[str, ...]:
    """The axes along which a kernel has thresholds."""
    keys, channels = (KEYS,) * space.packs_keys, (CHANNELS,) * bool(wide_axes(space))
    return TOKENS, SEQUENCES, LENGTH, *keys, *channels


def wide_axes(space: Space) -> list[str]:
    """The axes of many channels in a model; of an op without sizes of models, all that have a number."""
    sizes = space.op.model_sizes or [dict.fromkeys(space.op.sizes[0], _WIDE)]
    numbers = {axis for axis, size in space.op.sizes[0].items() if isinstance(size, int)}
    return sorted(axis for axis in numbers if any(isinstance(n := s[axis], int) and n >= _WIDE for s in sizes))


def cost(op: Op, case: Case, *, interpreted: bool = False) -> float:
    """The time of a case, in tokens of the reference.

    interpreted: the kernel is a loop in Python too.
    """
    keys = case.key_lengths or case.lengths
    kernel_rows = case.n_tokens + len(case.lengths) + sum(case.key_lengths or ())
    rows = slice(0, case.period if case.half_period else None)
    reference_rows = float(sum(case.lengths[rows]) + len(case.lengths[rows]))
    if op.packs_keys:
        pairs = zip(case.lengths[rows], keys[rows], strict=True)
        reference_rows += sum(n * m / _PAIRS + m * m / _KEY_PAIRS for n, m in pairs)
    rows_cost = reference_rows + (kernel_rows if interpreted else kernel_rows / _KERNEL_TOKENS)
    return _CALL + rows_cost * (1 + counts(case)[CHANNELS] / _CHANNELS)


def threshold_cases(
    space: Space,
    constants: Sequence[int],
    reach: Reach,
    drawn_cases: Sequence[Case],
    *,
    seed: int = 0,
    interpreted: bool = False,
) -> list[Case]:
    """The cases past the thresholds of a profile, small ones first.

    constants: of the kernel's source.
    drawn_cases: the other cases of the profile. Of these cases, the most telling are selected up to a share of their
    cost.
    seed: changes the data only.
    """
    if not reach.source or not space.plain_sizes:
        return []
    drawn_cost = sum(cost(space.op, case, interpreted=interpreted) for case in drawn_cases)
    allowance = max(reach.share * drawn_cost, reach.seconds * _TOKENS_PER_SECOND)
    selected_cases: dict[Case, None] = {}
    for group in _by_importance(SparsePacks(space, seed), [c for c in constants if c <= reach.source], reach):
        cases = [case for case in group if case not in selected_cases and _is_allowed(space, case)]
        group_cost = sum(cost(space.op, case, interpreted=interpreted) for case in cases)
        if group_cost <= allowance:
            allowance -= group_cost
            selected_cases |= dict.fromkeys(cases)
    return sorted(selected_cases, key=lambda case: (case.n_tokens + len(case.lengths), len(case.lengths)))


def _by_importance(packs: "SparsePacks", constants: Sequence[int], reach: Reach) -> Iterator[list[Case]]:
    """Past each constant, the largest first, since its case is past the others too; past powers of two; beside each.

    In groups of cases that are of use together.
    """
    descending = sorted(constants, reverse=True)
    for c in descending:
        yield [*map(packs.single_tokens, _ladder(c))]
    for c in descending:
        yield [*map(packs.one_sequence, _ladder(c))]
        yield [case for n in _ladder(c) for case in packs.keys(n)]
    for c in descending:
        yield packs.channels(c + 1)
    yield from ([packs.single_tokens(n)] for n in _powers(_SMALLEST_POWER, reach.sequences))
    yield from ([packs.short_sequences(n)] for n in _powers(_SMALLEST_POWER_OF_TOKENS, reach.tokens))
    yield from ([packs.short_sequences(c + 1)] for c in descending)
    for factor, more in _BESIDE:
        for n in (factor * c + more for c in sorted(constants)):
            yield from ([packs.single_tokens(n)], [packs.one_sequence(n)], packs.keys(n))
    yield from ([packs.one_sequence(n)] for n in _powers(_SMALLEST_POWER_OF_TOKENS, reach.tokens))


def _ladder(constant: int) -> Iterator[int]:
    """One past a constant, and a few smaller sizes. Their times tell whether there is time for it."""
    yield constant + 1
    yield from (n for n in _powers(_SMALLEST_POWER_OF_TOKENS, constant // 2)[::2])


def _powers(smallest: int, largest: int) -> list[int]:
    """One above each power of two."""
    return [2**k + 1 for k in range(smallest.bit_length() - 1, largest.bit_length())]


class SparsePacks:
    """Sparse packs of a given size."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        self._space, self._seed = space, seed
        numbers = [{n: size for n, size in sizes.items() if isinstance(size, int)} for sizes in space.plain_sizes]

        def cost_of_sizes(pair: tuple[Sizes, dict[str, int]]) -> tuple[bool, int]:
            has_no_state = bool(space.op.pool) and 1 in pair[1].values()  # of a convolution with one tap
            return has_no_state, math.prod(pair[1].values())

        self._sizes = min(zip(space.plain_sizes, numbers, strict=True), key=cost_of_sizes)[0]

    def single_tokens(self, n: int) -> Case:
        """As many sequences of one token."""
        return self._repeated((1,) * self._half_period, n)

    def short_sequences(self, n: int) -> Case:
        """At least so many tokens, of short sequences and empty ones."""
        chunk = self._space.chunk
        half = (chunk // 2 - 1, 1, 0, chunk - chunk // 2) if chunk > 2 else (1, 2, 0)
        return self._repeated(half, -(-n // sum(half)) * len(half))

    def one_sequence(self, n: int) -> Case:
        """One sequence of so many tokens."""
        return self._plain((n,))

    def keys(self, n: int) -> list[Case]:
        """A few queries with so many keys."""
        return [self._plain((2, 1)).replace(key_lengths=(n, 3))] if self._space.packs_keys else []

    def channels(self, n: int) -> list[Case]:
        """Two short sequences with so many channels, on one axis after another."""
        requests = [{**self._sizes, axis: n} for axis in wide_axes(self._space)]
        fitted = fit_sizes(self._space.op, self._space.domain, requests, self._space.dtype)
        wide = [self._plain(_FEW_TOKENS, sizes) for sizes in fitted]
        return [case for case in wide if counts(case)[CHANNELS] >= n]

    def _plain(self, lengths: Lengths, sizes: Sizes | None = None) -> Case:
        return golden_case(self._space, 0, lengths, self._sizes if sizes is None else sizes, self._seed, rich=False)

    def _repeated(self, half: Lengths, n: int) -> Case:
        """So many sequences, these over and over, with all inputs and options."""
        lengths = (half * -(-n // len(half)))[:n]
        case = golden_case(self._space, 0, lengths, self._sizes, self._seed, rich=True)
        return replace(case, slack=0, key_lengths=None, period=2 * len(half) if self._can_repeat else 0)

    @property
    def _half_period(self) -> int:
        """One-token sequences. Where budgets depend on chunks of the pack, a period is a whole number of these."""
        promises = self._space.promises
        return self._space.chunk if promises.cumsum and not promises.independent else _HALF_PERIOD

    @property
    def _can_repeat(self) -> bool:
        """Whether the reference of one period gives that of the pack."""
        promises, specs = self._space.promises, map(parse, self._space.op.outputs.values())
        has_known_chunks = promises.independent or promises.chunk is not None or not promises.cumsum
        if self._space.op.pool:  # each request has a slot of its own
            return False
        return has_known_chunks and not any(is_shared(axes) for spec in specs for axes in spec.alternatives)


def _is_allowed(space: Space, case: Case) -> bool:
    """Whether the kernel's domain has the call, perhaps with rows of slack, which the call is filled up by."""
    rows = range(_MAX_FILLER if space.domain.allows_slack else 1)
    return not space.domain or any(space.domain.allows(space.op, case.replace(slack=k)) for k in rows)
