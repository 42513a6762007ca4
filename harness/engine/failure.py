"""From the first violation to the failure in a report: shrink, run again, diagnose, measure, write a replay file."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass

from packproof.harness.diagnosis.conventions import suggestions
from packproof.harness.diagnosis.diagnose import diagnose
from packproof.harness.diagnosis.fixed_options import fixed_options
from packproof.harness.diagnosis.measure import measure
from packproof.harness.engine.own_faults import said
from packproof.harness.engine.request import Allowance
from packproof.harness.engine.shrink import shrink
from packproof.harness.engine.violations import evaluated
from packproof.harness.results.events import Cell, Failure
from packproof.harness.results.replay_file import write_replay
from packproof.harness.results.text import printable
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space
from packproof.properties.cases.tuned import merged
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.laws.property import Property
from packproof.properties.op import Op
from packproof.properties.violation import Violation
from packproof.refs.axes import parse
from packproof.version import __version__

_MOST_PRINTED, _WIDEST = 10, 200
_FEW = Allowance(3, 5)  # if each try has to start all processes again


@dataclass(frozen=True)
class ReplayInfo:
    """The part of a replay file that does not follow from the case."""

    target: str = ""
    """Name of the kernel, as a user would give it."""
    op: str = ""
    """Name of the op, as a user would give it."""
    draw_configs: bool = False
    """Whether autotuned kernels got drawn configurations."""
    folder: str = ".packproof"
    """The folder for replay files."""


@dataclass(frozen=True)
class FoundViolation:
    """A violation, and the cell, space and case in which it was found."""

    cell: Cell
    law: Property
    space: Space
    case: Case
    violation: Violation
    example: int
    """Its number among the cell's examples."""
    untried: tuple[Case, ...] = ()
    """Golden cases with tokens that the cell has not reached."""


def as_found(kernel: KernelUnderTest, finding: FoundViolation) -> Failure:
    """The failure before it is shrunk and diagnosed."""
    case, violation = finding.case, finding.violation
    lines = (setting(kernel.op, case), *violation.lines())
    tensor, regime = str(violation.tensor or ""), case.regime
    return Failure(
        case.lengths, tensor, lines, finding.example, 0, regime=regime, fault=violation.fault, note=violation.note
    )


def failure_of(
    kernel: KernelUnderTest, finding: FoundViolation, allowance: Allowance, replay: ReplayInfo, *, empty_packs: bool
) -> Failure:
    """The failure at the smallest case found within the allowance.

    empty_packs: whether the smallest case may be a pack without tokens.
    """
    law, case, violation = finding.law, finding.case, finding.violation

    def fails(candidate: Case) -> bool:
        if not (empty_packs or candidate.n_tokens):
            return False
        found = evaluated(kernel, law, candidate)[0]
        return found is not None and (found.fault, found.error) == (violation.fault, violation.error)

    untried = tuple(golden.replace(configuration=case.configuration) for golden in finding.untried)
    allowance, others = (_FEW, ()) if violation.fault == "killed" else (allowance, untried)
    with kernel.runner.impatient() if violation.fault == "hung" else nullcontext():
        small, tried = shrink(case, finding.space, fails, allowance, others)
    kernel.renew()  # drop cached results: the kernel has to run, and print, again
    kernel.tuned.clear()
    kernel.runner.printed()
    found = evaluated(kernel, law, small)[0]
    printed = kernel.runner.printed()
    if found is None:  # the failure is flaky: keep the first violation
        small, found = case, violation
        again = (
            "it answered when it was called again" if violation.fault == "hung" else "the kernel is not deterministic"
        )
        lines = [*violation.lines(), f"this case does not fail every time: {again}"]
    else:
        lines = [*found.lines(), *filter(None, [diagnose(kernel, small, found)])]
        lines += suggestions(kernel, law, small, finding.space)
        lines += fixed_options(kernel, small, found, finding.space)
    if small.configuration or replay.draw_configs:
        lines += [f"{tuned.kernel} ran with {' and '.join(tuned.ran)}" for tuned in merged(*kernel.tuned.values())]
    if printed and found.fault not in ("crashed", "hung", "exited"):  # their text has the output
        lines += ["the kernel printed:", *(f"  {printable(line)[:_WIDEST]}" for line in printed[-_MOST_PRINTED:])]
    file, trouble = _write_replay(kernel, finding.cell, small, lines, replay)
    lines += [trouble] if trouble else []
    try:
        evidence = measure(kernel, law, small, found, case)
    except Exception as error:  # the failure stands without it
        evidence = None
        lines += [f"not measured: {said(error)}"]
    shown = (setting(kernel.op, small), *lines)
    tensor = str(found.tensor or "")
    return Failure(
        small.lengths, tensor, shown, finding.example, tried, file, evidence, small.regime, found.fault, found.note
    )


def setting(op: Op, case: Case) -> str:
    """Everything of a case but its lengths, in one line. Inputs with several forms come with the axes of their form."""
    forms = {n: parse(op.inputs[n]).alternatives[k] for n, k in case.axes if k}
    return ", ".join([case.setting, *(f"{n} ({' '.join(axes)})" for n, axes in forms.items())])


def _write_replay(
    kernel: KernelUnderTest, cell: Cell, case: Case, lines: list[str], replay: ReplayInfo
) -> tuple[str, str]:
    """The path of the file and "", or "" and the reason: the verdict stands without it."""
    data = {
        "packproof": __version__,
        "version": 1,
        "target": replay.target,
        "op": replay.op,
        "promises": asdict(kernel.promises),
        "gradients": kernel.gradients,
        "draw_configs": replay.draw_configs,
        "domain": kernel.domain.texts,
        "property": cell.property,
        "dtype": cell.dtype,
        "device": cell.device,
        "case": case.to_json(),
        "message": lines,
    }
    return write_replay(replay.folder, f"{cell.op}-{cell.property.rpartition(':')[2]}", data)
