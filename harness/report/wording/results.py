"""The results of a check in words: the same for the terminal, JUnit, pytest and exceptions."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from packproof.base.names import CONTRACT, short_dtype
from packproof.base.wording import plural
from packproof.harness.report.causes import Fault, Faults
from packproof.harness.report.events import Cell, RunFinished, Verdict
from packproof.harness.report.maps.text import small_error_lines
from packproof.harness.report.wording.terms import terms_clause
from packproof.properties.cases import BOUNDARY_CLASSES, KEY_CLASSES, REGIME_DESCRIPTIONS, shorten

_COUNTED: Mapping[str, str] = {
    "error": "not judged",
    "expected": "failed as expected",
    "in part": "passed in part",
}

_OUTCOMES: Mapping[str, str] = {  # the worst first
    "failed": "a property does not hold",
    "stale": "a property that was expected to fail holds, or does not apply",
    "error": "packproof itself failed, and not everything could be judged",
    "inconclusive": "inconclusive: no property failed, but not everything could be judged",
    "expected": "every property held, or failed as expected",
    "in part": "every property held, but not everything could be asked of this machine",
    "passed": "every property held",
}


def cell_title(cell: Cell) -> str:
    """The cell in a few words: `ssd packing bf16`."""
    return f"{cell.op} {cell_name(cell)}"


def cell_name(cell: Cell) -> str:
    """A cell of a known kernel: `packing bf16`."""
    return f"{cell.law} {short_dtype(cell.dtype)}"


def failure_text(verdict: Verdict) -> str:
    """A failure as a report: the property, the smallest layout, the place and size of the error, the replay command."""
    cell, failure = verdict.cell, verdict.failure
    if failure is None:
        raise ValueError(f"{cell_title(cell)} {verdict.status}: there is no failure to describe")
    tensor = f" ({failure.tensor})" if failure.tensor else ""
    status = verdict.status.upper()
    lines = [f"{cell.op} · {cell.target} · {status}  {cell.law}{tensor}   {short_dtype(cell.dtype)}, {verdict.tier}"]
    if failure.example:
        example_text = f"found in example {failure.example}"
        example_text += f", smallest of {failure.cases_tried} tried" if failure.cases_tried else ""
        lines.append(f"    {f'lengths {shorten(failure.lengths)}':<32} {example_text}")
    lines += [f"    {line}" for line in failure.lines]
    lines += [f"    {verdict.reason}"] if verdict.status == "expected" else []
    lines += ["    not promised by the kernel: a finding, not a broken promise"] if cell.unpromised else []
    if failure.evidence and failure.evidence.errors:
        lines += [f"    {line}" for line in small_error_lines(failure.evidence.errors)]
    lines += [f"    packproof replay {shlex.quote(failure.replay)}"] if failure.replay else []
    return "\n".join(lines)


def failure_texts(verdicts: Sequence[Verdict]) -> list[str]:
    """The text of each fault: of its most telling failure, with a list of its cells."""
    texts = [fault_text(fault) for fault in Faults(verdicts)]
    return [*texts, *(["\n".join(regime_lines(verdicts))] if regime_lines(verdicts) else [])]


def fault_text(fault: Fault) -> str:
    """The most telling failure of a fault, and the other cells in which it shows."""
    other_cells = (f"    {line}" for line in fault.other_cells_lines(fault.telling))
    return "\n".join([failure_text(fault.telling), *other_cells])


def regime_lines(verdicts: Iterable[Verdict]) -> list[str]:
    """The meaning of each data regime with a failure."""
    regimes = dict.fromkeys(v.failure.regime for v in verdicts if v.failure and v.failure.regime != "normal")
    return [f"{name}: {REGIME_DESCRIPTIONS[name]}" for name in regimes]


def first_failure_lines(verdict: Verdict) -> Iterator[str]:
    """A new failure, before shrinking, in one or two lines: the cell, the layout and the error."""
    failure = verdict.failure
    assert failure is not None
    tensor = f" ({failure.tensor})" if failure.tensor else ""
    lengths = shorten(failure.lengths, 6)
    yield f"failing  {cell_title(verdict.cell)}{tensor}: lengths {lengths}; looking for the smallest layout"
    yield from (f"         {line}" for line in failure.lines[1:2])


def headline(verdict: Verdict) -> str:
    """The failure in one line: the property, the layout and the error; of a module, the leak and its first place."""
    failure = verdict.failure
    if failure is None:
        return verdict.reason
    tensor = f" ({failure.tensor})" if failure.tensor else ""
    layout = f" at lengths {shorten(failure.lengths, 6)}" if failure.example else ""
    return f"{verdict.cell.law}{tensor}{layout}: {'; '.join(failure.lines[:2]) or 'failed'}"


def share_text(verdict: Verdict) -> str:
    """The examples of a verdict: "72 examples", or "judged 4 of 72, 68 refused"."""
    if verdict.judged == verdict.examples:
        return plural(verdict.examples, "example")
    return f"judged {verdict.judged} of {verdict.examples}" + (
        f", {verdict.refused} refused" if verdict.refused else ""
    )


def layout_classes(verdicts: Sequence[Verdict]) -> dict[str, bool]:
    """The boundary classes in the kernel's domain, each with whether it was judged; none if no layout was drawn."""
    judged_classes = frozenset[str]().union(*(verdict.classes for verdict in verdicts))
    possible_classes = judged_classes.union(*(verdict.possible_classes for verdict in verdicts))
    names = [name for name in (*BOUNDARY_CLASSES, *KEY_CLASSES) if name in possible_classes]
    return {name: name in judged_classes for name in names} if judged_classes else {}


