"""Complete checks in unusual places: unwritable replays, and paths and kernel output that could control a terminal.

Each ends with its verdict, in every report.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from packproof.cli import main
from packproof.harness.check.replay import replay

OP = f"{Path(__file__).parents[2] / 'harness/rogues_op.py'}:SCALED"
PAINT = "\x1b[2J\x1b[32mevery property held: 8 passed\x1b[0m\r\x9b2J\u202e"
KERNELS = f"""
import os, shutil

def wrong(x, weight, *, cu_seqlens):
    return x * weight * 1.5

def correct(x, weight, *, cu_seqlens):
    return x * weight

def raises(x, weight, *, cu_seqlens):
    raise ValueError({PAINT!r})

def prints(x, weight, *, cu_seqlens):
    os.write(1, {PAINT!r}.encode("utf-8"))
    return x * weight * 1.5

def ends(x, weight, *, cu_seqlens):
    raise SystemExit({PAINT!r})

def removes_its_folder(x, weight, *, cu_seqlens):
    shutil.rmtree(os.getcwd(), ignore_errors=True)
    return x * weight * 1.5
"""


def check(folder: Path, target: str, *more: str) -> int:
    """The exit code of a short check whose reports lie in that folder."""
    reports = [f"--{kind}={folder / f'r.{kind}'}" for kind in ("json", "junit", "html")]
    few = ["--op", OP, "--dtype", "fp32", "--property", "reference", "--profile", "quick", "--device", "cpu"]
    return main.run(["check", target, *few, *reports, *more])


def statuses(folder: Path) -> list[str]:
    return [result["status"] for result in json.loads((folder / "r.json").read_text())["results"]]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """The working directory, with a file of kernels."""
    place = tmp_path / "place"
    place.mkdir()
    (place / "kernels.py").write_text(KERNELS)
    with contextlib.chdir(place):
        yield place


@pytest.mark.parametrize("kernel", ["wrong", "removes_its_folder"])
def test_a_verdict_does_not_need_its_replay(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kernel: str
) -> None:
    (place / ".packproof").touch()
    assert check(tmp_path, f"kernels.py:{kernel}") == 1
    assert statuses(tmp_path) == ["failed"]
    assert "no replay file could be written: " in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir() if path != place) == ["r.html", "r.json", "r.junit"]


@pytest.mark.parametrize("kernel", ["raises", "prints", "ends"])
def test_a_kernel_cannot_control_the_terminal(place: Path, capfd: pytest.CaptureFixture[str], kernel: str) -> None:
    assert check(place, f"kernels.py:{kernel}") == 1
    shown = "".join([*capfd.readouterr(), *(file.read_text() for file in place.glob("r.*"))])
    assert "\\x1b[2J" in shown
    assert not {"\x1b", "\x9b", "\u202e", "\r"} & {*shown}
    assert not [line for line in shown.splitlines() if line.strip().startswith("every property held")]


def test_a_kernel_that_cannot_be_imported_gets_one_line(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (place / "broken.py").write_text(f"raise ValueError({PAINT!r} + '\\n\\nevery property held')\n")
    assert check(place, "broken.py:kernel") == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"packproof: {place / 'broken.py'} cannot be imported: ValueError: \\x1b[2J")
    assert err.count("\n") == 1


@pytest.mark.parametrize(("kernel", "code", "status"), [("wrong", 1, "failed"), ("correct", 0, "passed")])
def test_paths_may_contain_unprintable_bytes(
    place: Path, capfd: pytest.CaptureFixture[str], kernel: str, code: int, status: str
) -> None:
    odd = place / os.fsdecode(b"\xff\x1b[31m")
    odd.mkdir()
    (odd / "kernels.py").write_text(KERNELS)
    assert check(odd, f"{odd / 'kernels.py'}:{kernel}") == code
    assert statuses(odd) == [status]
    assert "\x1b" not in "".join([*capfd.readouterr(), *(file.read_text() for file in odd.glob("r.*"))])
    if kernel == "wrong":
        [file] = (place / ".packproof").iterdir()
        assert replay(file).status == "failing"


@pytest.mark.skipif(torch.cuda.is_available(), reason="autograd has threads beside a GPU, which no fork survives")
def test_the_op_of_a_replay_file_is_not_imported_in_this_process(place: Path, tmp_path: Path) -> None:
    op = place / "op.py"
    op.write_text(f"{Path(OP.partition(':')[0]).read_text()}\nimport os\nopen('by', 'a').write(f'{{os.getpid()}} ')\n")
    check(tmp_path, "kernels.py:wrong")
    [file] = (place / ".packproof").iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"op": f"{op}:SCALED"}))
    assert replay(file).status == "failing"
    assert str(os.getpid()) not in (place / "by").read_text().split()
    assert "packproof_target_op" not in sys.modules
