"""Rogues, kernels that cheat a checker, run under a naive harness and under packproof's.

Destructive rogues delete files or write into other processes. They run in a throwaway root only, by this module as a
program.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from packproof.base.errors import UsageError
from packproof.base.provenance.computed import computed_text
from packproof.base.records import parse_record
from packproof.harness.check import CheckRequest, plan, run_plan
from packproof.harness.check.targets import CheckTarget, open_target
from packproof.harness.report import RunFinished, Verdict
from packproof.museum.rogues import MARK, Rogue, entries, require_throwaway_root, running_sum
from packproof.proof.museum.naive_harness import passes_naive_harness
from packproof.proof.museum.rogue_models import model_fate
from packproof.proof.museum.surroundings import Surroundings
from packproof.proof.museum.throwaway_root import ThrowawayRootError, environment, throwaway_root
from packproof.properties.contracts import Contract, ContractFile
from packproof.properties.ops import Op

RUNNING_SUM = Op(
    name="running_sum",
    reference=running_sum,
    inputs={"x": "t d", "weight": "d"},
    outputs={"y": "t d"},
    sizes=({"d": 8}, {"d": 3}),
)
_RUNNING_SUM = "packproof.proof.museum.rogues:RUNNING_SUM"  # for contracts
_SECONDS = 6.0  # limit for one call of a rogue; R82 takes one second of a core, and ten times the limit by the clock
_ROOT_SECONDS = 900  # limit for all rogues in a throwaway root together
_MOST_CHANGES = 8  # in a line

Fate = Literal["detected", "reported", "prevented", "passed", "harmed", "lost", "not run"]
DEFENDED = ("detected", "reported", "prevented")


@dataclass(frozen=True)
class RogueResult:
    """The result of one rogue."""

    rogue: Rogue
    fate: Fate
    """ "detected": a property failed. "reported": a verdict is inconclusive, a reference computed, or nothing can be
    made of it. "prevented": its values are correct, and what it does to others had no effect. "passed": all passed.
    "harmed": something around it has changed. "lost": a verdict is missing, or packproof itself failed. "not run": it
    has no throwaway root."""
    text: str
    """The verdicts as text, or why it did not run."""

    @property
    def is_as_expected(self) -> bool:
        """Whether it is detected with the expected text; or, if declared as undefended, whether it passes."""
        if self.rogue.undefended:
            return self.fate == "passed"
        return self.fate in DEFENDED and self.rogue.detected in self.text


def try_rogues(rogues: Sequence[Rogue]) -> Iterator[RogueResult]:
    """Check the rogues side by side, as a user would, and yield the result of each.

    Destructive ones are checked in a throwaway root, or not at all.
    """
    yield from _check_rogues([rogue for rogue in rogues if not rogue.destroys])
    destructive = [rogue for rogue in rogues if rogue.destroys]
    if not destructive:
        return
    try:
        answers = _in_throwaway_root("check", destructive)
    except ThrowawayRootError as error:
        yield from (RogueResult(rogue, "not run", str(error)) for rogue in destructive)
        return
    for rogue in destructive:
        yield RogueResult(rogue, *answers.get(rogue.id, ("lost", "the run in a throwaway root gave no verdict")))


def _check_rogues(rogues: Sequence[Rogue]) -> Iterator[RogueResult]:
    for rogue in rogues:
        if rogue.kind == "model":
            yield RogueResult(rogue, *model_fate(rogue))
    yield from _check_kernels([rogue for rogue in rogues if rogue.kind != "model"])


def _request(rogue: Rogue) -> CheckRequest:
    request = CheckRequest(
        target=rogue.kernel,
        op=RUNNING_SUM if rogue.op == RUNNING_SUM.name else rogue.op,
        dtypes=("float32",),
        properties=rogue.properties,
        profile="quick",
        timeout=_SECONDS,
        questions=False,
        replay_dir=os.devnull,
    )
    if rogue.contract is None:
        return request
    name = _RUNNING_SUM if rogue.op == RUNNING_SUM.name else rogue.op
    terms = parse_record(Contract, {"op": name, "profile": "quick", **rogue.contract}, rogue.id, "packproof")
    file = ContractFile(f"the contract of {rogue.op}", "", terms)
    return replace(request, op=None, contract=file).under_contract(file)


def _check_kernels(rogues: Sequence[Rogue]) -> Iterator[RogueResult]:
    targets, verdicts = list[CheckTarget](), list[Verdict]()
    for rogue in rogues:
        try:
            targets.append(open_target(_request(rogue)))
        except UsageError as error:  # it ended its process when it was imported
            yield RogueResult(rogue, "reported", str(error))
    request = CheckRequest(profile="quick", replay_dir=os.devnull)
    for event in run_plan(plan(request, targets, one_cell_each=True)) if targets else ():
        if isinstance(event, RunFinished):
            verdicts = list(event.verdicts)
    opened = {target.name for target in targets}
    for rogue in rogues:
        if rogue.kernel in opened:
            yield _rogue_result(rogue, [v for v in verdicts if v.cell.target == rogue.kernel])


def _in_throwaway_root(task: str, rogues: Sequence[Rogue]) -> dict[str, Any]:
    """The answers of `main` in a throwaway root, by the id of the rogue. Raises ThrowawayRootError."""
    with throwaway_root() as prefix:
        program = [sys.executable, "-P", "-m", __name__, task, *(rogue.id for rogue in rogues)]
        try:
            process = subprocess.run(
                [*prefix, *program],
                env={**environment(), "PYTHONDONTWRITEBYTECODE": "1"},  # bytecode is one of the files that are compared
                stdout=subprocess.PIPE,
                timeout=_ROOT_SECONDS,
                check=False,
            )
            return dict(json.loads(process.stdout.splitlines()[-1]))
        except (subprocess.TimeoutExpired, ValueError, IndexError):  # a rogue has destroyed the process of the answer
            return {}


def _rogue_result(rogue: Rogue, verdicts: Sequence[Verdict]) -> RogueResult:
    statuses = {verdict.status for verdict in verdicts}
    text = "\n".join("\n".join(v.failure.lines) if v.failure else f"{v.status}: {v.reason}" for v in verdicts)
    references = [item for verdict in verdicts for item in verdict.computed if item.kind == "reference"]
    if references:
        text = f"computed by: {computed_text(references)}\n{text}"
    if "failed" in statuses:
        failed_verdict = next(v for v in verdicts if v.status == "failed")
        return RogueResult(
            rogue,
            "detected",
            f"{failed_verdict.cell.property} {failed_verdict.failure.tensor if failed_verdict.failure else ''}\n{text}",
        )
    if "error" in statuses or len(verdicts) < len(rogue.properties):
        return RogueResult(rogue, "lost", text)
    is_reported = references or "inconclusive" in statuses
    return RogueResult(rogue, "reported" if is_reported else "passed", text)


def fools_a_naive_harness(rogue: Rogue) -> bool:
    """Whether a rogue passes a naive harness: one call, compared with the reference by allclose.

    One that harms others has to do it there, too, unless all files around it are read-only already.

    Raises ThrowawayRootError for a destructive rogue if no throwaway root can be made.
    """
    if rogue.destroys:
        return bool(_in_throwaway_root("naive", [rogue]).get(rogue.id))
    return passes_naive_harness(rogue)


def _fools_in_root(rogue: Rogue) -> bool:
    with Surroundings() as surroundings:
        if not passes_naive_harness(rogue):
            return False
        changes = surroundings.changes()
    is_read_only = not os.access(__file__, os.W_OK)
    return not rogue.harms or is_read_only or any(rogue.harms in change for change in changes)


def main(task: str, *ids: str) -> None:
    """Run in a throwaway root, as `python -m packproof.proof.museum.rogues`; prints JSON by rogue id.

    task: "check" for the fate and text of each rogue, "naive" for whether it passes a naive harness.
    """
    require_throwaway_root()
    (MARK / "untouched").touch()
    rogues = [entries()[name] for name in ids]
    if task == "naive":
        print(json.dumps({rogue.id: _fools_in_root(rogue) for rogue in rogues}))
        return
    files_before = _top_level_files()
    with Surroundings() as surroundings:
        answers = {result.rogue.id: (result.fate, result.text) for result in _check_rogues(rogues)}
        changes = surroundings.changes()
    changes += [f"file {name}" for name in sorted(files_before - _top_level_files())]
    print(json.dumps(_with_harm(rogues, answers, changes)))


def _with_harm(
    rogues: Sequence[Rogue], answers: Mapping[str, tuple[Fate, str]], changes: Sequence[str]
) -> dict[str, tuple[Fate, str]]:
    """The answers, with what has changed around the rogues: which of them did it is not known."""
    if changes:
        text = f"changed around it: {'; '.join(changes[:_MOST_CHANGES])}"
        return {rogue.id: ("harmed", text) for rogue in rogues}
    harmless = {rogue.id for rogue in rogues if rogue.harms and answers[rogue.id][0] == "passed"}
    return {name: ("prevented" if name in harmless else fate, text) for name, (fate, text) in answers.items()}


def _top_level_files() -> set[str]:
    """The files at the top of the root and of MARK, without the working directory."""
    return {*os.listdir("/"), *(os.listdir(MARK) if MARK.exists() else ())} - {"run"}


if __name__ == "__main__":
    main(*sys.argv[1:])
