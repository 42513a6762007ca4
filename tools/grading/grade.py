"""From a submission and a contract to a grade: the check, then times at hidden problems, then the reward."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from packproof.base.errors import UsageError, checked_call
from packproof.base.law_names import LAWS
from packproof.base.names import DEVICES, PROVENANCE, require_known, short_dtype
from packproof.base.provenance.computed import observed
from packproof.grading.forms.form import fixed_form
from packproof.grading.problems import Problem, draw_problems
from packproof.grading.record import Counterexample, Grade, GradeVerdict, JudgedProperty, Measured, ProblemTimes
from packproof.grading.reward import reward_of, speed_of
from packproof.grading.submission import FixedSubmission, drawn_secret
from packproof.grading.tasks.task import terms_of_grade
from packproof.grading.times import Baselines, WrongWhileTimed, time_problem
from packproof.harness.check import checked, plan, run_plan, validate
from packproof.harness.check.targets import CheckTarget, open_target, resolve_op
from packproof.harness.process import set_isolation
from packproof.harness.report import Event, Failure, RunFinished, Verdict
from packproof.harness.report.wording import cell_title
from packproof.properties.calling import MachineLimit
from packproof.properties.contracts import ContractFile
from packproof.properties.declarations import Declaration

Run = Callable[[Iterator[Event]], RunFinished]

_HIDDEN_EXAMPLES = 8  # of each property, dtype and tier
_PROBLEMS = 2
_LAWS = tuple(LAWS)


@dataclass(frozen=True)
class GradeRequest:
    """What is graded, and how."""

    submission: FixedSubmission
    contract: ContractFile
    secret: str | None = None
    """None: one is drawn."""
    device: str = "cpu"
    peers: tuple[str, ...] = ()
    """Targets to time beside it."""
    timed: bool = True
    """Whether anything is timed."""
    isolate: bool = True
    """Whether all walls have to stand around the submission."""


@checked_call
def grade(
    submission: str,
    *,
    contract: str | None = None,
    task: str | None = None,
    problem: str | None = None,
    secret: str | None = None,
    device: str | None = None,
    peers: Sequence[str] = (),
    timed: bool = True,
    isolate: bool = True,
) -> Grade:
    """Grade a kernel that was handed in: a verdict, a counterexample, times, and a reward in [0, 1].

    submission: "path/file.py:function" or "package.module:function"; with `problem`, the path of its file.
    contract: the path of a contract; see docs/contract.md.
    task: the name of a task in place of a contract, as `packproof grade --tasks` lists them.
    problem: the path of a problem in the form of KernelBot, KernelBench or flashinfer-bench.
    secret: what the hidden cases are drawn with, beside the digest of the submission; drawn if None.
    device: "cpu" or "cuda"; the GPU if there is one.
    peers: other kernels to time beside it, by name.
    timed: whether anything is timed. Otherwise a correct submission has the reward 0.5.
    isolate: whether all walls have to stand around the submission; see docs/security.md.

    Raises UsageError if it cannot be graded as asked.
    MissingWallError if a wall does not stand here; nothing of the submission has run.

    >>> import packproof
    >>> packproof.grade("no_such_file.py:conv", contract="no_such_contract.json")
    Traceback (most recent call last):
        ...
    packproof.base.errors.UsageError: contract: no_such_contract.json: No such file or directory
    """
    file = terms_of_grade(ContractFile.read(contract) if contract else None, task)
    selected_device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    require_known("device", selected_device, DEVICES)
    fixed_submission = fixed(submission, file, problem)
    request = GradeRequest(fixed_submission, file, secret, selected_device, tuple(peers), timed, isolate)
    with _isolation("required" if isolate else "none"):
        return run_grade(request, _last_event)


def fixed(submission: str, contract: ContractFile, problem: str | None) -> FixedSubmission:
    """The submission, fixed; that of another form is written to a folder. Raises UsageError."""
    return FixedSubmission.read(submission) if problem is None else fixed_form(problem, submission, contract)


def _last_event(events: Iterator[Event]) -> RunFinished:
    end = [event for event in events if isinstance(event, RunFinished)][-1]
    if end.interrupted:
        raise KeyboardInterrupt
    return end


@contextmanager
def _isolation(isolation: Literal["required", "none"]) -> Iterator[None]:
    set_isolation(isolation)
    try:
        yield
    finally:
        set_isolation("usual")


def run_grade(request: GradeRequest, run: Run) -> Grade:
    """The grade of a submission. Raises UsageError if it cannot be graded.

    run: follows the events of the check, and returns the last one.
    """
    folder = f"{Path.cwd()}/"  # asked for first: what runs without walls may delete it
    return _without_folder(_graded(request, run), folder)


def _without_folder(grade: Grade, folder: str) -> Grade:
    """The grade with paths from the current folder on, so that it is the same in any other."""
    case = grade.counterexample
    if case is not None:
        case = replace(case, lines=tuple(line.replace(folder, "") for line in case.lines))
    return replace(grade, reason=grade.reason.replace(folder, ""), counterexample=case)


def _graded(request: GradeRequest, run: Run) -> Grade:
    submission, contract = request.submission, request.contract
    secret = request.secret or drawn_secret()
    seed = submission.seed(secret, contract.digest)
    values = {"target": submission.target, "contract": contract, "device": request.device, "seed": seed}
    check_request = replace(checked(values), questions=False, least_examples=_HIDDEN_EXAMPLES)
    validate(check_request)
    op = resolve_op(contract.contract.op, Declaration(), contract.path)
    contract.require_fit(op)
    grade = Grade(
        submission.name,
        submission.digest,
        contract.path,
        contract.digest,
        op.name,
        request.device,
        request.isolate,  # a missing wall has ended it before
        None if request.secret else secret,
        seed,
        "error",
        "",
    )
    try:
        target = open_target(check_request)
    except UsageError as error:  # the contract is valid: the submission cannot be imported, or called as the op
        if isinstance(error.__cause__, MachineLimit):
            raise
        return _failed(grade, str(error))
    grade = _judged(grade, target, request, run)
    if not submission.is_unchanged:
        grade = _failed(grade, "the files of the submission changed while it was graded")
    return grade


def _judged(grade: Grade, target: CheckTarget, request: GradeRequest, run: Run) -> Grade:
    """The grade with the verdict of the check and, for a pass, with times."""
    baselines = Baselines.open(target, request.peers if request.timed else ())
    end = in_order(run(run_plan(plan(target.request, [target]))))
    verdict, reason = verdict_of(end)
    grade = replace(
        grade,
        verdict=verdict,
        reason=reason,
        counterexample=_counterexample(end.verdicts),
        results=tuple(_results(end.verdicts)),
    )
    if verdict != "passed":
        return grade
    return _timed(grade, target, baselines, request) if request.timed else _rewarded(grade, (), "nothing was timed")


def in_order(end: RunFinished) -> RunFinished:
    """The same with its verdicts by property and dtype: they come in the order in which processes were done.

    Who computed is not asked of a kernel that fails otherwise: with more processes, one may ask, where another has
    no case that held.
    """
    fails_otherwise = any(v.failed and v.cell.counts and v.cell.property != PROVENANCE for v in end.verdicts)
    verdicts = [v for v in end.verdicts if not (fails_otherwise and v.cell.property == PROVENANCE)]

    def sort_key(verdict: Verdict) -> tuple[int, str, str, str]:
        cell = verdict.cell
        number = _LAWS.index(cell.property) if cell.property in _LAWS else len(_LAWS)
        return number, cell.property, cell.dtype, cell.unpromised

    return replace(end, verdicts=tuple(sorted(verdicts, key=sort_key)))


def verdict_of(end: RunFinished) -> tuple[GradeVerdict, str]:
    """The verdict of the check, and its reason."""
    if end.error:
        return "error", end.error
    statuses: dict[str, GradeVerdict] = {"failed": "failed", "stale": "failed", "error": "error"}
    counting = [verdict for verdict in end.verdicts if verdict.cell.counts]
    for status, grade_verdict in statuses.items():
        if worst := next((verdict for verdict in counting if verdict.status == status), None):
            text = _failure_line(worst.failure) if worst.failure else worst.reason or worst.status
            return grade_verdict, f"{cell_title(worst.cell)}: {text}"
    computed = observed(item for verdict in end.verdicts for item in verdict.computed)
    if references := [str(item) for item in computed if item.kind == "reference"]:
        return "failed", f"a reference computes for it: {references[0]}"
    if unjudged := next((verdict for verdict in counting if verdict.status == "inconclusive"), None):
        return "inconclusive", f"{cell_title(unjudged.cell)}: {unjudged.reason}"
    if not any(verdict.held for verdict in counting):
        return "inconclusive", "no property could be judged"
    return "passed", f"every property held: {sum(v.status == 'passed' for v in counting)} passed"


def _failure_line(failure: Failure) -> str:
    """The line of a failure with its values: the first one names the case alone, if there is a case."""
    return (*failure.lines[1 if failure.case else 0 :], *failure.lines, "no text")[0]


def _counterexample(verdicts: Sequence[Verdict]) -> Counterexample | None:
    """The smallest one of all failures."""
    failures = [(v.cell, v.failure) for v in verdicts if v.failed and v.failure]
    if not failures:
        return None
    cell, failure = min(failures, key=lambda pair: (sum(pair[1].lengths), len(pair[1].lengths)))
    return Counterexample(
        cell.property, short_dtype(cell.dtype), failure.lengths, failure.tensor, failure.lines, failure.replay
    )


def _results(verdicts: Sequence[Verdict]) -> Iterator[JudgedProperty]:
    for verdict in verdicts:
        if verdict.cell.counts:
            yield JudgedProperty(verdict.cell.property, short_dtype(verdict.cell.dtype), verdict.status)


def _timed(grade: Grade, target: CheckTarget, baselines: Baselines, request: GradeRequest) -> Grade:
    """The grade with times and a reward; failed where a timed call is wrong, or too fast to be one."""
    problems = tuple(draw_problems(target, request.contract.contract, grade.seed, _PROBLEMS))
    grade = replace(grade, problems=tuple(map(str, problems)))
    times: list[ProblemTimes] = []
    for problem in problems:
        try:
            times.append(time_problem(target, problem, baselines))
        except WrongWhileTimed as wrong:
            return _failed(grade, f"at a timed problem: {wrong}")
    if cheat := next((item for item in times if item.is_below_floor), None):
        return _failed(replace(grade, measured=Measured(tuple(times))), _cheat_text(cheat))
    return _rewarded(grade, times, _speed_text(problems, times))


def _cheat_text(times: ProblemTimes) -> str:
    assert times.submission is not None
    return (
        f"faster than the floor: {1e6 * times.submission.median:.1f} us, and this machine takes at least "
        f"{1e6 * times.floor_seconds:.1f} us to move its {times.bytes:,} bytes or make its products; it does not "
        "compute each call"
    )


def _speed_text(problems: Sequence[Problem], times: Sequence[ProblemTimes]) -> str:
    if not problems:
        return "no timed problem is in the contract, so that speed does not count"
    if all(item.submission is None for item in times):
        return times[0].note
    if any(item.reference for item in times):
        return "the reference, on a CPU: no measure of a GPU kernel"
    return "the floor of this GPU"


def _rewarded(grade: Grade, times: Sequence[ProblemTimes], text: str) -> Grade:
    speed = speed_of(times)
    return replace(grade, measured=Measured(tuple(times), speed, reward_of(grade.verdict, speed), text))


def _failed(grade: Grade, reason: str) -> Grade:
    measured = replace(grade.measured, speed=None, reward=0.0)
    return replace(grade, verdict="failed", reason=reason, measured=measured)
