"""Which reduction over the pack a wrong loss follows, and its gradients: another one than declared, or none."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from packproof.base.axes import is_shared
from packproof.base.errors import KernelFault
from packproof.base.reductions import REDUCTIONS
from packproof.properties.bounds import vjp
from packproof.properties.calling import Refusal, TensorKey
from packproof.properties.cases import Case, Sample
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.laws import Violation
from packproof.properties.ops import index_of_largest, shares

_TELLING_LENGTHS = (2, 5, 1, 3)
_SEEDS = range(4)  # with each of them other tokens count
_SLACK = 4.0  # times the budget of the declared reduction, whose terms another one weighs differently
NO_REDUCTION = "no reduction of its sequences"


def reduction_line(kernel: KernelUnderTest, case: Case, violation: Violation) -> list[str]:
    """A line that names the reduction of a wrong tensor; empty where the op has none, or where it is the declared one.

    case: the smallest case.
    """
    key, reductions = violation.tensor, kernel.op.reductions
    if violation.text or key is None or key.kind not in ("output", "gradient") or len(reductions) != 1:
        return []
    [(name, declared)] = reductions.items()
    if key.kind == "output" and key.name != name:
        return []
    plain_case = case.replace(cuts=None)
    packs = [case.with_lengths(_TELLING_LENGTHS).replace(seed=seed, key_lengths=None) for seed in _SEEDS]
    packs = [pack for pack in (plain_case, *packs) if kernel.domain.allows(kernel.op, pack)]
    try:
        candidates = [set(_matching_reductions(kernel, kernel.sample(pack), name, key)) for pack in packs]
    except (KernelFault, Refusal):
        return []
    matching = set.intersection(*candidates)
    if declared in matching:
        return []
    followed: Sequence[str] = [kind for kind in REDUCTIONS if kind in matching] or sorted(matching)
    names = " or ".join(f"`{reduction}`" for reduction in followed)
    known = ", ".join(f"`{kind}`" for kind in REDUCTIONS if kind != declared)
    return [f"{key} follows {names or f'{NO_REDUCTION}: not {known} either'}; declared is `{declared}`"]


def _matching_reductions(kernel: KernelUnderTest, sample: Sample, name: str, key: TensorKey) -> Iterator[str]:
    """The reductions of the sequences' values, by the reference, that give the tensor of the pack."""
    if not sample.lengths:
        return
    bare = replace(sample, op=replace(sample.op, reductions={}))
    parts = [bare.alone(j) for j in range(len(sample.lengths))]
    answers = [vjp(sample.op.reference, part, gradients=key.is_gradient) for part in parts]
    values, actual = [answer[TensorKey(name)] for answer in answers], kernel.run(sample)[key].double()
    declared = shares(sample.op.reductions[name], sample.counts, values)
    budget = kernel.budget(key, sample).total
    for reduction, weights in _weights(sample, name, values).items():
        terms = [w * answer[key] for w, answer in zip(weights, answers, strict=True)]
        expected = _join(sample, key, terms)
        scale = max([1.0, *(abs(w / d) for w, d in zip(weights, declared, strict=True) if d)])
        rows = slice(len(expected)) if expected.ndim else ...
        if bool(((actual[rows] - expected).abs() <= _SLACK * scale * budget[rows]).all()):
            yield reduction


def _join(sample: Sample, key: TensorKey, terms: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(terms)).sum(0) if is_shared(sample.axes[key.name]) else torch.cat(list(terms))


def _weights(sample: Sample, name: str, values: Sequence[Tensor]) -> Mapping[str, list[float]]:
    """The weight of each sequence's value in a pack, by the name of the reduction."""
    declared, counts = sample.op.reductions[name], sample.counts
    units = [1.0 if declared == "sum" else n for n in counts]  # a sequence's sum over tokens, by its value
    means = [u / n if n else 0.0 for u, n in zip(units, counts, strict=True)]
    tokens, sequences = sum(counts) or 1.0, sum(n > 0 for n in counts) or 1
    largest = index_of_largest(counts, values)
    return {
        "sum": units,
        "mean over tokens": [u / tokens for u in units],
        "mean over sequences": [m / sequences for m in means],
        "maximum": [float(j == largest) for j in range(len(counts))],
        "sum of the means of sequences": means,
        "sum divided by the number of sequences": [u / sequences for u in units],
        "mean over all tokens, also those that do not count": [u / max(sum(sample.lengths), 1) for u in units],
        "mean over all sequences, also those without tokens that count": [m / max(len(counts), 1) for m in means],
    }
