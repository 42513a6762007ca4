"""Many grades from one call: rows, what is continued, and the command."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from packproof.base.errors import PackproofError, UsageError
from packproof.cli import main
from packproof.grading.many import grades
from packproof.grading.many.grades import GradeRun
from packproof.grading.many.job import GradeJob, GradeOptions, GradeOutcome
from packproof.grading.submission import FixedSubmission
from packproof.properties.contracts import ContractFile
from tests.tools.grading.many.samples import write_samples

REPLAY = ".packproof/causal_conv1d-packing-0.json"


def seed_of(job: GradeJob, secret: str) -> int:
    contract = ContractFile.read(job.arguments[job.arguments.index("--contract") + 1])
    return FixedSubmission.read(job.submission).seed(secret, contract.digest)


class Graded:
    """An engine that has graded each one already: the right ones pass, one is lost, one is another file."""

    capacity, device, cores = 2, "cpu", 2

    def __init__(self) -> None:
        self.jobs: list[GradeJob] = []
        self.is_open = True

    def start(self, job: GradeJob) -> int:
        self.jobs.append(job)
        return len(self.jobs) - 1

    def wait(self, tickets: Collection[int]) -> int:
        return next(iter(tickets))

    def outcome(self, ticket: int) -> GradeOutcome:
        job = self.jobs[ticket]
        if "leaky" in job.submission:
            raise PackproofError("its worker was lost 21 times")
        if "missing" in job.submission:
            return GradeOutcome(3, errors="packproof: a wall does not stand\n", host="h")
        secret = job.arguments[job.arguments.index("--secret") + 1]
        seed = seed_of(job, secret) + ("uncallable" in job.submission)
        is_right = "right" in job.submission
        grade = {"verdict": "passed" if is_right else "failed", "seed": seed, "reason": "so", "counterexample": None}
        document = json.dumps({"version": 1, "grade": grade, "measured": {"reward": 0.5 * is_right}})
        replays = {} if is_right else {REPLAY: "{}"}
        return GradeOutcome(1 - is_right, document, replays=replays, host="h", seconds=2.0)

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def engines(working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Graded]:
    """Those of the runs, in a folder with ten submissions."""
    write_samples(working_folder, 10)
    made: list[Graded] = []

    def engine(*_: Any) -> Graded:
        made.append(Graded())
        return made[-1]

    monkeypatch.setattr(grades, "_engine", engine)
    return made


def rows_of(**options: Any) -> dict[str, dict[str, Any]]:
    with GradeRun("list.jsonl", **options) as run:
        rows = list(run)
    assert len({row["name"] for row in rows}) == len(rows)
    return {row["name"]: row for row in rows}


def test_each_submission_has_a_row_with_its_grade_or_an_error(engines: list[Graded]) -> None:
    rows = rows_of(options=GradeOptions(secret="s"))
    assert len(rows) == 10
    right = rows["0000-right"]
    assert (right["grade"]["verdict"], right["measured"], right["secret"]) == ("passed", {"reward": 0.5}, None)
    assert right["run"] == {"host": "h", "seconds": 2.0}
    assert rows["0003-leaky"] == {"name": "0003-leaky", "secret": None, "error": "its worker was lost 21 times"}
    assert rows["0001-missing"]["error"] == "packproof: a wall does not stand"
    assert rows["0002-uncallable"]["error"] == "h graded other files than those of the list"
    assert Path(REPLAY).read_text() == "{}"
    assert not engines[0].is_open


def test_a_drawn_secret_is_one_for_all_and_is_used_again(engines: list[Graded]) -> None:
    first = rows_of(results="r.jsonl")
    [secret] = {row["secret"] for row in first.values()}
    assert len(secret) == 32
    graded = {name for name, row in first.items() if "grade" in row}
    again = rows_of(results="r.jsonl", resume=True)
    assert again.keys() == first.keys() - graded
    assert {row["secret"] for row in again.values()} == {secret}
    names = [json.loads(line)["name"] for line in Path("r.jsonl").read_text().splitlines()]
    assert sorted(names) == sorted(first)


def test_every_job_has_the_same_options(engines: list[Graded]) -> None:
    rows_of(options=GradeOptions(secret="s", timed=False), cores=2)
    for job in engines[0].jobs:
        assert job.arguments[-6:] == ("--device", "cpu", "--secret", "s", "--untimed", "--isolate")
        assert job.cores == 2


@pytest.mark.usefixtures("engines")
def test_a_secret_of_the_caller_is_asked_for_again() -> None:
    rows_of(options=GradeOptions(secret="s"), results="r.jsonl")
    with pytest.raises(UsageError, match=r"^--secret: the results have grades by a secret of their caller"):
        rows_of(results="r.jsonl", resume=True)


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cores": 0}, "cores is 0, expected 1 or more"),
        ({"resume": True}, "--resume: there is nothing to continue without --results FILE"),
    ],
)
def test_a_wrong_call_grades_nothing(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        GradeRun("list.jsonl", **options)
    assert str(error.value) == message


@pytest.mark.usefixtures("engines")
def test_the_command_prints_a_line_for_each_and_a_sum(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["grades", "list.jsonl", "--device", "cpu", "--results", "r.jsonl"]
    assert main.run(call) == 4
    lines = capsys.readouterr().out.splitlines()
    assert "0000-right: passed, reward 0.5000, so" in lines
    assert "0003-leaky: not graded, its worker was lost 21 times" in lines
    assert lines[-1] == "10 submissions: 2 failed, 7 not graded, 1 passed"
    kept = [line for line in Path("list.jsonl").read_text().splitlines() if "right" in line or "empty" in line]
    Path("list.jsonl").write_text("\n".join(kept))
    assert main.run([*call, "--resume"]) == 0
    assert capsys.readouterr().out.splitlines() == ["2 submissions: none graded now, 2 graded before"]
    assert main.run(call) == 2


def test_without_a_gpu_here_none_can_be_asked_for(working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_samples(working_folder, 1)
    monkeypatch.setattr(grades, "_gpus", list)
    for _ in range(2):  # and the results that were opened can be used
        run = GradeRun("list.jsonl", options=GradeOptions("cuda"), results="r.jsonl")
        with pytest.raises(UsageError, match="device: no GPU is here, and the device is cuda"), run:
            pass
