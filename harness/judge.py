"""One cell: run a property over its cases, and make a failure of the first case that breaks it."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from packproof import __version__
from packproof.harness.diagnosis import diagnose
from packproof.harness.events import Cell, CellFinished, CellStarted, Event, Failure, Progress, Status, Tier, Verdict
from packproof.harness.measure import measure
from packproof.harness.shrink import Allowance, shrink
from packproof.properties.call import KernelFault, MachineLimit, Refused
from packproof.properties.case import Case
from packproof.properties.cases import Space, golden_cases, random_cases, suited
from packproof.properties.catalogue import DEALT, PROPERTIES
from packproof.properties.layouts import Lengths, classes
from packproof.properties.subject import Subject
from packproof.properties.violation import Violation

_PROGRESS_SECONDS = 0.5


@dataclass(frozen=True)
class Judge:
    """Everything that the cells of one kernel share. `replay` is what a replay file says besides the case.

    nothing: whether packs of no tokens are drawn for every property, or only for `metadata`, whose law names them: a
    kernel that crashes at them is then judged by the others all the same.
    deal: the kth of n dtypes that share the cases of some properties, one case for each layout: each dtype judges every
    nth, and each property deals them differently. None: every dtype judges all cases.
    """

    subject: Subject
    examples: int
    allowance: Allowance
    seed: int
    replay: dict[str, Any]
    replay_dir: str
    known_tier: Tier | None
    nothing: bool = True
    deal: tuple[int, int] | None = None

    def cell(self, cell: Cell, space: Space) -> Iterator[Event]:
        """Run one cell; the last event holds its verdict."""
        yield CellStarted(cell)
        started, refused, drawn, met = time.monotonic(), 0, 0, frozenset[str]()
        failure: Failure | None = None
        limits: list[MachineLimit] = []
        tell = started
        for case in self._cases(cell.property, space):
            drawn += 1
            met |= classes(case.lengths, space.chunk, space.width(dict(case.sizes)))
            try:
                violation = broken(self.subject, cell.property, case)
            except MachineLimit as limit:
                limits.append(limit)
                continue
            except Refused:
                refused += 1
                continue
            if violation is not None:
                failure = self._failure(cell, space, case, violation, drawn)
                break
            if time.monotonic() - tell > _PROGRESS_SECONDS:
                tell = time.monotonic()
                yield Progress(cell, drawn)
        judged = drawn - refused - len(limits)
        reason = "" if judged else _why_skipped(space, cell.property, drawn)
        if limits:
            reason = f"{len(limits)} of {drawn} examples are too large to be judged here: {limits[0]}"
        status: Status = "failed" if failure else "passed" if judged else "skipped"
        seconds = time.monotonic() - started
        yield CellFinished(
            Verdict(cell, self._tier(), status, drawn, seconds, refused, met, reason if not failure else "", failure)
        )

    def _cases(self, name: str, space: Space) -> Sequence[Case]:
        found = [*golden_cases(space, self.seed), *random_cases(space, self.examples, self.seed)]
        drawn = [case for case in suited(name, space, found) if self._drawn(name, case)]
        if self.deal is None or name not in DEALT:
            return drawn
        (dtype, dtypes), turn = self.deal, DEALT.index(name)
        layouts: dict[Lengths, list[Case]] = {}
        for case in drawn:
            layouts.setdefault(case.lengths, []).append(case)
        return [alike[turn % len(alike)] for alike in layouts.values()][(dtype + turn) % dtypes :: dtypes]

    def _drawn(self, name: str, case: Case) -> bool:
        return self.nothing or name == "metadata" or case.n_tokens > 0

    def _tier(self) -> Tier:
        return self.known_tier or ("interpret" if self.subject.interpreted else "eager")

    def _failure(self, cell: Cell, space: Space, case: Case, violation: Violation, example: int) -> Failure:
        """Shrink, diagnose, and leave a replay file."""

        def fails(candidate: Case) -> bool:
            if not self._drawn(cell.property, candidate):
                return False
            try:
                found = broken(self.subject, cell.property, candidate)
            except Refused:
                return False
            return found is not None and found.fault == violation.fault

        with self.subject.runner.impatient() if violation.fault == "hung" else nullcontext():
            small, tried = shrink(case, space, fails, self.allowance)
        try:
            found = broken(self.subject, cell.property, small)
        except Refused:
            found = None
        if found is None:  # it fails now and then: keep what was seen
            small, found = case, violation
            lines = [*violation.lines(), "this case does not fail every time: the kernel is not deterministic"]
        else:
            lines = [*found.lines(), *filter(None, [diagnose(self.subject, small, found)])]
        file = self._write_replay(cell, small, lines)
        evidence = measure(self.subject, cell.property, small, found, case)
        return Failure(small.lengths, found.tensor, (small.setting, *lines), example, tried, file, evidence)

    def _write_replay(self, cell: Cell, case: Case, lines: list[str]) -> str:
        data = {
            "packproof": __version__,
            "version": 1,
            **self.replay,
            "property": cell.property,
            "dtype": cell.dtype,
            "device": cell.device,
            "case": case.to_json(),
            "message": lines,
        }
        text = json.dumps(data, indent=1)
        folder = Path(self.replay_dir)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{cell.op}-{cell.property}-{crc32(text.encode()):08x}.json"
        file.write_text(text, encoding="utf-8")
        return str(file)


def broken(subject: Subject, name: str, case: Case) -> Violation | None:
    """The first violation of a property at a case, or None. A fault of the kernel violates every property."""
    try:
        return next(PROPERTIES[name](subject, case), None)
    except KernelFault as fault:
        return Violation(text=str(fault), note=fault.note, fault=fault.kind)


def _why_skipped(space: Space, name: str, drawn: int) -> str:
    if drawn:
        return "the kernel declined every example"
    if name == "size":
        return "only the memory and the grids of a GPU are that large"
    if space.op.carry is None:
        return f"{space.op.name} has no state to carry"
    missing = [n for n in space.op.carry if n in space.missing]
    return f"the kernel does not take {', '.join(missing)}"


def replay_data(target: str, op: str, subject: Subject, *, draw_configs: bool) -> dict[str, Any]:
    """The part of a replay file that belongs to the kernel, and to how it was called."""
    said = {"target": target, "op": op, "promises": asdict(subject.promises), "gradients": subject.gradients}
    return {**said, "draw_configs": draw_configs}
