"""From the first violation to the failure in a report: shrink, run again, diagnose, measure, write a replay file."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field

from packproof.base.axes import parse
from packproof.base.law_names import LAWS
from packproof.base.names import SLACK, short_dtype
from packproof.base.records import to_row
from packproof.base.tuned import merge_tuned
from packproof.base.wording import printable
from packproof.harness.check.diagnosis.explain import FailureExplanation, SmallestFailure, explain
from packproof.harness.check.request import Allowance
from packproof.harness.check.shrink import shrink
from packproof.harness.process.naming import address
from packproof.harness.report import Cell, Failure
from packproof.harness.report.replay_files import write_replay
from packproof.properties.cases import Case, Space
from packproof.properties.contracts import ContractFile
from packproof.properties.judgement import KernelUnderTest, judge_case
from packproof.properties.laws import Property, Violation
from packproof.properties.ops import Op
from packproof.properties.snippets import PastedLines
from packproof.version import __version__

_MAX_PRINTED_LINES, _MAX_LINE_WIDTH = 10, 200
_FLAKY = "not deterministic"
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
    contract: ContractFile | None = None
    """The contract by which the kernel is judged."""


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
    is_smallest: bool = False
    """Whether the case is the smallest one of another cell."""
    by_slack: bool = False
    """Whether only the slack rows break the law (`fails_by_slack`)."""


@dataclass
class KnownFaults:
    """The faults of a kernel that a process has found."""

    spaces: Sequence[Space] = ()
    """The case spaces of the dtypes of the check."""
    explained: dict[str, str] = field(default_factory=dict)
    """The cells whose reports have all about a cause, by its key."""
    cases: list[Case] = field(default_factory=list)
    """Their smallest cases, to be tried in other cells."""

    def add(self, cell: Cell, explanation: FailureExplanation, case: Case, violation: Violation) -> None:
        """Remember an explained fault and its case."""
        is_shared = case.n_tokens and explanation.cause != SLACK  # else no case of other properties
        if is_shared and case not in self.cases:
            self.cases.append(case)
        if explanation.cause and not violation.note:  # a report of an unchanged pack tells more
            self.explained.setdefault(explanation.cause, f"{cell.law} {short_dtype(cell.dtype)}")


def unshrunk_failure(kernel: KernelUnderTest, finding: CellViolation) -> Failure:
    """The failure before it is shrunk and diagnosed."""
    case, violation = finding.case, finding.violation
    lines = (describe_setting(kernel.op, case), *violation.lines())
    tensor, regime = str(violation.tensor or ""), case.regime
    return Failure(
        case.lengths, tensor, lines, finding.example, 0, regime=regime, fault=violation.fault, note=violation.note
    )


def shrunk_failure(
    kernel: KernelUnderTest,
    finding: CellViolation,
    allowance: Allowance,
    replay: ReplayInfo,
    *,
    empty_packs: bool,
    known_faults: KnownFaults | None = None,
) -> Failure:
    """The failure at the smallest case found within the allowance.

    empty_packs: whether the smallest case may be a pack without tokens.
    known_faults: the faults of the kernel found before; a new one is added.
    """
    known_faults = known_faults or KnownFaults()
    smallest, cases_tried = _smallest_case(kernel, finding, allowance, empty_packs=empty_packs)
    violation = _judge_again(kernel, finding, smallest)
    output_lines = _output_lines(kernel, violation or finding.violation)
    if violation is None:  # the failure is flaky: keep the first violation
        smallest, violation = finding.case, finding.violation
        explanation = _flaky_explanation(violation)
    else:
        smallest_failure = SmallestFailure(
            kernel, finding.law, smallest, violation, finding.space, finding.case, replay.pasted, finding.by_slack
        )
        explanation = explain(smallest_failure, known_faults.spaces, known_faults.explained)
        known_faults.add(finding.cell, explanation, smallest, violation)
    lines = [*violation.lines(), *explanation.lines]
    if smallest.configuration or replay.draw_configs:
        lines += [f"{tuned.kernel} ran with {' and '.join(tuned.ran)}" for tuned in merge_tuned(*kernel.tuned.values())]
    lines += output_lines
    file, write_error = _write_replay(kernel, finding, smallest, violation, lines, replay)
    lines += [write_error] if write_error else []
    return Failure(
        smallest.lengths,
        tensor=str(violation.tensor or ""),
        lines=(describe_setting(kernel.op, smallest), *lines),
        example=finding.example,
        cases_tried=cases_tried,
        replay=file,
        evidence=explanation.evidence,
        regime=smallest.regime,
        fault=violation.fault,
        note=violation.note,
        cause=explanation.cause,
        case=json.dumps(smallest.to_json()),
    )


def _smallest_case(
    kernel: KernelUnderTest, finding: CellViolation, allowance: Allowance, *, empty_packs: bool
) -> tuple[Case, int]:
    """The smallest case found that breaks the law in the same way, and the number of cases tried."""
    law, case, violation = finding.law, finding.case, finding.violation

    def fails(candidate: Case) -> bool:
        if not candidate.n_tokens and (finding.by_slack or not empty_packs):
            return False
        if finding.by_slack and not candidate.slack:
            return False
        smaller = judge_case(kernel, law, candidate, violation)[0]
        return smaller is not None and (smaller.in_slack == violation.in_slack or not finding.by_slack)

    # slack is no step towards a smaller case of a failure without slack
    untried_cases = tuple(
        golden.replace(configuration=case.configuration)
        for golden in finding.untried_cases
        if case.slack or not golden.slack
    )
    if finding.is_smallest:
        return case, 0
    allowance, other_cases = (_SMALL_ALLOWANCE, ()) if violation.fault == "killed" else (allowance, untried_cases)
    with kernel.runner.with_short_timeout() if violation.fault == "hung" else nullcontext():
        return shrink(case, finding.space, fails, allowance, other_cases)


def _judge_again(kernel: KernelUnderTest, finding: CellViolation, case: Case) -> Violation | None:
    """The violation at a case, or None if it passes this time. The runner then has the lines that it printed."""
    kernel.cache.discard_results()  # the kernel has to run, and print, again
    kernel.tuned.clear()
    kernel.runner.printed_lines()  # discards the lines of earlier calls
    return judge_case(kernel, finding.law, case, finding.violation)[0]


def _flaky_explanation(violation: Violation) -> FailureExplanation:
    is_hung = violation.fault == "hung"
    reason = "it answered when it was called again" if is_hung else "the kernel is not deterministic"
    return FailureExplanation(_FLAKY, (f"this case does not fail every time: {reason}",))


def _output_lines(kernel: KernelUnderTest, violation: Violation) -> list[str]:
    """What the kernel printed at the smallest case."""
    printed = kernel.runner.printed_lines()
    if not printed or violation.fault in ("crashed", "hung", "exited"):  # their text has the output
        return []
    return [
        "the kernel printed:",
        *(f"  {printable(line)[:_MAX_LINE_WIDTH]}" for line in printed[-_MAX_PRINTED_LINES:]),
    ]


def describe_setting(op: Op, case: Case) -> str:
    """Everything of a case but its lengths, in one line. Inputs with several forms come with the axes of their form."""
    forms = {n: parse(op.inputs[n]).alternatives[k] for n, k in case.axes if k}
    return ", ".join([case.setting, *(f"{n} ({' '.join(axes)})" for n, axes in forms.items())])


def _write_replay(
    kernel: KernelUnderTest,
    finding: CellViolation,
    case: Case,
    violation: Violation,
    lines: list[str],
    replay: ReplayInfo,
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
        "change": violation.note,
        "message": lines,
    } | ({"contract": to_row(replay.contract)} if replay.contract else {})
    return write_replay(replay.folder, f"{cell.op}-{cell.property.rpartition(':')[2]}", data)
