"""One cell: run a property over its cases, and make a failure of the first case that breaks it."""

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from packproof.harness.diagnosis.diagnose import diagnose
from packproof.harness.diagnosis.measure import measure
from packproof.harness.engine.probe import Found, probe
from packproof.harness.engine.shrink import Allowance, shrink
from packproof.harness.results.coverage import NOT_ITS_OWN, Coverage
from packproof.harness.results.events import Cell, CellFinished, CellStarted, Event, Failure, Progress, Tier, Verdict
from packproof.harness.results.files import replace_text
from packproof.harness.results.names import short
from packproof.harness.results.text import printable
from packproof.properties.call import BoundVacuous, KernelFault, OutsideDomain, Refused
from packproof.properties.case import Case
from packproof.properties.cases import Space, golden_cases, random_cases, suited
from packproof.properties.catalogue import DEALT, PROPERTIES
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.layouts import Lengths, classes
from packproof.properties.op import Op
from packproof.properties.violation import Violation, comparisons
from packproof.refs.axes import parse
from packproof.version import __version__

_PROGRESS_SECONDS = 0.5
_MOST_PRINTED, _WIDEST = 10, 200
_FEW = Allowance(3, 5)  # where each try costs the start of all processes


@dataclass
class Evaluator:
    """Everything that the cells of one kernel and dtype share. `replay` is what a replay file says besides the case.

    nothing: whether packs of no tokens are drawn for every property, or only for `metadata`, whose law names them: a
    kernel that crashes at them is then judged by the others all the same.
    deal: the kth of n dtypes that share the cases of some properties, one case for each layout: each dtype judges every
    nth, and each property deals them differently. None: every dtype judges all cases.
    found: what a probe found of the kernel's domain, once it refused a call.
    """

    subject: KernelUnderTest
    examples: int
    allowance: Allowance
    seed: int
    replay: dict[str, Any]
    replay_dir: str
    known_tier: Tier | None
    nothing: bool = True
    deal: tuple[int, int] | None = None
    found: Found | None = None

    def cell(self, cell: Cell, space: Space) -> Iterator[Event]:
        """Run one cell; the last event holds its verdict. Once the kernel refuses a plain call, its domain is looked
        for, and the cell begins anew inside."""
        yield CellStarted(cell)
        started, seen = time.monotonic(), Coverage()
        failure: Failure | None = None
        finished = False
        while not finished:
            finished = True
            inside = self._inside(space)
            tell = started
            for case in self._cases(cell.property, inside):
                violation, stopped = self._judged(cell, inside, case, seen)
                if violation is not None:
                    failure = self._failure(cell, inside, case, violation, seen.drawn)
                    break
                if self.found is None and _declines(stopped):
                    self.found = probe(self.subject, inside, case)
                    seen, finished = seen.again(), False
                    break
                if time.monotonic() - tell > _PROGRESS_SECONDS:
                    tell = time.monotonic()
                    yield Progress(cell, seen.drawn)
        yield CellFinished(self._verdict(cell, inside, seen, failure, time.monotonic() - started))

    def _judged(self, cell: Cell, space: Space, case: Case, seen: Coverage) -> tuple[Violation | None, Refused | None]:
        """Judge one case, and count it: what is wrong, and what the kernel declined."""
        self.subject.refusals.clear()
        self.subject.values_only.refusals.clear()
        with comparisons() as made:
            violation, stopped = evaluated(self.subject, cell.property, case)
        for refused in (*self.subject.refusals, *self.subject.values_only.refusals):
            if not isinstance(refused, OutsideDomain):
                seen.note(case, refused)
        met = classes(case.lengths, space.chunk, space.width(dict(case.sizes)))
        seen.count(case, met, compared=bool(made) or violation is not None, stopped=stopped)
        return violation, stopped

    def _inside(self, space: Space) -> Space:
        """The space that is left of it inside the domain found."""
        if self.found is None:
            return space
        inside = replace(space, domain=space.domain & self.found.domain)
        self.subject.domain = inside.domain
        if self.subject.gradients and not inside.domain.allows_gradients:
            self.subject.gradients = False
            self.subject.renew()  # results so far have gradients
        return inside

    def _verdict(self, cell: Cell, space: Space, seen: Coverage, failure: Failure | None, seconds: float) -> Verdict:
        status, reasons = seen.status, list(seen.reasons())
        if failure:
            status, reasons = "failed", []
        elif self.found and self.found.others_only and not seen.judged:
            status, reasons = "skipped", [f"the kernel refuses {short(cell.dtype)} and takes {self.found.others_only}"]
        elif not seen.judged and not reasons:
            reasons = [_why_skipped(space, cell.property, seen)]
        elif self.found and not self.found.domain.allows_gradients:
            reasons.append(f"gradients: refused ({', '.join(self.found.domain.texts)})")
        return Verdict(
            cell,
            self.tier,
            status,
            seen.drawn,
            seconds,
            judged=seen.judged,
            refused=seen.refused,
            classes=seen.classes,
            missing=seen.missing if status == "inconclusive" else (),
            reason="; ".join(reasons),
            limits=tuple(seen.limits.values()),
            domain=self.found.domain.texts if self.found else (),
            failure=failure,
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

    @property
    def tier(self) -> Tier:
        return self.known_tier or ("interpret" if self.subject.interpreted else "eager")

    def _failure(self, cell: Cell, space: Space, case: Case, violation: Violation, example: int) -> Failure:
        """Shrink, diagnose, and leave a replay file."""

        def fails(candidate: Case) -> bool:
            if not self._drawn(cell.property, candidate):
                return False
            found = evaluated(self.subject, cell.property, candidate)[0]
            return found is not None and found.fault == violation.fault

        with self.subject.runner.impatient() if violation.fault == "hung" else nullcontext():
            small, tried = shrink(case, space, fails, _FEW if violation.fault == "killed" else self.allowance)
        self.subject.renew()  # so that the kernel is called again, and prints again
        self.subject.runner.printed()
        found = evaluated(self.subject, cell.property, small)[0]
        printed = self.subject.runner.printed()
        if found is None:  # it fails now and then: keep what was seen
            small, found = case, violation
            lines = [*violation.lines(), "this case does not fail every time: the kernel is not deterministic"]
        else:
            lines = [*found.lines(), *filter(None, [diagnose(self.subject, small, found)])]
        if printed and found.fault not in ("crashed", "hung", "exited"):  # whose text has it
            lines += ["the kernel printed:", *(f"  {printable(line)[:_WIDEST]}" for line in printed[-_MOST_PRINTED:])]
        file, trouble = self._write_replay(cell, small, lines)
        lines += [trouble] if trouble else []
        evidence = measure(self.subject, cell.property, small, found, case)
        said = (setting(space.op, small), *lines)
        return Failure(small.lengths, found.tensor, said, example, tried, file, evidence, small.regime)

    def _write_replay(self, cell: Cell, case: Case, lines: list[str]) -> tuple[str, str]:
        """The path of the file, or why there is none: the verdict stands without it."""
        data = {
            "packproof": __version__,
            "version": 1,
            **self.replay,
            "domain": self.subject.domain.texts,
            "property": cell.property,
            "dtype": cell.dtype,
            "device": cell.device,
            "case": case.to_json(),
            "message": lines,
        }
        text = json.dumps(data, indent=1)
        op = re.sub(r"[^\w.-]", "-", cell.op)
        file = Path(self.replay_dir) / f"{op}-{cell.property}-{crc32(text.encode()):08x}.json"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_text(file, text)
        except OSError as error:
            return "", f"no replay file could be written: {error.strerror or error}: {file.parent}"
        return str(file), ""


def setting(op: Op, case: Case) -> str:
    """All of a case but its lengths, in one line, with the form of inputs that may have several."""
    forms = {n: parse(op.inputs[n]).alternatives[k] for n, k in case.axes if k}
    return ", ".join([case.setting, *(f"{n} ({' '.join(axes)})" for n, axes in forms.items())])


def broken(subject: KernelUnderTest, name: str, case: Case) -> Violation | None:
    """The first violation of a property at a case, or None. A fault of the kernel violates every property."""
    try:
        return next(PROPERTIES[name](subject, case), None)
    except KernelFault as fault:
        return Violation(text=str(fault), note=fault.note, fault=fault.kind)


def evaluated(subject: KernelUnderTest, name: str, case: Case) -> tuple[Violation | None, Refused | None]:
    """As `broken`, and the refusal that kept the case from being judged. Where the kernel refuses to differentiate, its
    values are judged; where a derived bound says nothing of wild data, plain data of the same layout."""
    try:
        return broken(subject, name, case), None
    except BoundVacuous as vacuous:
        return (None, vacuous) if case.regime == "normal" else evaluated(subject, name, case.replace(regime="normal"))
    except Refused as refused:
        if not refused.backward:
            return None, refused
        stopped = refused
    try:
        return broken(subject.values_only, name, case), stopped
    except Refused as refused:
        return None, refused


def _declines(stopped: Refused | None) -> bool:
    """Whether the kernel declined a call of the case as it is."""
    return stopped is not None and not (stopped.backward or stopped.note or isinstance(stopped, NOT_ITS_OWN))


def _why_skipped(space: Space, name: str, seen: Coverage) -> str:
    """Why a cell in which the kernel refused no whole example was not judged."""
    missing = [n for n in space.op.carry or () if n in space.missing]
    said = [f"refused: {limit.text}" for limit in seen.limits.values()] + [str(outside) for outside in seen.outside]
    if said or seen.drawn:
        return next(iter(said), _NOTHING_TO_COMPARE.get(name, "no example has anything to compare"))
    if name == "size":
        return "only the memory and the grids of a GPU are that large"
    if name == "carry" and space.op.carry is None:
        return f"{space.op.name} has no state to carry"
    if name == "carry" and missing:
        return f"the kernel does not take {', '.join(missing)}"
    return f"no example is in the kernel's domain: {'; '.join(space.domain.texts)}"


_NOTHING_TO_COMPARE = {
    "causality": "no example has a later token that must not be seen",
    "permutation": "no example has two sequences to reorder",
    "isolation": "no example has another sequence, or slack rows",
}


def replay_data(target: str, op: str, subject: KernelUnderTest, *, draw_configs: bool) -> dict[str, Any]:
    """The part of a replay file that belongs to the kernel, and to how it was called."""
    said = {"target": target, "op": op, "promises": asdict(subject.promises), "gradients": subject.gradients}
    return {**said, "draw_configs": draw_configs}
