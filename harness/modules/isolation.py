"""Which document of a pack reaches which: change one and look at the others, and take gradients.

Neither needs a reference or a tolerance. An isolated document keeps its bits when another one changes, and the gradient
of its outputs at another document's tokens is exactly zero.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from packproof.harness.modules.choices import Chosen, TieBreaker
from packproof.harness.modules.conventions import Convention
from packproof.harness.modules.pack import Pack
from packproof.harness.modules.subject import Subject

Pair = tuple[int, int]
Visit = TypeVar("Visit")
MANY = 8  # up to this many documents, each one is changed
ROUNDINGS = 256  # of the largest output; the smallest leak in a real model was 1.4 % of it, 10^5 roundings in fp32


@dataclass(frozen=True)
class Reach:
    """Which document reaches which in one call. Pairs are (i, j): document i reaches document j."""

    moved: Mapping[Pair, float]
    """The largest change of document j's outputs when document i changes, by (i, j)."""
    gradient: Mapping[Pair, float]
    """The largest gradient of document j's outputs at document i's tokens, by (i, j)."""
    scale: float
    """The largest output."""
    unit: float
    """The unit roundoff of the output's dtype."""
    output: Tensor
    """The output of the unchanged call."""
    ties: int = 0
    """Near-ties (top-k, argmax) that another document flipped, and that were then fixed to the first result."""

    @property
    def leaks(self) -> list[Pair]:
        """The pairs (i, j) where document i reaches document j; pairs with a gradient first."""
        found = {pair for pair, size in self.gradient.items() if size != 0}
        found |= {pair for pair in self.moved if self.moves(pair)}
        return sorted(found, key=lambda pair: (not self.gradient.get(pair), pair))

    def moves(self, pair: Pair) -> bool:
        """Whether outputs move by more than rounding. If not, only the gradient shows the leak."""
        return self.moved[pair] > self._rounding

    @property
    def rounded(self) -> list[Pair]:
        """Pairs with a change within rounding and no gradient: experts of a mixture get products of other sizes."""
        return [pair for pair, size in self.moved.items() if 0 < size <= self._rounding and not self.gradient.get(pair)]

    @property
    def _rounding(self) -> float:
        return ROUNDINGS * self.unit * self.scale


def reach(
    subject: Subject,
    convention: Convention,
    pack: Pack,
    seed: int,
    arguments: Mapping[str, object] | None = None,
    sources: Sequence[int] | None = None,
) -> Reach:
    """Change each source, one at a time, and differentiate the outputs of the other documents. Raises ModuleRefused.

    If outputs move but have no gradient, a second look fixes near ties of choices to the first result.

    arguments: the arguments of the call; None for the convention's own.
    sources: documents, or PADDING; None for all. With many documents, None takes the first two and the last.
    """
    told = subject.arguments(convention, pack) if arguments is None else arguments
    if sources is None:
        count = len(pack.lengths)
        sources = range(count) if count <= MANY else (0, 1, count - 1)
    with torch.no_grad():
        x = subject.input(pack.tokens, seed)
        # a module may use boundaries that it kept from an earlier batch: this call gives it wrong ones to keep
        subject.call_with(x, subject.arguments(convention, pack.without_boundaries()), convention)
    found = _reach(subject, convention, pack, seed, told, sources, alike=False)
    if (
        any(found.moves(pair) for pair in found.moved)
        and not any(found.gradient.values())
        and not subject.mode.compiled
    ):
        again = _reach(subject, convention, pack, seed, told, sources, alike=True)
        return again if again.ties and not again.leaks else found
    return found


def _reach(
    subject: Subject,
    convention: Convention,
    pack: Pack,
    seed: int,
    arguments: Mapping[str, object],
    sources: Sequence[int],
    *,
    alike: bool,
) -> Reach:
    x = subject.input(pack.tokens, seed)

    def call(x: Tensor, choices: TieBreaker | None) -> Tensor:
        with choices or nullcontext():
            return subject.call_with(x, arguments, convention)

    def allowed(_number: int, choice: Chosen) -> float:
        scores = choice.scores[choice.scores.isfinite()]
        return ROUNDINGS * torch.finfo(scores.dtype).eps / 2 * largest(scores)

    moved: dict[Pair, float] = {}
    ties = 0
    with torch.no_grad():
        plain = call(x, first := TieBreaker(pack.tokens) if alike else None)
        for i in sources:
            again = TieBreaker(pack.tokens, first.made, allowed) if first else None
            other = call(changed(x, pack, i, subject, seed), again)
            ties += again.ties if again else 0
            moved |= {(i, j): _apart(plain[pack.rows(j)], other[pack.rows(j)]) for j in _others(pack, i)}
    gradient = gradients(subject, convention, pack, x, arguments, seed, sources)
    return Reach(moved, gradient, largest(plain), torch.finfo(plain.dtype).eps / 2, plain, ties)


