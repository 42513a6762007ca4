"""The backtest as text: a line for each entry, a summary, and a page with the misses first."""

from collections import Counter
from collections.abc import Mapping, Sequence

from packproof.base.environment import environment
from packproof.proof.backtest.commit_check import FailedCell
from packproof.proof.backtest.entries import Candidate
from packproof.proof.backtest.outcome import FixOutcome, counts
from packproof.version import __version__

_ORDER = ("missed", "another reason", "cannot be asked", "not run", "detected")
_MEANING = {
    "missed": "Nothing failed at the parent.",
    "another reason": "What failed at the parent fails at the fix, too, at the same smallest cases.",
    "cannot be asked": "No op, convention or language of packproof's fits, or the commit could not be imported.",
    "not run": "",
    "detected": "A property fails at the parent that holds at the fix, or at a smallest case that holds there. Where "
    "what fails at both commits hides the rest, as empty sequences may, a question is asked again inside a domain. "
    "What still fails at a fix on a CPU is explained by a script.",
}
_REFACTORINGS = (
    "Commits that change kernels or packers and mend no fault, by reading: what fails at one of the two commits has to "
    "fail at the other. An alarm is a property that does not. What fails at both is a fault that both have."
)
_SWAPPED = (
    "The same command with parent and fix exchanged. What is detected here fails at the fix and holds at the parent: a "
    "fault that the fix brings, or one that the first fault hid."
)


def line(outcome: FixOutcome) -> str:
    """One entry on the terminal."""
    seconds = sum(trial.seconds for trial in (outcome.parent, outcome.fix) if trial)
    if outcome.fate in ("alarm", "same"):
        return f"{outcome.id:<28} {outcome.fate:<15} {seconds:6.0f} s  {_differences(outcome)}"
    cells = ", ".join(dict.fromkeys(f"{c.law} {c.tensor}".strip() for c in outcome.speaking))
    about = cells or outcome.reason or ", ".join(dict.fromkeys(c.law for c in outcome.at_fix))
    at_fix = f"; at the fix {len(outcome.at_fix)} still fail" if outcome.at_fix else ""
    return f"{outcome.id:<28} {outcome.fate:<15} {seconds:6.0f} s  {about}{at_fix}"


def _differences(outcome: FixOutcome) -> str:
    """What a refactoring makes fail, or hold, or leaves failing."""
    lists = (("only before", outcome.speaking), ("only after", outcome.appearing), ("at both", _at_both(outcome)))
    named = ((label, dict.fromkeys(f"{c.law} {c.tensor}".strip() for c in cells)) for label, cells in lists)
    return "; ".join(f"{label}: {', '.join(names)}" for label, names in named if names)


def _at_both(outcome: FixOutcome) -> list[FailedCell]:
    return [cell for cell in outcome.at_fix if cell not in outcome.appearing]


def summary(
    cases: Sequence[Candidate], outcomes: Mapping[str, FixOutcome], refactorings: Sequence[Candidate] = ()
) -> str:
    """The counts: of entries in scope that packproof claims, of those that a later version shall claim, of
    refactorings, and of entries with their commits exchanged."""
    claimed = [case for case in cases if case.in_scope and not case.entry.later]
    later = [case for case in cases if case.in_scope and case.entry.later]
    lines = [
        f"{label}: {_counted(members, outcomes)}"
        for label, members in (("in scope", claimed), ("later", later))
        if members
    ]
    having = [outcomes[case.entry.id] for case in refactorings if case.entry.id in outcomes]
    if having:
        number = counts(having)
        lines.append(f"refactorings: {number['same']} of {number['same'] + number['alarm']} the same")
    if undone := _swapped(cases, outcomes):
        number = counts([outcomes[case.entry.id] for case in undone])
        lines.append(f"swapped: {number['detected']} of {len(undone) - number['cannot be asked']} detected")
    return "\n".join(lines)


def _counted(cases: Sequence[Candidate], outcomes: Mapping[str, FixOutcome]) -> str:
    number = Counter(_fate(case, outcomes) for case in cases)
    ran = len(cases) - number["not run"]
    parts = ", ".join(f"{number[fate]} {fate}" for fate in _ORDER if number[fate] and fate != "detected")
    n_added = sum(_fate(case, outcomes) == "detected" and bool(case.question and case.question.added) for case in cases)
    added = f" ({n_added} by what was added after they had been read)" if n_added else ""
    return f"{number['detected']} of {ran} detected{added}" + (f"; {parts}" if parts else "")


