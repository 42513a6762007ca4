"""Kernels that cheat, run under a naive harness and under packproof's. Those that destroy what is not their own run in
a throwaway root only, where this module is a program."""

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

from packproof.harness.engine.plan import plan
from packproof.harness.engine.request import CheckRequest
from packproof.harness.engine.schedule import run_plan
from packproof.harness.engine.target import open_target
from packproof.harness.results.events import RunFinished, Verdict
from packproof.harness.targets.location import Location
from packproof.harness.validation.museum.throwaway_root import ThrowawayRootError, environment, throwaway_root
from packproof.museum.rogues import Rogue, entries
from packproof.museum.rogues.op import running_sum
from packproof.museum.rogues.throwaway import MARK, require_throwaway_root
from packproof.properties.op import Op

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
_APART_SECONDS = 600  # for all that run in a throwaway root

Fate = Literal["detected", "reported", "passed", "lost", "not run"]


@dataclass(frozen=True)
class RogueResult:
    """The result of one rogue.

    fate: "reported" where the verdict is neither a pass nor a failure; "lost" where there is none, or an error of
    packproof's own; "not run" where it needs a throwaway root, and none can be made. said: the text of the verdicts, or
    why it did not run.
    """

    rogue: Rogue
    fate: Fate
    said: str

    @property
    def as_expected(self) -> bool:
        """Detected with the text that the entry expects; or passed, where the entry declares it undefended."""
        if self.rogue.undefended:
            return self.fate == "passed"
        return self.fate in ("detected", "reported") and self.rogue.detected in self.said


def try_rogues(chosen: Sequence[Rogue]) -> Iterator[RogueResult]:
    """Check the rogues side by side, as a user would; yields the result of each. Those that destroy what is not their
    own are checked in a throwaway root, or not at all."""
    yield from _tried([rogue for rogue in chosen if not rogue.destroys])
    destructive = [rogue for rogue in chosen if rogue.destroys]
    if not destructive:
        return
    try:
        answers = _in_throwaway_root("check", destructive)
    except ThrowawayRootError as error:
        yield from (RogueResult(rogue, "not run", str(error)) for rogue in destructive)
        return
    for rogue in destructive:
        yield RogueResult(rogue, *answers.get(rogue.id, ("lost", "the run in a throwaway root gave no verdict")))


def _tried(chosen: Sequence[Rogue]) -> Iterator[RogueResult]:
    base = CheckRequest(dtypes=("float32",), profile="quick", timeout=_SECONDS, questions=False, replay_dir=os.devnull)
    targets = [
        open_target(replace(base, target=rogue.kernel, op=RUNNING_SUM, properties=rogue.properties)) for rogue in chosen
    ]
    verdicts: list[Verdict] = []
    for event in run_plan(plan(base, targets, apart=True)) if targets else ():
        if isinstance(event, RunFinished):
            verdicts = list(event.verdicts)
    for rogue in chosen:
        yield _result(rogue, [v for v in verdicts if v.cell.target == rogue.kernel])


def _in_throwaway_root(task: str, chosen: Sequence[Rogue]) -> dict[str, Any]:
    """What `main` answers in a throwaway root, by the id of the rogue. Raises ThrowawayRootError."""
    with throwaway_root() as prefix:
        program = [sys.executable, "-P", "-m", __name__, task, *(rogue.id for rogue in chosen)]
        try:
            done = subprocess.run(
                [*prefix, *program], env=environment(), stdout=subprocess.PIPE, timeout=_APART_SECONDS, check=False
            )
            return dict(json.loads(done.stdout.splitlines()[-1]))
        except (subprocess.TimeoutExpired, ValueError, IndexError):  # it has destroyed what would have answered
            return {}


def _result(rogue: Rogue, verdicts: Sequence[Verdict]) -> RogueResult:
    statuses = {verdict.status for verdict in verdicts}
    text = "\n".join("\n".join(v.failure.lines) if v.failure else f"{v.status}: {v.reason}" for v in verdicts)
    if "failed" in statuses:
        first = next(v for v in verdicts if v.status == "failed")
        return RogueResult(
            rogue, "detected", f"{first.cell.property} {first.failure.tensor if first.failure else ''}\n{text}"
        )
    if "error" in statuses or len(verdicts) < len(rogue.properties):
        return RogueResult(rogue, "lost", text)
    return RogueResult(rogue, "reported" if "inconclusive" in statuses else "passed", text)


def fools_a_naive_harness(rogue: Rogue) -> bool:
    """Whether it passes a harness that compares one call, before or after the reference's, by allclose; in a fork.
    Raises ThrowawayRootError where it may not run here."""
    if rogue.destroys:
        return bool(_in_throwaway_root("naive", [rogue]).get(rogue.id))
    return _fools(rogue)


def _fools(rogue: Rogue) -> bool:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(_NAIVE_SECONDS)
            os.setsid()
            kernel = Location.parse(rogue.kernel).load()
            code = 0 if any(_naive(kernel, first) for first in (True, False)) else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _naive(kernel: object, reference_first: bool) -> bool:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sum(_LENGTHS), 8, generator=generator)
    weight = torch.randn(8, generator=generator)
    cu_seqlens = torch.tensor([0, _LENGTHS[0], sum(_LENGTHS)], dtype=torch.int32)
    given = {"x": x, "weight": weight, "cu_seqlens": cu_seqlens}
    assert callable(kernel)
    expected = running_sum(**given) if reference_first else None
    got = kernel(**given)
    time.sleep(0.06)  # stands for printing and timing in between
    if expected is None:
        expected = running_sum(**given)
    return bool(torch.allclose(got, expected, rtol=1e-2, atol=1e-2))


def _files() -> set[str]:
    """What lies at the top of the root and of its mark, but for the folder of the run."""
    return {*os.listdir("/"), *(os.listdir(MARK) if MARK.exists() else ())} - {"run"}


def main(task: str, *ids: str) -> None:
    """Run in a throwaway root as `python -m packproof.harness.validation.museum.rogues`: "check" prints fate and text
    of each rogue as JSON, "naive" whether it passes a naive harness."""
    require_throwaway_root()
    (MARK / "untouched").touch()
    chosen = [entries()[name] for name in ids]
    if task == "check":
        before = _files()
        answers = {trial.rogue.id: (trial.fate, trial.said) for trial in _tried(chosen)}
        if lost := sorted(before - _files()):
            answers = {rogue.id: ("lost", f"deleted outside of the working directory: {lost}") for rogue in chosen}
        print(json.dumps(answers))
    else:
        print(json.dumps({rogue.id: _fools(rogue) for rogue in chosen}))


if __name__ == "__main__":
    main(*sys.argv[1:])
