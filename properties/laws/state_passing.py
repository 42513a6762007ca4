"""The carry property: a sequence cut anywhere and continued has the results of one run.

It is continued from its state or, where an op has keys with offsets of their own, with the keys of all tokens so far:
prefill at once is prefill in chunks is token by token.
"""

import dataclasses
import random
from collections.abc import Collection, Iterator

from packproof.base.law_names import LAWS
from packproof.properties.cases.case import HARD_DECAY, STRONG_GATES, Case
from packproof.properties.cases.condition import LENGTH_NAMES
from packproof.properties.cases.domain import KEY_OFFSETS, Domain
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space
from packproof.properties.judgement.comparison import Comparison
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.pieces import Pieces
from packproof.properties.laws.property import Illustration, Property
from packproof.properties.laws.violation import Violation

Cuts = list[list[tuple[int, int]]]

_PIECE_NOTE = "in a piece of every sequence"
_LONGEST_PIECE = 1024  # tokens tried for the shortest sequence that a kernel takes
_STEPS = 2  # last tokens of a sequence that are run one by one, with the keys of those before


def _carry(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """Values are compared bit for bit where the kernel promises that a state enters as a carry and the cuts lie at the
    ends of its segments: there it hands over the state in a single run too.
    """
    op = kernel.op
    if op.caches_keys:
        sample = kernel.sample(case)
        if sample.causal and case.n_tokens:
            if kernel.promises.state_entry == "carry" and kernel.promises.independent:
                yield from compare_carried_runs(kernel, case, sample, "")
            yield from compare_in_pieces(kernel, sample, _chunks_and_steps(kernel.domain, case), exact=False)
        return
    if op.carry is None:
        return
    initial, _, return_option = op.carry
    if initial not in case.present or not dict(case.options).get(return_option):
        return
    sample = kernel.sample(case)
    yield from compare_carried_runs(kernel, case, sample, initial)


def compare_carried_runs(kernel: KernelUnderTest, case: Case, sample: Sample, initial: str) -> Iterator[Violation]:
    """One run against the same tokens in pieces. `initial`: the input by which a state enters, "" for keys."""
    enters_exactly = (
        kernel.promises.state_entry == "carry" and initial not in case.float32
    )  # else it is rounded on the way
    exact = enters_exactly and kernel.promises.independent
    unit = kernel.promises.handover if exact else 1
    if unit == 1 or max(case.lengths, default=0) > unit:
        yield from compare_in_pieces(kernel, sample, _cuts(kernel.domain, case, unit), exact=exact)
    if unit > 1:
        yield from compare_in_pieces(kernel, sample, _cuts(kernel.domain, case, 1), exact=False)


def _chunks_and_steps(domain: Domain, case: Case) -> Cuts:
    """Every sequence as a server has it: in two chunks, of which one may be empty, and its last tokens one by one."""
    rng = random.Random(f"{case.seed} {case.lengths}")
    starts_of_steps = [max(n - _STEPS, 0) for n in case.lengths]
    ends = [
        [0, rng.randint(0, start), *range(start, n), *[n] * (start + _STEPS - n), n]
        for start, n in zip(starts_of_steps, case.lengths, strict=True)
    ]
    pieces = [[(e[k], e[k + 1]) for e in ends] for k in range(_STEPS + 2)]
    return _allowed(domain, case, [piece for piece in pieces if any(a < b for a, b in piece)])


def _carry_cases(space: Space, drawn_cases: Collection[Case]) -> list[Case]:
    """The drawn cases with states in and out, or causal ones with offsets of the keys."""
    if not space.op.caches_keys:
        return cases_with_states(space, drawn_cases)
    option, cuttable = space.op.causal, dataclasses.replace(space, domain=space.domain & _cuttable_domain(space.domain))
    with_keys = (c.replace(key_lengths=c.key_lengths or c.lengths) for c in drawn_cases if not c.period)
    causal_cases = (c.with_option(option, True) if isinstance(option, str) else c for c in with_keys)
    return [c for c in map(cuttable.fit, causal_cases) if c and c.key_lengths is not None]


def cases_with_states(space: Space, drawn_cases: Collection[Case]) -> list[Case]:
    """The drawn cases with states in and out, and sequences long enough to be cut.

    Kernels that promise `cumsum` get no strong gates. In pieces these gates share a chunk with other tokens than in one
    run, so a handed-over state has other errors of cumulative sums. No budget counts them.
    """
    if space.op.carry is None or not space.plain_sizes:
        return []
    initial, _, return_option = space.op.carry
    stateful_cases = [
        c.replace(present=tuple(dict.fromkeys([*c.present, initial]))).with_option(return_option, True)
        for c in drawn_cases
    ]
    if space.promises.cumsum:
        stateful_cases = [c.replace(regime=HARD_DECAY) if c.regime == STRONG_GATES else c for c in stateful_cases]
    if space.domain:
        cuttable_space = dataclasses.replace(space, domain=space.domain & _cuttable_domain(space.domain))
        stateful_cases = [
            c
            for c in map(cuttable_space.fit, stateful_cases)
            if c and initial in c.present and dict(c.options).get(return_option)
        ]
    return stateful_cases


def _cuttable_domain(domain: Domain) -> Domain:
    """The domain of sequences long enough for two pieces of the shortest allowed length, each with keys."""
    shortest = next((n for n in range(_LONGEST_PIECE) if domain.allows_length(n)), 0)
    return Domain.of([f"length >= {2 * shortest}", *(["length <= length_k"] if domain.naming({"length_k"}) else [])])


def _carry_skip_reason(space: Space) -> str:
    required = [*(space.op.carry or ())]
    if space.op.caches_keys:
        required = [KEY_OFFSETS, *([space.op.causal] if isinstance(space.op.causal, str) else [])]
    if not required:
        return "the states lie in a pool: `pool`" if space.op.pool else f"{space.op.name} has no state to carry"
    missing = [n for n in required if n in space.missing_names]
    return f"the kernel does not take {', '.join(missing)}" if missing else ""


CARRY = Property(
    "carry",
    LAWS["carry"],
    _carry,
    cases=_carry_cases,
    skip_reason=_carry_skip_reason,
    dtype_independent=True,
    of_the_op=(
        "The op declares `carry`: where a sequence cannot be cut at any token and go on from its state, leave that "
        "out. One with keys (axis u) that is `causal` goes on with the keys so far: where it cannot, say causal=False."
    ),
    illustration=Illustration(
        "f(S) = f(S[:i]) ‖ f(S[i:], h),   h: the final state of the first piece; gradients flow back through h",
        ("one run", "aaa bbbbb cc"),
        ("in pieces", "aa bbb c a bb c"),
        "ops and kernels without a state or offsets of keys",
        "A piece of attention is called with the keys of all tokens up to its last one, as a server does that prefills "
        "in chunks and then decodes. The gradient of a key is the sum over the pieces.",
    ),
)


def _cuts(domain: Domain, case: Case, unit: int) -> Cuts:
    """Two or three pieces of every sequence, cut at multiples of `unit`, at least once inside it where possible.

    Pieces may be empty. Where the domain restricts lengths: two pieces of allowed lengths.
    """
    rng = random.Random(f"{case.seed} {case.lengths}")
    if domain.within(LENGTH_NAMES):
        return _allowed_cuts(domain, case, unit, rng)
    pieces = rng.choice([2, 3])
    inner_cuts = [rng.randint(1, (n - 1) // unit) if n > unit else 0 for n in case.lengths]
    other_cuts = [[rng.randint(0, n // unit) for _ in range(pieces - 2)] for n in case.lengths]
    ends = [
        sorted(unit * k for k in (inner_cut, *further_cuts))
        for inner_cut, further_cuts in zip(inner_cuts, other_cuts, strict=True)
    ]
    bounds = [[0, *e, n] for e, n in zip(ends, case.lengths, strict=True)]
    return [[(b[k], b[k + 1]) for b in bounds] for k in range(pieces)]


def _allowed_cuts(domain: Domain, case: Case, unit: int, rng: random.Random) -> Cuts:
    ends = []
    for j, n in enumerate(case.lengths):
        inner_cuts = [
            k for k in range(unit, n, unit) if _allows(domain, case, j, 0, k) and _allows(domain, case, j, k, n)
        ]
        ends.append(rng.choice(inner_cuts) if inner_cuts else n)
    pieces = [[(0, end) for end in ends], [(end, n) for end, n in zip(ends, case.lengths, strict=True)]]
    return _allowed(domain, case, pieces)


def _allowed(domain: Domain, case: Case, pieces: Cuts) -> Cuts:
    """The pieces if the domain has all of them, else none."""
    return pieces if all(_allows(domain, case, j, *ends) for piece in pieces for j, ends in enumerate(piece)) else []


def _allows(domain: Domain, case: Case, j: int, start: int, end: int) -> bool:
    """Whether the domain has a piece of sequence j, with the keys up to its end, by conditions on lengths alone."""
    keys = None if case.key_lengths is None else [max(case.key_lengths[j] - case.lengths[j] + end, 0)]
    return domain.within(LENGTH_NAMES).holds({}, [end - start], keys)


def compare_in_pieces(kernel: KernelUnderTest, sample: Sample, cuts: Cuts, *, exact: bool) -> Iterator[Violation]:
    """One run against the pieces, within the budgets of both. exact: values are compared bit for bit."""
    if not cuts:
        return
    whole_run, handovers = kernel.cached_run(sample), len(cuts) - 1 if sample.op.carried_states else 0
    spans = [[(j, a, b) for j, (a, b) in enumerate(cut)] for cut in cuts]
    pieces = Pieces(kernel, sample, spans, _PIECE_NOTE, with_earlier_keys=sample.op.caches_keys)
    for key, x in pieces.joined_results().items():
        bitwise = exact and not key.is_gradient
        allowed = None if bitwise else pieces.budget(key, len(x), handovers)
        rows, actual = kernel.row_map(key, sample), whole_run[key][: len(x)]
        comparison = Comparison(key, actual, x, rows, allowed, baseline_name="in pieces", note=_describe_cuts(cuts))
        for violation in comparison.violations():
            yield kernel.with_reference_value(violation, sample, handovers=handovers)


def _describe_cuts(cuts: Cuts) -> str:
    ends = [[cut[j][1] for cut in cuts[:-1]] for j in range(len(cuts[0]))]
    return f"cut at {ends}" if len(ends) <= 8 else f"cut into {len(cuts)} pieces"