def layout_classes_text(verdicts: Sequence[Verdict]) -> str:
    """The number of judged boundary classes, and the names of the others unless a failure ended the search."""
    classes = layout_classes(verdicts)
    missed = [name for name, is_judged in classes.items() if not is_judged]
    cut_short = any(verdict.failure for verdict in verdicts)
    tail = f"; not judged: {', '.join(missed)}" if missed and not cut_short else ""
    return f"{len(classes) - len(missed)} of {len(classes)} layout classes judged{tail}"


def summary(run: RunFinished, planned: int) -> str:
    """The whole run in one line."""
    return f"{conclusion(run)}: {counts_text(run, planned)}"


def conclusion(run: RunFinished) -> str:
    """The verdict on the whole run, with the terms on which it was reached."""
    verdicts = [verdict for verdict in run.verdicts if verdict.cell.counts]
    is_verdict = not (run.error or run.interrupted or any(verdict.status == "error" for verdict in verdicts))
    return f"{_outcome(run, verdicts)}{terms_clause(verdicts) if is_verdict else ''}"


def counts_text(run: RunFinished, planned: int) -> str:
    """The cells by status, the examples and the time."""
    verdicts = [verdict for verdict in run.verdicts if verdict.cell.counts]
    labels = Counter(verdict.label for verdict in verdicts)
    order = ("failed", "stale", "error", "inconclusive", "in part", "passed", "expected", "skipped")
    parts = [f"{labels[label]} {_COUNTED.get(label, label)}" for label in order if labels[label]]
    parts += [f"{planned - len(verdicts)} not run"] if planned > len(verdicts) else []
    judged_count, examples = (sum(getattr(v, name) for v in verdicts) for name in ("judged", "examples"))
    examples_text = plural(examples, "example")
    share = examples_text if judged_count == examples else f"{judged_count} of {examples_text} judged"
    return f"{', '.join(parts) or 'no cell'}; {share} in {run.seconds:.1f} s"


def _outcome(run: RunFinished, verdicts: Sequence[Verdict]) -> str:
    """The worst that happened, in words."""
    if run.error:
        return f"packproof itself failed: {run.error}"
    if run.interrupted:
        return "interrupted"
    labels = {verdict.label for verdict in verdicts}
    if "failed" in labels and all(v.cell.property == CONTRACT for v in verdicts if v.status == "failed"):
        return "the kernel loosens its contract"
    return next((text for label, text in _OUTCOMES.items() if label in labels), "nothing was checked")


def timings_lines(timings: Mapping[str, float]) -> Iterator[str]:
    """The time of a run by span, longest first."""
    total = sum(timings.values())
    yield f"where the time went, {total:.1f} s over all processes:"
    for name, seconds in sorted(timings.items(), key=lambda item: -item[1]):
        yield f"  {name:<10} {seconds:>8.2f} s {seconds / total if total else 0:>5.0%}"
