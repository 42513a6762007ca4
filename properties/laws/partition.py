"""The partition property: a pack cut over ranks at any token has the values and gradients of one rank."""

import dataclasses
import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby, pairwise

from packproof.base.axes import role
from packproof.base.law_names import LAWS
from packproof.properties.bounds.budget import Budget
from packproof.properties.cases.case import CUTS, Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.layouts import Lengths
from packproof.properties.cases.result_tensors import Tensors
from packproof.properties.cases.sample import Sample, Span
from packproof.properties.cases.space import Space, golden_case
from packproof.properties.judgement.comparison import Comparison, RowMap
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.pieces import Pieces
from packproof.properties.laws.property import Illustration, Property
from packproof.properties.laws.state_passing import cases_with_states
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.op import Op

_RANK_NOTE = "on one of the ranks"
_ONE_DRAWN_CASE_IN = 24
_MAX_CUTS = 4


def _partition(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """A kernel that takes `cuts` is called once with them and once without.

    For any other kernel the law itself hands on the state of a document from rank to rank, or its next position.

    An uncut document keeps its bits where the kernel promises not to depend on the pack. A document cut at the ends of
    the kernel's own segments keeps the bits of its values, if the state enters as a carry.
    """
    if case.cuts is None or not case.n_tokens or not (kernel.takes_cuts or _can_hand_on(kernel, case)):
        return
    sample = kernel.sample(case)
    pieces = Pieces(kernel, sample, spans_of_ranks(case.lengths, case.cuts), _RANK_NOTE)
    single_rank = kernel.cached_run(sample)
    several_ranks = _run_with_cuts(kernel, sample, case) if kernel.takes_cuts else pieces.joined_results()
    inner_cuts = _cuts_inside(case)
    exact_kinds, handovers = (
        [_exact_kinds(kernel, case, cuts) for cuts in inner_cuts],
        max(map(len, inner_cuts)) if kernel.op.carry else 0,
    )
    for key, x in several_ranks.items():
        length = len(x) if x.ndim else 1
        rows, make_budget = kernel.row_map(key, sample), partial(pieces.budget, key, length, handovers)
        for row_range, bitwise in _row_ranges(rows, [key.kind in kinds for kinds in exact_kinds], length):
            budget = None if bitwise else partial(_budget_of_rows, make_budget, row_range)
            comparison = Comparison(
                key,
                single_rank[key][row_range] if x.ndim else single_rank[key],
                x[row_range] if x.ndim else x,
                rows,
                budget,
                row_range.start,
                baseline_name="over ranks",
            )
            for violation in comparison.violations():
                annotated = kernel.with_reference_value(violation, sample, handovers=handovers)
                yield dataclasses.replace(annotated, rank=_rank(case, annotated))


def run_law_calls(kernel: KernelUnderTest, case: Case) -> None:
    """Make the law's calls of a kernel that cuts packs itself, in their order, without judging them.

    For the ranks of a group: one of them judges the case, the others take part in its calls.
    """
    sample = kernel.sample(case)
    kernel.cached_run(sample)
    _run_with_cuts(kernel, sample, case)


def _can_hand_on(kernel: KernelUnderTest, case: Case) -> bool:
    """Whether the case can continue on a next rank: it has states in and out, or positions of documents."""
    if kernel.op.carry is not None:
        initial, _, return_option = kernel.op.carry
        return initial in case.present and bool(dict(case.options).get(return_option))
    return _hands_on(kernel.op) and kernel.op.integers.issubset(case.present)


def _hands_on(op: Op) -> bool:
    """Whether an op without `carry` hands on states in a pool, or positions."""
    return op.pool is not None or bool(op.integers_drawn("position"))


def _run_with_cuts(kernel: KernelUnderTest, sample: Sample, case: Case) -> Tensors:
    """Values and gradients, without slack, of a kernel that cuts the pack itself."""
    cut_sample = dataclasses.replace(sample, options={**sample.options, CUTS: case.cuts})
    end = {"token": case.n_tokens, "sequence": len(case.lengths), "shared": None}
    run = kernel.run(cut_sample, note=_RANK_NOTE)
    return {key: x[: end[role(sample.axes[key.name])]] if x.ndim else x for key, x in run.items()}


def spans_of_ranks(lengths: Lengths, cuts: Sequence[int]) -> list[list[Span]]:
    """The spans of each rank with tokens; ranks without tokens are omitted.

    An empty sequence belongs to the rank of the token after it, or of the last token.
    """
    ranks: dict[int, list[Span]] = defaultdict(list)
    last_token = max(sum(lengths) - 1, 0)
    for j, (end, length) in enumerate(zip(accumulate(lengths), lengths, strict=True)):
        start = end - length
        for a, b in pairwise([start, *(c for c in dict.fromkeys(cuts) if start < c < end), end]):
            ranks[bisect_right(cuts, min(a, last_token))].append((j, a - start, b - start))
    return [ranks[rank] for rank in sorted(ranks)]


def _cuts_inside(case: Case) -> list[list[int]]:
    """The cuts inside each sequence, in tokens from its own start."""
    assert case.cuts is not None
    ends = list(accumulate(case.lengths))
    return [
        [c - end + n for c in dict.fromkeys(case.cuts) if end - n < c < end]
        for end, n in zip(ends, case.lengths, strict=True)
    ]


def _exact_kinds(kernel: KernelUnderTest, case: Case, cuts: Sequence[int]) -> Collection[str]:
    """The kinds of tensors that keep their bits, for a sequence with these cuts."""
    promises, carry = kernel.promises, kernel.op.carry
    if not promises.independent or kernel.op.reductions:
        return ()
    if not cuts or (promises.grid == "token" and carry is None):
        return ("output", "gradient")
    enters_exactly = carry is None or (promises.state_entry == "carry" and carry[0] not in case.float32)
    return ("output",) if enters_exactly and all(c % promises.handover == 0 for c in cuts) else ()


def _row_ranges(rows: RowMap, bitwise: Sequence[bool], length: int) -> Iterator[tuple[slice, bool]]:
    """Ranges of rows with a flag: compared bit for bit, else within the budget. A shared tensor is one range."""
    kind = role(rows.axes)
    if kind == "shared":
        yield slice(0, length), False
        return
    for exact, run in groupby(range(len(bitwise)), key=lambda j: bitwise[j]):
        sequences = list(run)
        first_sequence, end = sequences[0], sequences[-1] + 1
        yield (
            slice(rows.offsets[first_sequence], rows.offsets[end]) if kind == "token" else slice(first_sequence, end),
            exact,
        )


def _budget_of_rows(make_budget: partial[Budget], rows: slice) -> Budget:
    return make_budget()[rows]


def _rank(case: Case, violation: Violation) -> int:
    """The rank of a violation's token; -1 for a state or a shared tensor."""
    if violation.sequence < 0 or violation.position < 0:
        return -1
    assert case.cuts is not None
    return bisect_right(case.cuts, sum(case.lengths[: violation.sequence]) + violation.position)


def _partition_cases(space: Space, drawn_cases: Collection[Case]) -> list[Case]:
    """Golden packs with their cuts, and some of the drawn cases."""
    return with_cuts(space, list(drawn_cases)[_ONE_DRAWN_CASE_IN - 1 :: _ONE_DRAWN_CASE_IN])


def with_cuts(space: Space, drawn_cases: Collection[Case]) -> list[Case]:
    """Golden packs with their cuts, and the drawn cases with random cuts."""
    if not space.plain_sizes:
        return []
    cases = [*_golden_partition_cases(space), *drawn_cases]
    if not space.takes_cuts:
        cases = cases_with_states(space, cases) if space.op.carry else [_with_positions(space, c) for c in cases]
    fitted_cases = (space.fit(c.replace(key_lengths=None)) for c in cases)
    nonempty_cases = (c for c in fitted_cases if c and c.n_tokens and c.key_lengths is None)
    return [
        c.replace(cuts=_allowed_cuts(space.domain, c.lengths, c.cuts or _random_cuts(space, c))) for c in nonempty_cases
    ]


def _golden_partition_cases(space: Space) -> Iterator[Case]:
    """Packs with every kind of cut.

    A rank of one token or none; a boundary on, before and after the cut; empty sequences on it; a sequence over more
    than two ranks; the ends of segments.
    """
    c, u = space.chunk, space.promises.handover
    packs = [
        ((c + 1, 3), (1,)),
        ((3, 0, 0, c), (3,)),
        ((5, 3), (4, 6)),
        ((2, c + 5, 1), (3, 3, c + 3, c + 4)),
        ((2,), (0, 2)),
    ]
    if u <= 4 * c:
        packs.append(((2 * u + 1, 2), (u, 2 * u)))
    packs += [(lengths, (sum(lengths[:-1]) + u,)) for lengths in space.segment_layouts[1:]]
    for k, (lengths, cuts) in enumerate(packs):
        size = dict(space.plain_sizes[k % len(space.plain_sizes)])
        yield golden_case(space, k, lengths, size, rich=True).replace(cuts=cuts)


def _with_positions(space: Space, case: Case) -> Case:
    names = space.op.integers - {*case.present}
    return case.replace(present=tuple(n for n in space.op.inputs if n in {*case.present, *names}))


def _random_cuts(space: Space, case: Case) -> tuple[int, ...]:
    """Random cuts for up to five ranks: half of them at or beside a boundary, or at the end of a segment."""
    rng = random.Random(f"{case.seed} {case.lengths}")
    starts, n, segment = [0, *accumulate(case.lengths)], case.n_tokens, space.promises.handover
    boundary_positions = {s + d for s in starts for d in (-1, 0, 1)}
    boundary_positions |= {
        s + k for s, length in zip(starts, case.lengths, strict=False) for k in range(segment, length, segment)
    }
    valid_positions = sorted(p for p in boundary_positions if 0 <= p <= n)
    cuts = (
        rng.choice(valid_positions) if rng.random() < 0.5 else rng.randint(0, n)
        for _ in range(rng.randint(1, _MAX_CUTS))
    )
    return tuple(sorted(cuts))


def _allowed_cuts(domain: Domain, lengths: Lengths, cuts: Sequence[int]) -> tuple[int, ...]:
    """The cuts, moved to the start of their sequence where a piece would have a length outside the domain.

    Cuts past the end move to it: a fitted pack may be shorter than the original one.
    """
    accepted: list[int] = []
    for cut in cuts:
        candidate = sorted([*accepted, min(cut, sum(lengths))])
        fits = all(domain.allows_length(b - a) for spans in spans_of_ranks(lengths, candidate) for _, a, b in spans)
        accepted = candidate if fits else sorted([*accepted, max(s for s in (0, *accumulate(lengths)) if s <= cut)])
    return tuple(accepted)


def _partition_skip_reason(space: Space) -> str:
    if space.takes_cuts:
        reason = "its error budget has the cumulative sums of chunks, which begin elsewhere on a rank"
        return reason if space.promises.cumsum else ""
    if space.op.keeps_drafts:
        return "a step of drafts goes on from the step before it: `pool`"
    if space.op.carry is None and not _hands_on(space.op):
        return f"{space.op.name} has no state and no positions to hand on, and the kernel takes no {CUTS}"
    required = space.op.carry or sorted(space.op.integers)
    missing = [n for n in required if n in space.missing_names]
    return f"the kernel does not take {', '.join(missing)}" if missing else ""


PARTITION = Property(
    "partition",
    LAWS["partition"],
    _partition,
    cases=_partition_cases,
    skip_reason=_partition_skip_reason,
    dtype_independent=True,
    of_the_op=(
        "The op declares that a sequence can be cut at any token, by `carry`, `pool` or an input that `draws` names a "
        "position: where it cannot, declare none of them."
    ),
    illustration=Illustration(
        "f(S) = gather(f(S[rank 0]), f(S[rank 1], h₀), f(S[rank 2], h₁), …),   hᵣ: what the ranks up to r hand on",
        ("one rank", "aaa bbbbb cc"),
        ("three", "aaa b bbbb c c"),
        "how ranks exchange what they hand on, unless the kernel cuts the pack itself",
        "A kernel that takes `cuts`, token positions, cuts the pack itself: [context parallelism](context_parallel.md) "
        "has how an implementation of your own, written for `torch.distributed`, is made into one.",
    ),
)
