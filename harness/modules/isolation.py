"""Which document of a pack reaches which: by changing one and looking at the others, and by gradients.

Neither needs a reference or a tolerance. A document that is isolated keeps its bits when another one changes, and the
gradient of its outputs at another one's tokens is zero, exactly.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from packproof.harness.modules.conventions import Convention
from packproof.harness.modules.pack import Pack
from packproof.harness.modules.subject import Subject

Pair = tuple[int, int]
Visit = TypeVar("Visit")
ROUNDINGS = 256  # of the largest output; the smallest leak seen in a model is 1.4 % of it, 10^5 roundings in fp32


@dataclass(frozen=True)
class Reach:
    """What reaches what in one call. moved: the largest change of document j's outputs when document i changed, by
    (i, j). gradient: the largest gradient of document j's outputs at document i's tokens, by (i, j). scale: the largest
    output. unit: the roundoff of its dtype. output: what the call returned."""

    moved: Mapping[Pair, float]
    gradient: Mapping[Pair, float]
    scale: float
    unit: float
    output: Tensor

    @property
    def leaks(self) -> list[Pair]:
        """Pairs of documents of which the first reaches the second: first those with a gradient."""
        found = {pair for pair, size in self.gradient.items() if size != 0}
        found |= {pair for pair in self.moved if self.moves(pair)}
        return sorted(found, key=lambda pair: (self.gradient[pair] == 0, pair))

    def moves(self, pair: Pair) -> bool:
        """Whether outputs move by more than rounding, and not only the gradient shows the leak."""
        return self.moved[pair] > self._rounding

    @property
    def rounded(self) -> list[Pair]:
        """Pairs that moved by so little, and with no gradient, that rounding explains it: experts of a mixture get
        products of other sizes."""
        return [pair for pair, size in self.moved.items() if 0 < size <= self._rounding and self.gradient[pair] == 0]

    @property
    def _rounding(self) -> float:
        return ROUNDINGS * self.unit * self.scale


def reach(
    subject: Subject, convention: Convention, pack: Pack, seed: int, arguments: Mapping[str, object] | None = None
) -> Reach:
    """Change each document, one at a time, and differentiate the outputs of each. Raises ModuleRefused.

    arguments: of the call, instead of those that tell the boundaries of the pack.
    """
    x = subject.input(pack.tokens, seed)
    arguments = subject.arguments(convention, pack) if arguments is None else arguments
    with torch.no_grad():
        plain = subject.call_with(x, arguments, convention)
        moved = {
            (i, j): _apart(plain[pack.rows(j)], other[pack.rows(j)])
            for i in range(len(pack.lengths))
            for other in [subject.call_with(changed(x, pack, i, subject, seed), arguments, convention)]
            for j in range(len(pack.lengths))
            if i != j
        }
    gradient = gradients(subject, convention, pack, x, arguments, seed)
    return Reach(moved, gradient, largest(plain), torch.finfo(plain.dtype).eps / 2, plain)


def changed(x: Tensor, pack: Pack, document: int, subject: Subject, seed: int) -> Tensor:
    """The input with every token of one document replaced by another one."""
    rows, other = pack.rows(document), subject.input(pack.tokens, seed + 1)
    same = other == x
    if not x.is_floating_point() and bool(same.any()):
        top = int(torch.maximum(x.max(), other.max()))
        other = torch.where(same, (x + 1) % max(top + 1, 2), other)
    out = x.clone()
    out[:, rows] = other[:, rows]
    return out


def gradients(
    subject: Subject, convention: Convention, pack: Pack, x: Tensor, arguments: Mapping[str, object], seed: int
) -> dict[Pair, float]:
    """The largest gradient of random sums of document j's outputs at the tokens of document i, by (i, j)."""
    with torch.enable_grad(), subject.differentiable(x) as (given, leaf_of):
        out = subject.call_with(given, arguments, convention)
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out)
        leaf, found = leaf_of(), {}
        for j in range(len(pack.lengths)):
            loss = (out[pack.rows(j)] * weight[pack.rows(j)]).sum()
            (grad,) = torch.autograd.grad(loss, leaf, retain_graph=True, allow_unused=True)
            for i in range(len(pack.lengths)):
                if i != j:
                    found[i, j] = 0.0 if grad is None else largest(grad[0, pack.rows(i)])
        return found


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference; inf where only one is NaN."""
    same = (one == other) | (one.isnan() & other.isnan())
    return float(torch.where(same, 0.0, (one - other).abs()).nan_to_num(nan=math.inf).max()) if len(one) else 0.0


def largest(x: Tensor) -> float:
    """The largest absolute value; inf for NaN."""
    return float(x.abs().nan_to_num(nan=math.inf).max()) if x.numel() else 0.0


def first_that_leaks(
    before: Sequence[Visit], after: Sequence[Visit], leaks: Callable[[Visit, Visit, int], bool]
) -> Visit | None:
    """The first visit that `leaks`, by the same one in another run, beyond so many roundings; if none does, by bits."""
    for roundings in (ROUNDINGS, 0):  # experts of a mixture round otherwise, which is no leak
        for one, other in zip(before, after, strict=False):
            if leaks(one, other, roundings):
                return one
    return None