def _others(pack: Pack, document: int) -> list[int]:
    return [j for j in range(len(pack.lengths)) if j != document]


def changed(x: Tensor, pack: Pack, document: int, subject: Subject, seed: int) -> Tensor:
    """The input with every token of one document, or of the padding, replaced by a different one."""
    rows, other = pack.document == document, subject.input(pack.tokens, seed + 1)
    same = other == x
    if not x.is_floating_point() and bool(same.any()):
        top = int(torch.maximum(x.max(), other.max()))
        other = torch.where(same, (x + 1) % max(top + 1, 2), other)
    out = x.clone()
    out[:, rows] = other[:, rows]
    return out


def gradients(
    subject: Subject,
    convention: Convention,
    pack: Pack,
    x: Tensor,
    arguments: Mapping[str, object],
    seed: int,
    sources: Sequence[int],
) -> dict[Pair, float]:
    """The largest gradient of a random sum of document j's outputs at document i's tokens, by (i, j).

    Empty for the token ids of a compiled model.
    """
    if not x.is_floating_point() and not subject.differentiates_tokens:
        return {}
    with torch.enable_grad(), subject.differentiable(x) as (given, leaf_of):
        out = subject.call_with(given, arguments, convention)
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out)
        leaf = leaf_of()

        def at_tokens(readers: Sequence[int]) -> Tensor | None:
            loss = sum(((out[pack.rows(j)] * weight[pack.rows(j)]).sum() for j in readers), out.new_zeros(()))
            (grad,) = subject.differentiate(loss, [leaf], again=True)
            return None if grad is None else grad[0]

        def size(grad: Tensor | None, source: int) -> float:
            return 0.0 if grad is None else largest(grad[pack.document == source])

        if len(pack.lengths) > MANY:
            return {pair: found for i in sources for pair, found in _first_reached(pack, i, at_tokens, size).items()}
        by_reader = {j: at_tokens([j]) for j in range(len(pack.lengths))}
        return {(i, j): size(by_reader[j], i) for i in sources for j in _others(pack, i)}


def _first_reached(
    pack: Pack,
    source: int,
    at_tokens: Callable[[Sequence[int]], Tensor | None],
    size: Callable[[Tensor | None, int], float],
) -> dict[Pair, float]:
    """The gradients of many documents at one source, by bisection.

    One sum over all readers comes first. If it has a gradient, halving the readers finds the first one with a gradient.
    """
    others = _others(pack, source)
    found = dict.fromkeys(((source, j) for j in others), 0.0)
    while len(others) > 1 and size(at_tokens(others), source):
        half = others[: len(others) // 2]
        others = half if size(at_tokens(half), source) else others[len(half) :]
    found[source, others[0]] = size(at_tokens(others[:1]), source)
    return found


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference; inf where only one of the two is NaN."""
    same = (one == other) | (one.isnan() & other.isnan())
    return float(torch.where(same, 0.0, (one - other).abs()).nan_to_num(nan=math.inf).max()) if len(one) else 0.0


def largest(x: Tensor) -> float:
    """The largest absolute value; inf for NaN."""
    return float(x.abs().nan_to_num(nan=math.inf).max()) if x.numel() else 0.0


def first_that_leaks(
    before: Sequence[Visit], after: Sequence[Visit], leaks: Callable[[Visit, Visit, int], bool]
) -> Visit | None:
    """The first leaking visit, compared with the same visit of another run: first beyond rounding, then bit for bit.

    leaks: decides for a visit, the same visit of the other run and a number of roundings.
    """
    for roundings in (ROUNDINGS, 0):  # experts of a mixture may round differently: not a leak
        for one, other in zip(before, after, strict=False):
            if leaks(one, other, roundings):
                return one
    return None