def as_markdown(
    cases: Sequence[Candidate], outcomes: Mapping[str, FixOutcome], refactorings: Sequence[Candidate] = ()
) -> str:
    """The page."""
    machine = environment("cpu")
    lines = [
        "# The backtest",
        "",
        "How many of the field's own fixes would packproof have detected? At the commit before a fix it should speak, "
        "at the fix it should be silent. The entries were selected by a [rule](../tools/proof/backtest/RULE.md) that "
        "was written before the run, and so was what is in scope.",
        "",
        f"By `packproof backtest` with packproof {__version__}, torch {machine.torch}, triton {machine.triton}. The "
        "outcomes are in [backtest.jsonl](../data/backtest.jsonl), from which `packproof backtest --merge "
        "data/backtest.jsonl --page docs/backtest.md` makes this page. Each is that of an entry's last run: not all "
        "were run again after every change of packproof. Outcomes of a GPU are of an H200, with another torch "
        "and triton.",
        "",
        *summary(cases, outcomes, refactorings).splitlines(),
        "",
        "| project | candidates | in scope | detected | missed | another reason | cannot be asked | not run |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *_project_rows(cases, outcomes),
        "",
    ]
    for fate in _ORDER:
        members = [case for case in cases if case.in_scope and _fate(case, outcomes) == fate]
        if members:
            lines += [f"## {fate.capitalize()}: {len(members)}", "", *([_MEANING[fate], ""] if _MEANING[fate] else [])]
            lines += ["| fix | report | fault | what packproof says |", "| --- | --- | --- | --- |"]
            lines += [_row(case, outcomes.get(case.entry.id)) for case in members] + [""]
    lines += _refactoring_lines(refactorings, outcomes) + _swapped_lines(cases, outcomes)
    lines += ["## Out of scope", "", "| fix | reason |", "| --- | --- |"]
    lines += [f"| {_commit(case)} | {_cell(case.entry.reason)} |" for case in cases if not case.in_scope]
    return "\n".join(lines) + "\n"


def _refactoring_lines(refactorings: Sequence[Candidate], outcomes: Mapping[str, FixOutcome]) -> list[str]:
    rows = [
        f"| {_commit(case)} | {_cell(case.entry.reason)} | {_fate(case, outcomes)} | {_cell(text)} |"
        for case in refactorings
        for outcome in [outcomes.get(case.entry.id)]
        if outcome
        for text in [". ".join(filter(None, (_differences(outcome), outcome.reason, case.entry.fault)))]
    ]
    header = [f"## Refactorings: {len(rows)}", "", _REFACTORINGS, "", "| commit | change | outcome | what fails |"]
    return [*header, "| --- | --- | --- | --- |", *rows, ""] if rows else []


def _swapped(cases: Sequence[Candidate], outcomes: Mapping[str, FixOutcome]) -> list[Candidate]:
    """The entries that were run with their commits exchanged."""
    return [case.swapped for case in cases if case.swapped.entry.id in outcomes]


def _swapped_lines(cases: Sequence[Candidate], outcomes: Mapping[str, FixOutcome]) -> list[str]:
    rows = [
        f"| {_commit(case)} | {fate} | {_cell('. '.join(filter(None, (_differences(outcome), reading))))} |"
        for case in _swapped(cases, outcomes)
        for outcome in [outcomes[case.entry.id]]
        for fate in ["not detected" if outcome.fate in ("missed", "another reason") else outcome.fate]
        for reading in [_reading(case)]
    ]
    header = [f"## Swapped: {len(rows)}", "", _SWAPPED, "", "| commit | outcome | what fails |", "| --- | --- | --- |"]
    return [*header, *rows, ""] if rows else []


def _reading(case: Candidate) -> str:
    return case.checkout.readings.get(case.entry.id, "") if case.checkout else ""


def _project_rows(cases: Sequence[Candidate], outcomes: Mapping[str, FixOutcome]) -> list[str]:
    rows = []
    for project in dict.fromkeys(case.project for case in cases):
        candidates = [case for case in cases if case.project == project]
        in_scope = [case for case in candidates if case.in_scope]
        fates = [_fate(case, outcomes) for case in in_scope]
        numbers = (fates.count(fate) for fate in ("detected", "missed", "another reason", "cannot be asked", "not run"))
        rows.append(f"| {project} | {len(candidates)} | {len(in_scope)} | {' | '.join(map(str, numbers))} |")
    return rows


def _fate(case: Candidate, outcomes: Mapping[str, FixOutcome]) -> str:
    outcome = outcomes.get(case.entry.id)
    return outcome.fate if outcome else "not run"


def _row(case: Candidate, outcome: FixOutcome | None) -> str:
    report = (
        case.entry.report and f"[{case.entry.report}](https://github.com/{case.entry.report.replace('#', '/issues/')})"
    )
    added = (
        f"needs what was added after reading it: {case.question.added}" if case.question and case.question.added else ""
    )
    verdict = ". ".join(filter(None, [_verdict_text(outcome) if outcome else "", added, _reading(case)]))
    return f"| {_commit(case)} | {report} | {_cell(case.entry.fault)} | {_cell(verdict)} |"


def _verdict_text(outcome: FixOutcome) -> str:
    cells = [f"{c.law} {c.tensor} at {list(c.lengths)}" for c in outcome.speaking[:3]]
    still = [f"at the fix still: {c.law} {c.tensor}" for c in outcome.at_fix[:2]]
    asked = [f"asked for {' and '.join(outcome.properties)} alone"] if outcome.properties else []
    return "; ".join([*([outcome.reason] if outcome.reason else []), *cells, *still, *asked])


def _commit(case: Candidate) -> str:
    url = f"https://github.com/{case.project}/commit/{case.entry.fix}"
    return f"[{case.entry.id}]({url})"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
