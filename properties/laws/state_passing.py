"""The carry property: a sequence cut anywhere and continued from its state computes what it computes in one run."""

import dataclasses
import random
from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from packproof.properties.bounds.budget import Budget
from packproof.properties.cases.case import Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.sample import Sample, total
from packproof.properties.cases.space import Space
from packproof.properties.comparison import Comparison
from packproof.properties.kernel_under_test import KernelUnderTest, Tensors
from packproof.properties.laws.names import LAWS
from packproof.properties.laws.property import Illustration, Property
from packproof.properties.tensor_key import TensorKey, gradient
from packproof.properties.violation import Violation
from packproof.refs.axes import role

Cuts = list[list[tuple[int, int]]]

_OF_A_PIECE = "in a piece of every sequence"
_LONGEST_PIECE = 1024  # tokens tried for the shortest sequence that a kernel takes


def _carry(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """The values are compared bit for bit where the kernel promises that a state enters as a carry and the cuts lie on
    the ends of its segments, where it hands the state over in a single run too.
    """
    op = kernel.op
    if op.carry is None:
        return
    initial, _, wants = op.carry
    if initial not in case.present or not dict(case.options).get(wants):
        return
    sample = kernel.sample(case)
    yield from in_pieces(kernel, case, sample, initial)


def in_pieces(kernel: KernelUnderTest, case: Case, sample: Sample, initial: str) -> Iterator[Violation]:
    """One run against the same tokens in pieces, which hand on the state that enters as the input `initial`."""
    carried = kernel.promises.state_entry == "carry" and initial not in case.float32  # else it is rounded on the way
    exact = carried and kernel.promises.independent
    unit = kernel.promises.handover if exact else 1
    if unit == 1 or max(case.lengths, default=0) > unit:
        yield from compare(kernel, sample, _cuts(kernel.domain, case, unit), exact=exact)
    if unit > 1:
        yield from compare(kernel, sample, _cuts(kernel.domain, case, 1), exact=False)


def _with_state(space: Space, drawn: Collection[Case]) -> list[Case]:
    """The same cases with states in and out, and sequences long enough to be cut."""
    if space.op.carry is None or not space.plain_sizes:
        return []
    initial, _, wants = space.op.carry
    every = [c.replace(present=tuple(dict.fromkeys([*c.present, initial]))).with_option(wants, True) for c in drawn]
    if space.domain:
        longer = dataclasses.replace(space, domain=space.domain & _cuttable(space.domain))
        every = [c for c in map(longer.fit, every) if c and initial in c.present and dict(c.options).get(wants)]
    return every


def _cuttable(domain: Domain) -> Domain:
    """Sequences that can be cut in two, where no piece may be empty."""
    shortest = next((n for n in range(_LONGEST_PIECE) if domain.allows_length(n)), 0)
    return Domain.of(f"length >= {2 * shortest}")


def _no_state(space: Space) -> str:
    if space.op.carry is None:
        return "the states lie in a pool: `pool`" if space.op.pool else f"{space.op.name} has no state to carry"
    missing = [n for n in space.op.carry if n in space.missing]
    return f"the kernel does not take {', '.join(missing)}" if missing else ""


CARRY = Property(
    "carry",
    LAWS["carry"],
    _carry,
    cases=_with_state,
    skip_reason=_no_state,
    dtype_independent=True,
    illustration=Illustration(
        "f(S) = f(S[:i]) ‖ f(S[i:], h),   h: the final state of the first piece; gradients flow back through h",
        ("one run", "aaa bbbbb cc"),
        ("in pieces", "aa bbb c a bb c"),
        "ops and kernels without a state",
    ),
)


def _cuts(domain: Domain, case: Case, unit: int) -> Cuts:
    """Two or three pieces of every sequence, some of them empty, cut at multiples of `unit`: inside, where one is.

    Two whose lengths the kernel's domain has, where it does not have all lengths.
    """
    rng = random.Random(f"{case.seed} {case.lengths}")
    if domain.within({"length"}):
        return _allowed_cuts(domain, case, unit, rng)
    pieces = rng.choice([2, 3])
    inside = [rng.randint(1, (n - 1) // unit) if n > unit else 0 for n in case.lengths]
    anywhere = [[rng.randint(0, n // unit) for _ in range(pieces - 2)] for n in case.lengths]
    ends = [sorted(unit * k for k in (first, *more)) for first, more in zip(inside, anywhere, strict=True)]
    bounds = [[0, *e, n] for e, n in zip(ends, case.lengths, strict=True)]
    return [[(b[k], b[k + 1]) for b in bounds] for k in range(pieces)]


def _allowed_cuts(domain: Domain, case: Case, unit: int, rng: random.Random) -> Cuts:
    ends = []
    for n in case.lengths:
        inside = [k for k in range(unit, n, unit) if domain.allows_length(k) and domain.allows_length(n - k)]
        ends.append(rng.choice(inside) if inside else n)
    return [[(0, end) for end in ends], [(end, n) for end, n in zip(ends, case.lengths, strict=True)]]


def _joined(kernel: KernelUnderTest, sample: Sample, cuts: Cuts) -> tuple[Tensors, list[Sample]]:
    """Values and gradients of the whole, put together from the pieces: states forward, their gradients backward."""
    assert sample.op.handed_on is not None
    initial, final = sample.op.handed_on
    state, pieces, runs = sample.inputs[initial], [], []
    differentiated = kernel.gradients and bool(sample.wrt)
    for k, cut in enumerate(cuts):
        piece = sample.piece(cut)
        pieces.append(dataclasses.replace(piece, inputs={**piece.inputs, initial: state}))
        if k + 1 < len(cuts) or not differentiated:
            runs.append(kernel.run(pieces[-1], gradients=False, note=_OF_A_PIECE))
            state = runs[-1][TensorKey(final)]
    if differentiated:
        runs = _backward(kernel, sample, pieces)
    values = {n: _join(sample, cuts, [r[n] for r in runs], n) for n in runs[0] if n.name != final}
    values[TensorKey(final)] = runs[-1][TensorKey(final)]
    if differentiated:
        values[gradient(initial)] = runs[0][gradient(initial)]
    return values, pieces


def _backward(kernel: KernelUnderTest, sample: Sample, pieces: list[Sample]) -> list[Tensors]:
    """The vjp of every piece, last first: the gradient of its initial states comes in at the final states before it."""
    assert sample.op.handed_on is not None
    initial, final = sample.op.handed_on
    incoming = sample.cotangents[final]
    runs: list[Tensors] = []
    for piece in reversed(pieces):
        given = dataclasses.replace(piece, cotangents={**piece.cotangents, final: incoming})
        runs.insert(0, kernel.run(given, note=_OF_A_PIECE))
        incoming = runs[0][gradient(initial)].to(incoming.dtype)
    return runs


def _join(sample: Sample, cuts: Cuts, parts: list[Tensor], key: TensorKey) -> Tensor:
    """Tokens of the pieces back in the order of the pack, without slack; shared gradients summed."""
    kind = role(sample.axes[key.name])
    if kind == "shared":
        return total(parts)
    if kind == "sequence":
        return parts[-1]
    rows: list[Tensor] = [parts[0][:0]]
    starts = [0] * len(cuts)
    for j in range(len(sample.lengths)):
        for k, cut in enumerate(cuts):
            n = cut[j][1] - cut[j][0]
            rows.append(parts[k][starts[k] : starts[k] + n])
            starts[k] += n
    return torch.cat(rows)


def compare(kernel: KernelUnderTest, sample: Sample, cuts: Cuts, *, exact: bool) -> Iterator[Violation]:
    """One run against the pieces: in the values bit for bit where `exact`, else within the budgets of both."""
    whole = kernel.remembered(sample)
    joined, pieces = _joined(kernel, sample, cuts)
    for key, x in joined.items():
        bitwise = exact and not key.is_gradient
        allowed = None if bitwise else _allowed(kernel, sample, pieces, cuts, key, len(x))
        rows, got = kernel.row_map(key, sample), whole[key][: len(x)]
        compared = Comparison(key, got, x, rows, allowed, other="in pieces", note=_described(cuts))
        for violation in compared.violations():
            yield kernel.beside_the_reference(violation, sample, pieces=len(cuts) - 1)


def _allowed(
    kernel: KernelUnderTest, sample: Sample, pieces: list[Sample], cuts: Cuts, key: TensorKey, rows: int
) -> Budget:
    """What the first rows of one run and of several may differ by: the budgets of both, which have other chunks and
    cumulative sums."""
    own = kernel.budget(key, sample, pieces=len(cuts) - 1)[:rows]
    if not kernel.promises.cumsum:
        return own * 2
    budgets = [kernel.budget(key, piece) for piece in pieces]
    if role(sample.axes[key.name]) != "token":  # the hand-overs lie in one piece or the other
        theirs = sum(budgets[1:], budgets[0])
    else:
        terms = ("stored", "operands", "accumulation")
        theirs = Budget(*(_join(sample, cuts, [getattr(b, term) for b in budgets], key) for term in terms))
    return own * 2 + theirs


def _described(cuts: Cuts) -> str:
    ends = [[cut[j][1] for cut in cuts[:-1]] for j in range(len(cuts[0]))]
    return f"cut at {ends}" if len(ends) <= 8 else f"cut into {len(cuts)} pieces"
