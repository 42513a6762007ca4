"""The carry property: a sequence cut anywhere and continued from its state computes what it computes in one run."""

import dataclasses
import random
from collections.abc import Iterator

import torch
from torch import Tensor

from packproof.properties.budget import Budget
from packproof.properties.case import Case
from packproof.properties.domain import Domain
from packproof.properties.kernel_under_test import KernelUnderTest, Tensors
from packproof.properties.oracle import gradient
from packproof.properties.sample import Sample, total
from packproof.properties.violation import Violation, identical, within
from packproof.refs.axes import role

Cuts = list[list[tuple[int, int]]]

_OF_A_PIECE = "in a piece of every sequence"


def carry(subject: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """Tokens run in pieces, the states handed on from each to the next, have the values and gradients of one run.

    Bitwise in the values where the kernel promises that a state enters as a carry and the cuts lie on the ends of its
    segments, where it hands the state over in a single run too.
    """
    op = subject.op
    if op.carry is None:
        return
    initial, _, wants = op.carry
    if initial not in case.present or not dict(case.options).get(wants):
        return
    sample = subject.sample(case)
    exact = subject.promises.state_entry == "carry" and subject.promises.independent
    unit = subject.promises.handover if exact else 1
    if unit == 1 or max(case.lengths, default=0) > unit:
        yield from _judge(subject, sample, _cuts(subject.domain, case, unit), exact=exact)
    if unit > 1:
        yield from _judge(subject, sample, _cuts(subject.domain, case, 1), exact=False)


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


def _in_pieces(subject: KernelUnderTest, sample: Sample, cuts: Cuts) -> tuple[Tensors, list[Sample]]:
    """Values and gradients of the whole, put together from the pieces: states forward, their gradients backward."""
    assert sample.op.carry is not None
    initial, final, _ = sample.op.carry
    state, pieces, runs = sample.inputs[initial], [], []
    for k, cut in enumerate(cuts):
        piece = sample.piece(cut)
        pieces.append(dataclasses.replace(piece, inputs={**piece.inputs, initial: state}))
        if k + 1 < len(cuts) or not subject.gradients:
            runs.append(subject.run(pieces[-1], gradients=False, note=_OF_A_PIECE))
            state = runs[-1][final]
    if subject.gradients:
        runs = _backward(subject, sample, pieces)
    values = {n: _join(sample, cuts, [r[n] for r in runs], n) for n in runs[0]}
    values[final] = runs[-1][final]
    if subject.gradients:
        values[gradient(initial)] = runs[0][gradient(initial)]
    return values, pieces


def _backward(subject: KernelUnderTest, sample: Sample, pieces: list[Sample]) -> list[Tensors]:
    """The vjp of every piece, last first: the gradient of its initial states comes in at the final states before it."""
    assert sample.op.carry is not None
    initial, final, _ = sample.op.carry
    incoming = sample.cotangents[final]
    runs: list[Tensors] = []
    for piece in reversed(pieces):
        given = dataclasses.replace(piece, cotangents={**piece.cotangents, final: incoming})
        runs.insert(0, subject.run(given, note=_OF_A_PIECE))
        incoming = runs[0][gradient(initial)].to(incoming.dtype)
    return runs


def _join(sample: Sample, cuts: Cuts, parts: list[Tensor], name: str) -> Tensor:
    """Tokens of the pieces back in the order of the pack, without slack; shared gradients summed."""
    if role(sample.axes[name.removeprefix("gradient of ")]) == "shared":
        return total(parts)
    if role(sample.axes[name.removeprefix("gradient of ")]) == "sequence":
        return parts[-1]
    rows: list[Tensor] = [parts[0][:0]]
    starts = [0] * len(cuts)
    for j in range(len(sample.lengths)):
        for k, cut in enumerate(cuts):
            n = cut[j][1] - cut[j][0]
            rows.append(parts[k][starts[k] : starts[k] + n])
            starts[k] += n
    return torch.cat(rows)


def _judge(subject: KernelUnderTest, sample: Sample, cuts: Cuts, *, exact: bool) -> Iterator[Violation]:
    """One run against the pieces: in the values bit for bit where `exact`, else within the budgets of both."""
    whole = subject.remembered(sample)
    joined, pieces = _in_pieces(subject, sample, cuts)
    for name, x in joined.items():
        frame, rows = subject.frame(name, sample), slice(0, len(x))
        if exact and not name.startswith("gradient"):
            found = identical(name, whole[name][rows], x, frame, other="in pieces", note=_said(cuts))
        else:
            allowed = _allowed(subject, sample, pieces, cuts, name, rows)
            found = within(name, whole[name][rows], x, allowed, frame, other="in pieces", note=_said(cuts))
        for violation in found:
            yield subject.beside_the_reference(violation, sample, pieces=len(cuts) - 1)


def _allowed(
    subject: KernelUnderTest, sample: Sample, pieces: list[Sample], cuts: Cuts, name: str, rows: slice
) -> Budget:
    """What one run and several may differ by: the budgets of both, which have other chunks and cumulative sums."""
    own = subject.budget(name, sample, pieces=len(cuts) - 1)[rows]
    if not subject.promises.cumsum:
        return own * 2
    budgets = [subject.budget(name, piece, pieces=0) for piece in pieces]
    if role(subject.frame(name, sample).axes) == "sequence":  # the hand-overs lie in one piece or the other
        theirs = sum(budgets[1:], budgets[0])
    else:
        terms = ("stored", "operands", "accumulation")
        theirs = Budget(*(_join(sample, cuts, [getattr(b, term) for b in budgets], name) for term in terms))
    return own * 2 + theirs


def _said(cuts: Cuts) -> str:
    ends = [[cut[j][1] for cut in cuts[:-1]] for j in range(len(cuts[0]))]
    return f"cut at {ends}" if len(ends) <= 8 else f"cut into {len(cuts)} pieces"
