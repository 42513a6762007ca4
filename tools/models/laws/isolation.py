"""Which document of a pack reaches which: change one and look at the others, and take gradients.

Neither needs a reference or a tolerance. An isolated document keeps its bits when another one changes, and the gradient
of its outputs at another document's tokens is exactly zero.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from packproof.models.subjects.choices import Choice
from packproof.models.subjects.conventions import Convention
from packproof.models.subjects.pack import Pack
from packproof.models.subjects.subject import Subject
from packproof.models.subjects.tested_module import ModuleCall, TieOrder

DocumentPair = tuple[int, int]
Visit = TypeVar("Visit")
MAX_CHANGED_DOCUMENTS = 8  # up to this many documents, each one is changed
ROUNDINGS = 256  # of the largest output; the smallest leak in a real model was 1.4 % of it, 10^5 roundings in fp32


@dataclass(frozen=True)
class Leakage:
    """Which document reaches which in one call. Pairs are (i, j): document i reaches document j."""

    output_change: Mapping[DocumentPair, float]
    """The largest change of document j's outputs when document i changes, by (i, j)."""
    gradient: Mapping[DocumentPair, float]
    """The largest gradient of document j's outputs at document i's tokens, by (i, j)."""
    scale: float
    """The largest output; if all are 0, the largest one with a document changed."""
    unit: float
    """The unit roundoff of the output's dtype."""
    output: Tensor
    """The output of the unchanged call."""
    ties: int = 0
    """Near-ties (top-k, argmax) that another document flipped, and that were then fixed to the first result."""

    @property
    def leaking_pairs(self) -> list[DocumentPair]:
        """The pairs (i, j) where document i reaches document j; pairs with a gradient first."""
        pairs = {pair for pair, size in self.gradient.items() if size != 0}
        pairs |= {pair for pair in self.output_change if self.moves_output(pair)}
        return sorted(pairs, key=lambda pair: (not self.gradient.get(pair), pair))

    def moves_output(self, pair: DocumentPair) -> bool:
        """Whether outputs move by more than rounding. If not, only the gradient shows the leak."""
        return self.output_change[pair] > self._rounding

    @property
    def pairs_within_rounding(self) -> list[DocumentPair]:
        """Pairs with a change within rounding and no gradient: experts of a mixture get products of other sizes."""
        return [
            pair
            for pair, size in self.output_change.items()
            if 0 < size <= self._rounding and not self.gradient.get(pair)
        ]

    @property
    def _rounding(self) -> float:
        return ROUNDINGS * self.unit * self.scale


def measure_leakage(
    subject: Subject,
    convention: Convention,
    pack: Pack,
    seed: int,
    boundaries: Pack | None = None,
    sources: Sequence[int] | None = None,
) -> Leakage:
    """Change each source, one at a time, and differentiate the outputs of the other documents. Raises ModuleRefused.

    If outputs move but have no gradient, a second look fixes near ties of choices to the first result.

    boundaries: the layout of the arguments; None for the pack itself.
    sources: documents, or PADDING; None for all. With many documents, None takes the first two and the last.
    """
    if sources is None:
        count = len(pack.lengths)
        sources = range(count) if count <= MAX_CHANGED_DOCUMENTS else (0, 1, count - 1)
    call = ModuleCall(subject.input(pack.tokens, seed), convention, boundaries or pack)
    # a module may use boundaries that it kept from an earlier batch: this call gives it wrong ones to keep
    subject.call(replace(call, pack=pack.without_boundaries()))
    leakage = _measure_leakage(subject, call, pack, seed, sources, align_ties=False)
    if (
        any(leakage.moves_output(pair) for pair in leakage.output_change)
        and not any(leakage.gradient.values())
        and not subject.mode.compiled
    ):
        aligned_leakage = _measure_leakage(subject, call, pack, seed, sources, align_ties=True)
        return aligned_leakage if aligned_leakage.ties and not aligned_leakage.leaking_pairs else leakage
    return leakage


def _measure_leakage(
    subject: Subject, call: ModuleCall, pack: Pack, seed: int, sources: Sequence[int], *, align_ties: bool
) -> Leakage:
    first_run = subject.result(replace(call, ties=TieOrder() if align_ties else None))
    output = first_run.output
    repeats = TieOrder(first_run.choices, _allowed_changes(first_run.choices)) if align_ties else None
    output_change: dict[DocumentPair, float] = {}
    largest_changed_output, ties = 0.0, 0
    for i in sources:
        changed_x = with_document_changed(call.x, pack, i, subject, seed)
        changed_run = subject.result(replace(call, x=changed_x, ties=repeats))
        changed_output, ties = changed_run.output, ties + changed_run.ties
        largest_changed_output = max(largest_changed_output, max_abs(changed_output.nan_to_num()))
        output_change |= {
            (i, j): _largest_difference(output[pack.rows(j)], changed_output[pack.rows(j)])
            for j in _other_documents(pack, i)
        }
    gradient = gradients_between_documents(subject, call, pack, seed, sources)
    scale = max_abs(output) or largest_changed_output
    return Leakage(output_change, gradient, scale, torch.finfo(output.dtype).eps / 2, output, ties)


