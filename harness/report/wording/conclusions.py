"""Findings besides the verdicts: the calls that a kernel refuses, and unpromised properties that hold."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from packproof.base.names import EVERY_DTYPE, short_dtype
from packproof.base.provenance.computed import Computed, computed_text
from packproof.base.tuned import merge_tuned
from packproof.base.wording import plural
from packproof.harness.report.coverage import refusal_key
from packproof.harness.report.events import Limit, Verdict
from packproof.properties.cases import Domain, shorten
from packproof.properties.declarations import find_question


@dataclass(frozen=True)
class Answer:
    """The result for one unpromised property."""

    meaning: str
    """The promise, in words."""
    verdicts: tuple[Verdict, ...]
    """One for each tested dtype."""

    @property
    def broken(self) -> list[Verdict]:
        return [v for v in self.verdicts if v.status == "failed"]

    def __str__(self) -> str:
        if self.broken:
            smallest = min(
                self.broken, key=lambda v: (sum(v.failure.lengths), v.failure.lengths) if v.failure else (0, ())
            )
            assert smallest.failure is not None
            dtypes = ", ".join(dict.fromkeys(short_dtype(v.cell.dtype) for v in self.broken))
            replay_text = f" · packproof replay {smallest.failure.replay}" if smallest.failure.replay else ""
            lengths = shorten(smallest.failure.lengths)
            return f"{self.meaning}: does not hold ({dtypes}), smallest lengths {lengths}{replay_text}"
        if any(v.status == "passed" for v in self.verdicts):
            return f"{self.meaning}: holds"
        reasons = dict.fromkeys(v.reason.partition(": ")[0] for v in self.verdicts if v.reason)
        return f"{self.meaning}: not known ({'; '.join(reasons)})"


def answers(verdicts: Sequence[Verdict]) -> list[Answer]:
    """The result for each unpromised property, in the order of the verdicts."""
    by_meaning: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.cell.unpromised:
            by_meaning.setdefault(find_question(verdict.cell.property, verdict.cell.unpromised).meaning, []).append(
                verdict
            )
    return [Answer(meaning, tuple(group)) for meaning, group in by_meaning.items()]


def limits(verdicts: Sequence[Verdict]) -> list[Limit]:
    """The refusals of a kernel: one entry for each of its argument checks, with the smallest layout."""
    kinds: dict[str, Limit] = {}
    for limit in (limit for verdict in verdicts for limit in verdict.limits):
        key = limit.note + refusal_key(limit.text)
        previous = kinds.get(key)
        if previous is None:
            kinds[key] = limit
            continue
        smallest = min(
            previous, limit, key=lambda candidate: (sum(candidate.lengths) + len(candidate.lengths), candidate.lengths)
        )
        kinds[key] = replace(smallest, count=previous.count + limit.count)
    return list(kinds.values())


def inferred_domain(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """The inferred conditions of the domain, over all dtypes."""
    return tuple(dict.fromkeys(text for verdict in verdicts for text in verdict.domain))


_USUAL_INPUTS = {
    "an empty sequence": ("length", {}, [0]),
    "a sequence of one token": ("length", {}, [1]),
    "rows past the last sequence": ("slack", {"slack": 16}, []),
    "a pack without tokens": ("longest", {"longest": 0}, []),
    "a number of rows that is not a multiple": ("tokens", {"tokens": 331}, []),
}


def excluded_usual_inputs(domain: Sequence[str]) -> Iterator[str]:
    """The common inputs of data loaders that the domain excludes."""
    parsed_domain = Domain.of(domain)
    for description, (name, values, lengths) in _USUAL_INPUTS.items():
        if not parsed_domain.within({name}).holds(values, lengths):
            yield description


def first_refusal_lines(verdict: Verdict) -> Iterator[str]:
    """The refusal that a cell has met, and the domain in which the check goes on, as soon as they are known."""
    refusals = [limit for limit in verdict.limits if not limit.gradients and not limit.note]
    for limit in refusals[:1]:
        yield f"refused  lengths {shorten(limit.lengths)}: {limit.text.partition(chr(10))[0]}"
    if verdict.domain:
        conditions = shlex.quote("; ".join(verdict.domain))
        yield f"         the check goes on within the calls that it takes, as with --domain {conditions}"


def computed_lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Who computed the traced calls of a kernel: one line, or one for each dtype if kinds or passes differ."""
    by_dtype: dict[str, dict[Computed, None]] = {}
    for verdict in verdicts:
        if verdict.cell.dtype != EVERY_DTYPE:
            by_dtype.setdefault(verdict.cell.dtype, {}).update(dict.fromkeys(verdict.computed))
    kinds = {tuple(sorted({(item.kind, item.during) for item in items})) for items in by_dtype.values() if items}
    if len(kinds) == 1:
        yield f"computed by: {computed_text(item for items in by_dtype.values() for item in items)}"
    elif kinds:
        for dtype, items in by_dtype.items():
            yield f"computed in {short_dtype(dtype)} by: {computed_text(items) or 'not traced'}"


def tuned_lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The judged configurations of each autotuned kernel, counted over all cells."""
    if tuned := merge_tuned(*(verdict.tuned for verdict in verdicts)):
        yield f"configurations judged: {', '.join(map(str, tuned))}"


def perturbed_lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The calls made under perturbation, of all cells."""
    if calls := sum(verdict.perturbed_calls for verdict in verdicts):
        yield f"calls under perturbation: {calls:,}"


def limits_lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The limits of a kernel as text: the inferred domain, and the refused calls."""
    kernel_limits = limits(verdicts)
    domain = inferred_domain(verdicts)
    if not (kernel_limits or domain):
        return
    yield "limits found:"
    if domain:
        yield f"  checked within domain=[{', '.join(map(repr, domain))}], inferred from the calls that it refuses"
        excluded = list(excluded_usual_inputs(domain))
        if excluded:
            yield f"  it does not take inputs that any data loader produces: {', '.join(excluded)}"
    for limit in kernel_limits:
        head, *tail = [*limit.text.splitlines(), *([limit.note] if limit.note else [])]
        yield f"  refused {plural(limit.count, 'call')}{' (gradients)' if limit.gradients else ''}: {head}"
        yield from (f"      {line.strip()}" for line in tail)
        yield f"      smallest lengths {shorten(limit.lengths)}"
