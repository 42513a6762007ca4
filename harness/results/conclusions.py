"""Findings besides the verdicts: the calls that a kernel refuses, and unpromised properties that hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from packproof.harness.results.coverage import kind_of
from packproof.harness.results.events import Limit, Verdict
from packproof.harness.results.names import short
from packproof.harness.results.questions import question_of
from packproof.properties.cases.case import shorten
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.tuned import merged
from packproof.refs.wording import counted


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
            small = min(
                self.broken, key=lambda v: (sum(v.failure.lengths), v.failure.lengths) if v.failure else (0, ())
            )
            assert small.failure is not None
            dtypes = ", ".join(dict.fromkeys(short(v.cell.dtype) for v in self.broken))
            seen = f" · packproof replay {small.failure.replay}" if small.failure.replay else ""
            return f"{self.meaning}: does not hold ({dtypes}), smallest lengths {shorten(small.failure.lengths)}{seen}"
        if any(v.status == "passed" for v in self.verdicts):
            return f"{self.meaning}: holds"
        reasons = dict.fromkeys(v.reason.partition(": ")[0] for v in self.verdicts if v.reason)
        return f"{self.meaning}: not known ({'; '.join(reasons)})"


def answers(verdicts: Sequence[Verdict]) -> list[Answer]:
    """The result for each unpromised property, in the order of the verdicts."""
    by_meaning: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.cell.beyond:
            by_meaning.setdefault(question_of(verdict.cell.property, verdict.cell.beyond).meaning, []).append(verdict)
    return [Answer(meaning, tuple(found)) for meaning, found in by_meaning.items()]


def limits(verdicts: Sequence[Verdict]) -> list[Limit]:
    """The refusals of a kernel: one entry for each of its argument checks, with the smallest layout."""
    kinds: dict[str, Limit] = {}
    for limit in (limit for verdict in verdicts for limit in verdict.limits):
        key = limit.note + kind_of(limit.text)
        known = kinds.get(key)
        if known is None:
            kinds[key] = limit
            continue
        small = min(known, limit, key=lambda each: (sum(each.lengths) + len(each.lengths), each.lengths))
        kinds[key] = replace(small, count=known.count + limit.count)
    return list(kinds.values())


def found_domain(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """The inferred conditions of the domain, over all dtypes."""
    return tuple(dict.fromkeys(text for verdict in verdicts for text in verdict.domain))


_USUAL = {
    "an empty sequence": ("length", {}, [0]),
    "a sequence of one token": ("length", {}, [1]),
    "rows past the last sequence": ("slack", {"slack": 16}, []),
    "a pack without tokens": ("longest", {"longest": 0}, []),
    "a number of rows that is not a multiple": ("tokens", {"tokens": 331}, []),
}


def usual_refused(domain: Sequence[str]) -> Iterator[str]:
    """The common inputs of data loaders that the domain excludes."""
    whole = Domain.of(domain)
    for what, (name, values, lengths) in _USUAL.items():
        if not whole.within({name}).holds(values, lengths):
            yield what


def tuned_lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The judged configurations of each autotuned kernel, counted over all cells."""
    if tuned := merged(*(verdict.tuned for verdict in verdicts)):
        yield f"configurations judged: {', '.join(map(str, tuned))}"


def limits_lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The limits of a kernel as text: the inferred domain, and the refused calls."""
    found = limits(verdicts)
    domain = found_domain(verdicts)
    if not (found or domain):
        return
    yield "limits found:"
    if domain:
        yield f"  checked within domain=[{', '.join(map(repr, domain))}], inferred from the calls that it refuses"
        usual = list(usual_refused(domain))
        if usual:
            yield f"  it does not take inputs that any data loader produces: {', '.join(usual)}"
    for limit in found:
        first, *more = [*limit.text.splitlines(), *([limit.note] if limit.note else [])]
        yield f"  refused {counted(limit.count, 'call')}{' (gradients)' if limit.gradients else ''}: {first}"
        yield from (f"      {line.strip()}" for line in more)
        yield f"      smallest lengths {shorten(limit.lengths)}"
