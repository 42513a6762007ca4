"""From the first violation to the failure in a report: shrink, run again, diagnose, measure, write a replay file."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass

from packproof.base.axes import parse
from packproof.base.law_names import LAWS
from packproof.base.text import printable
from packproof.base.tuned import merge_tuned
from packproof.harness.check.diagnosis.conventions import suggestions
from packproof.harness.check.diagnosis.diagnose import diagnose
from packproof.harness.check.diagnosis.measure import measure
from packproof.harness.check.diagnosis.missing_declaration import missing_declaration
from packproof.harness.check.diagnosis.ties import tie_hint
from packproof.harness.check.own_faults import report_internal_error
from packproof.harness.check.request import Allowance
from packproof.harness.check.shrink import shrink
from packproof.harness.process.naming import address
from packproof.harness.report import Cell, Failure
from packproof.harness.report.replay_files import write_replay
from packproof.properties.cases import Case, Space
from packproof.properties.judgement import KernelUnderTest, judge_case
from packproof.properties.laws import Property, Violation
from packproof.properties.ops import Op
from packproof.properties.snippets import PastedLines
from packproof.version import __version__

_MAX_PRINTED_LINES, _MAX_LINE_WIDTH = 10, 200
_SMALL_ALLOWANCE = Allowance(3, 5)  # if each try has to start all processes again


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
    pasted: PastedLines | None = None
    """The kernel in lines to paste; None if it is not declared by a user."""


@dataclass(frozen=True)
class CellViolation:
    """A violation, and the cell, space and case in which it was found."""

    cell: Cell
    law: Property
    space: Space
    case: Case
    violation: Violation
    example: int
    """Its number among the cell's examples."""
    untried_cases: tuple[Case, ...] = ()
    """Golden cases with tokens that the cell has not reached."""


def unshrunk_failure(kernel: KernelUnderTest, finding: CellViolation) -> Failure:
    """The failure before it is shrunk and diagnosed."""
    case, violation = finding.case, finding.violation
    lines = (describe_setting(kernel.op, case), *violation.lines())
    tensor, regime = str(violation.tensor or ""), case.regime
    return Failure(
        case.lengths, tensor, lines, finding.example, 0, regime=regime, fault=violation.fault, note=violation.note
    )


def shrunk_failure(
    kernel: KernelUnderTest, finding: CellViolation, allowance: Allowance, replay: ReplayInfo, *, empty_packs: bool
) -> Failure:
    """The failure at the smallest case found within the allowance.

    empty_packs: whether the smallest case may be a pack without tokens.
    """
    law, case, violation = finding.law, finding.case, finding.violation

    def fails(candidate: Case) -> bool:
        if not (empty_packs or candidate.n_tokens):
            return False
        candidate_violation = judge_case(kernel, law, candidate)[0]
        return candidate_violation is not None and (candidate_violation.fault, candidate_violation.error) == (
            violation.fault,
            violation.error,
        )

    untried_cases = tuple(golden.replace(configuration=case.configuration) for golden in finding.untried_cases)
    allowance, other_cases = (_SMALL_ALLOWANCE, ()) if violation.fault == "killed" else (allowance, untried_cases)
    with kernel.runner.with_short_timeout() if violation.fault == "hung" else nullcontext():
        smallest, n_tried = shrink(case, finding.space, fails, allowance, other_cases)
    kernel.cache.discard_results()  # drop cached results: the kernel has to run, and print, again
    kernel.tuned.clear()
    kernel.runner.printed_lines()
    shrunk_violation = judge_case(kernel, law, smallest)[0]
    printed = kernel.runner.printed_lines()
    if shrunk_violation is None:  # the failure is flaky: keep the first violation
        smallest, shrunk_violation = case, violation
        reason = (
            "it answered when it was called again" if violation.fault == "hung" else "the kernel is not deterministic"
        )
        lines = [*violation.lines(), f"this case does not fail every time: {reason}"]
    else:
        causes = _causes(kernel, law, smallest, shrunk_violation, finding.space, replay.pasted)
        lines = [*shrunk_violation.lines(), *causes]
    if smallest.configuration or replay.draw_configs:
        lines += [f"{tuned.kernel} ran with {' and '.join(tuned.ran)}" for tuned in merge_tuned(*kernel.tuned.values())]
    if printed and shrunk_violation.fault not in ("crashed", "hung", "exited"):  # their text has the output
        lines += [
            "the kernel printed:",
            *(f"  {printable(line)[:_MAX_LINE_WIDTH]}" for line in printed[-_MAX_PRINTED_LINES:]),
        ]
    file, write_error = _write_replay(kernel, finding, smallest, lines, replay)
    lines += [write_error] if write_error else []
    try:
        evidence = measure(kernel, law, smallest, shrunk_violation, case)
    except Exception as error:  # the failure stands without it
        evidence = None
        lines += [f"not measured: {report_internal_error(error)}"]
    report_lines = (describe_setting(kernel.op, smallest), *lines)
    tensor = str(shrunk_violation.tensor or "")
    return Failure(
        smallest.lengths,
        tensor,
        report_lines,
        finding.example,
        n_tried,
        file,
        evidence,
        smallest.regime,
        shrunk_violation.fault,
        shrunk_violation.note,
    )


def _causes(
    kernel: KernelUnderTest, law: Property, case: Case, violation: Violation, space: Space, pasted: PastedLines | None
) -> list[str]:
    """Lines on why the law is broken at the smallest case."""
    if lines := tie_hint(kernel, case, violation):
        return lines
    return [
        *filter(None, [diagnose(kernel, case, violation)]),
        *suggestions(kernel, law, case, space),
        *missing_declaration(kernel, law, case, violation, space, pasted),
    ]


def describe_setting(op: Op, case: Case) -> str:
    """Everything of a case but its lengths, in one line. Inputs with several forms come with the axes of their form."""
    forms = {n: parse(op.inputs[n]).alternatives[k] for n, k in case.axes if k}
    return ", ".join([case.setting, *(f"{n} ({' '.join(axes)})" for n, axes in forms.items())])


def _write_replay(
    kernel: KernelUnderTest, finding: CellViolation, case: Case, lines: list[str], replay: ReplayInfo
) -> tuple[str, str]:
    """The path of the file and "", or "" and the reason: the verdict stands without it."""
    cell, law = finding.cell, finding.law
    is_own_object = ":" not in cell.property and cell.property not in LAWS
    data = {
        "packproof": __version__,
        "version": 1,
        "target": replay.target,
        "op": replay.op,
        "promises": asdict(kernel.promises),
        "gradients": kernel.gradients,
        "draw_configs": replay.draw_configs,
        "domain": kernel.domain.texts,
        "property": (is_own_object and address(law)) or cell.property,
        "dtype": cell.dtype,
        "device": cell.device,
        "case": case.to_json(),
        "message": lines,
    }
    return write_replay(replay.folder, f"{cell.op}-{cell.property.rpartition(':')[2]}", data)
