"""Rogues, kernels that cheat a checker, run under a naive harness and under packproof's.

Destructive rogues delete files or write into other processes. They run in a throwaway root only, by this module as a
program.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from packproof.base.provenance.computed import computed_text
from packproof.harness.check import CheckRequest, plan, run_plan
from packproof.harness.check.targets import open_target
from packproof.harness.process.execution import start_fork
from packproof.harness.process.naming import Location
from packproof.harness.report import RunFinished, Verdict
from packproof.museum.rogues import MARK, Rogue, entries, require_throwaway_root, running_sum
from packproof.proof.museum.throwaway_root import ThrowawayRootError, environment, throwaway_root
from packproof.properties.ops import Op

RUNNING_SUM = Op(
    name="running_sum",
    reference=running_sum,
    inputs={"x": "t d", "weight": "d"},
    outputs={"y": "t d"},
    sizes=({"d": 8}, {"d": 3}),
)
_LENGTHS = (20, 17)
_SECONDS = 2.0  # limit for one call of a rogue
_NAIVE_SECONDS = 30
_ROOT_SECONDS = 600  # limit for all rogues in a throwaway root together

Fate = Literal["detected", "reported", "passed", "lost", "not run"]


@dataclass(frozen=True)
class RogueResult:
    """The result of one rogue."""

    rogue: Rogue
    fate: Fate
    """ "detected": a property failed. "reported": a verdict is inconclusive, or a reference computed. "passed": all
    passed. "lost": a verdict is missing, or packproof itself failed. "not run": it has no throwaway root."""
    text: str
    """The verdicts as text, or why it did not run."""

    @property
    def is_as_expected(self) -> bool:
        """Whether it is detected with the expected text; or, if declared as undefended, whether it passes."""
        if self.rogue.undefended:
            return self.fate == "passed"
        return self.fate in ("detected", "reported") and self.rogue.detected in self.text


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
    request = CheckRequest(
        dtypes=("float32",), profile="quick", timeout=_SECONDS, questions=False, replay_dir=os.devnull
    )
    targets = [
        open_target(replace(request, target=rogue.kernel, op=RUNNING_SUM, properties=rogue.properties))
        for rogue in rogues
    ]
    verdicts: list[Verdict] = []
    for event in run_plan(plan(request, targets, one_cell_each=True)) if targets else ():
        if isinstance(event, RunFinished):
            verdicts = list(event.verdicts)
    for rogue in rogues:
        yield _rogue_result(rogue, [v for v in verdicts if v.cell.target == rogue.kernel])


def _in_throwaway_root(task: str, rogues: Sequence[Rogue]) -> dict[str, Any]:
    """The answers of `main` in a throwaway root, by the id of the rogue. Raises ThrowawayRootError."""
    with throwaway_root() as prefix:
        program = [sys.executable, "-P", "-m", __name__, task, *(rogue.id for rogue in rogues)]
        try:
            process = subprocess.run(
                [*prefix, *program], env=environment(), stdout=subprocess.PIPE, timeout=_ROOT_SECONDS, check=False
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

    The reference runs before the call, or after it; both run in a fork.

    Raises ThrowawayRootError for a destructive rogue if no throwaway root can be made.
    """
    if rogue.destroys:
        return bool(_in_throwaway_root("naive", [rogue]).get(rogue.id))
    return _fools_naive_harness(rogue)


def _fools_naive_harness(rogue: Rogue) -> bool:
    def run() -> int:
        signal.alarm(_NAIVE_SECONDS)
        os.setsid()
        kernel = Location.parse(rogue.kernel).load()
        return 0 if any(_passes_naive_harness(kernel, reference_first) for reference_first in (True, False)) else 1

    return start_fork(run).wait() == 0  # by the exit code alone: a rogue may exit with 0


def _passes_naive_harness(kernel: object, reference_first: bool) -> bool:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sum(_LENGTHS), 8, generator=generator)
    weight = torch.randn(8, generator=generator)
    cu_seqlens = torch.tensor([0, _LENGTHS[0], sum(_LENGTHS)], dtype=torch.int32)
    arguments = {"x": x, "weight": weight, "cu_seqlens": cu_seqlens}
    assert callable(kernel)
    expected = running_sum(**arguments) if reference_first else None
    actual = kernel(**arguments)
    time.sleep(0.06)  # stands for printing and timing in between
    if expected is None:
        expected = running_sum(**arguments)
    return bool(torch.allclose(actual, expected, rtol=1e-2, atol=1e-2))


def _top_level_files() -> set[str]:
    """The files at the top of the root and of MARK, without the working directory."""
    return {*os.listdir("/"), *(os.listdir(MARK) if MARK.exists() else ())} - {"run"}


def main(task: str, *ids: str) -> None:
    """Run in a throwaway root, as `python -m packproof.proof.museum.rogues`; prints JSON by rogue id.

    task: "check" for the fate and text of each rogue, "naive" for whether it passes a naive harness.
    """
    require_throwaway_root()
    (MARK / "untouched").touch()
    rogues = [entries()[name] for name in ids]
    if task == "check":
        files_before = _top_level_files()
        answers = {trial.rogue.id: (trial.fate, trial.text) for trial in _check_rogues(rogues)}
        if deleted := sorted(files_before - _top_level_files()):
            answers = {rogue.id: ("lost", f"deleted outside of the working directory: {deleted}") for rogue in rogues}
        print(json.dumps(answers))
    else:
        print(json.dumps({rogue.id: _fools_naive_harness(rogue) for rogue in rogues}))


if __name__ == "__main__":
    main(*sys.argv[1:])