def _allowed_changes(choices: Sequence[Choice | None]) -> tuple[float, ...]:
    """By how much rounding may move the scores of each choice."""

    def allowed_change(choice: Choice) -> float:
        scores = choice.scores[choice.scores.isfinite()]
        return ROUNDINGS * torch.finfo(scores.dtype).eps / 2 * max_abs(scores)

    return tuple(allowed_change(choice) if choice else 0.0 for choice in choices)


def _other_documents(pack: Pack, document: int) -> list[int]:
    return [j for j in range(len(pack.lengths)) if j != document]


def with_document_changed(x: Tensor, pack: Pack, document: int, subject: Subject, seed: int) -> Tensor:
    """The input with every token of one document, or of the padding, replaced by a different one."""
    rows, new_input = pack.document == document, subject.input(pack.tokens, seed + 1)
    equal_tokens = new_input == x
    if not x.is_floating_point() and bool(equal_tokens.any()):
        largest_id = int(torch.maximum(x.max(), new_input.max()))
        new_input = torch.where(equal_tokens, (x + 1) % max(largest_id + 1, 2), new_input)
    out = x.clone()
    out[:, rows] = new_input[:, rows]
    return out


def gradients_between_documents(
    subject: Subject, call: ModuleCall, pack: Pack, seed: int, sources: Sequence[int]
) -> dict[DocumentPair, float]:
    """The largest gradient of a random sum of document j's outputs at document i's tokens, by (i, j).

    Empty for the token ids of a compiled model.
    """
    if not call.x.is_floating_point() and not subject.differentiates_tokens:
        return {}
    result = subject.result(replace(call, leaf="tokens"))
    weight = torch.randn(result.output.shape, generator=torch.Generator().manual_seed(seed)).to(result.output)

    def token_gradient(readers: Sequence[int]) -> Tensor | None:
        cotangent = torch.zeros_like(weight)
        for j in readers:
            cotangent[pack.rows(j)] = weight[pack.rows(j)]
        return subject.backward(result, cotangent).get("tokens")

    def max_gradient(grad: Tensor | None, source: int) -> float:
        return 0.0 if grad is None else max_abs(grad[pack.document == source])

    if len(pack.lengths) > MAX_CHANGED_DOCUMENTS:
        return {
            pair: gradient
            for i in sources
            for pair, gradient in _gradient_of_first_reader(pack, i, token_gradient, max_gradient).items()
        }
    gradient_by_reader = {j: token_gradient([j]) for j in range(len(pack.lengths))}
    return {(i, j): max_gradient(gradient_by_reader[j], i) for i in sources for j in _other_documents(pack, i)}


def _gradient_of_first_reader(
    pack: Pack,
    source: int,
    token_gradient: Callable[[Sequence[int]], Tensor | None],
    max_gradient: Callable[[Tensor | None, int], float],
) -> dict[DocumentPair, float]:
    """The gradients of many documents at one source, by bisection.

    One sum over all readers comes first. If it has a gradient, halving the readers finds the first one with a gradient.
    """
    readers = _other_documents(pack, source)
    gradient_by_pair = dict.fromkeys(((source, j) for j in readers), 0.0)
    while len(readers) > 1 and max_gradient(token_gradient(readers), source):
        half = readers[: len(readers) // 2]
        readers = half if max_gradient(token_gradient(half), source) else readers[len(half) :]
    gradient_by_pair[source, readers[0]] = max_gradient(token_gradient(readers[:1]), source)
    return gradient_by_pair


def _largest_difference(x: Tensor, y: Tensor) -> float:
    """The largest difference; inf where only one of the two is NaN."""
    equal_values = (x == y) | (x.isnan() & y.isnan())
    return float(torch.where(equal_values, 0.0, (x - y).abs()).nan_to_num(nan=math.inf).max()) if len(x) else 0.0


def max_abs(x: Tensor) -> float:
    """The largest absolute value; inf for NaN."""
    return float(x.abs().nan_to_num(nan=math.inf).max()) if x.numel() else 0.0


def first_leaking_visit(
    visits: Sequence[Visit], changed_visits: Sequence[Visit], leaks: Callable[[Visit, Visit, int], bool]
) -> Visit | None:
    """The first leaking visit, compared with the same visit of another run: first beyond rounding, then bit for bit.

    leaks: decides for a visit, the same visit of the other run and a number of roundings.
    """
    for roundings in (ROUNDINGS, 0):  # experts of a mixture may round differently: not a leak
        for visit, changed_visit in zip(visits, changed_visits, strict=False):
            if leaks(visit, changed_visit, roundings):
                return visit
    return None
