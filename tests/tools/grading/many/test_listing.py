"""Lists of submissions: what is read, what is refused, and what a grade of each one needs."""

import json
from base64 import b64decode
from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.grading.many.job import GradeOptions
from packproof.grading.many.listing import ListedSubmission, fixed_entries, read_list
from tests.tools.grading.many.samples import CONTRACT, write_samples

OPTIONS = GradeOptions("cpu", "s", timed=False)


@pytest.fixture
def samples(working_folder: Path) -> Path:
    write_samples(working_folder, 4)
    (working_folder.parent / "outside.py").touch()
    return working_folder


@pytest.mark.usefixtures("samples")
def test_a_file_of_json_lines_and_a_folder_have_the_same_submissions() -> None:
    listed, in_folder = read_list("list.jsonl"), read_list("submissions:conv")
    assert [line.submission for line in listed] == [line.submission for line in in_folder]
    assert [line.name for line in listed] == ["0000-right", "0001-missing", "0002-uncallable", "0003-leaky"]


@pytest.mark.usefixtures("samples")
def test_a_job_has_the_files_that_it_needs_and_the_options_of_the_command() -> None:
    [entry, *_] = fixed_entries(read_list("submissions:conv"), CONTRACT, None)
    job = entry.job(OPTIONS, 2)
    assert job.submission == entry.name == "submissions/0000-right.py:conv"
    assert job.arguments == ("--contract", CONTRACT, *OPTIONS.arguments)
    assert job.cores == 2
    assert job.files.keys() == {CONTRACT, "submissions/0000-right.py"}
    assert b64decode(job.files[CONTRACT]) == Path(CONTRACT).read_bytes()


@pytest.mark.usefixtures("samples")
def test_an_op_beside_the_contract_and_a_package_come_along() -> None:
    terms = json.loads(Path(CONTRACT).read_text())
    Path("own.json").write_text(json.dumps({**terms, "op": "own.py:OP"}))
    Path("own.py").write_text("OP = None")
    Path("kernels/inner").mkdir(parents=True)
    for name in ("kernels/__init__.py", "kernels/inner/conv.py"):
        Path(name).write_text("")
    [entry] = fixed_entries([ListedSubmission("kernels.inner.conv:conv", contract="own.json")], None, None)
    assert entry.job(OPTIONS, 1).files.keys() == {
        *("own.json", "own.py", "kernels/__init__.py", "kernels/inner/conv.py"),
    }


def test_a_task_stands_in_for_a_contract_and_an_installed_module_stays_where_it_is() -> None:
    line = ListedSubmission("packproof.museum.rotary:correct", task="rope-forward-easy")
    [entry] = fixed_entries([line], None, None)
    job = entry.job(OPTIONS, 1)
    assert job.arguments[:2] == ("--task", "rope-forward-easy")
    assert job.files == {}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("none.jsonl", "submissions: none.jsonl: No such file or directory; expected a file of JSON lines, or FOLDER:"),
        ("empty:conv", "submissions: empty has no file of Python, such as empty/0001.py"),
        ("broken.jsonl", "broken.jsonl line 2: damaged, not JSON"),
        ("unknown.jsonl", "unknown.jsonl line 1: damaged, "),
    ],
)
def test_a_list_that_cannot_be_read_is_one_line(source: str, message: str, working_folder: Path) -> None:
    (working_folder / "empty").mkdir()
    (working_folder / "broken.jsonl").write_text('{"submission": "a.py:f"}\n{\n')
    (working_folder / "unknown.jsonl").write_text('{"submission": "a.py:f", "targets": 1}\n')
    with pytest.raises(UsageError) as error:
        read_list(source)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("submission", "name", "message"),
    [
        ("none.py:conv", "", "none.py:conv: target 'none.py:conv': there is no file none.py"),
        (
            "../outside.py:conv",
            "",
            "../outside.py:conv: ../outside.py is no path below the current folder; start there",
        ),
        ("submissions/0000-right.py:conv", "0001-missing", 'submissions: 2 are called "0001-missing"; each needs a '),
    ],
)
@pytest.mark.usefixtures("samples")
def test_nothing_is_graded_if_one_cannot_be(submission: str, name: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        fixed_entries([*read_list("list.jsonl"), ListedSubmission(submission, name, CONTRACT)], None, None)
    assert str(error.value).startswith(message)


@pytest.mark.usefixtures("samples")
def test_a_submission_without_terms_is_named() -> None:
    with pytest.raises(
        UsageError, match=r"^submissions/0000-right.py:conv: contract: a grade has either a contract or"
    ):
        fixed_entries(read_list("submissions:conv"), None, None)
