"""The command, its file, the table and the plot."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.bench.stacks.report import StacksFile, StacksReport
from packproof.bench.stacks.results import StackEvent, StacksFinished, StacksStarted, Trained
from packproof.cli import ending, main
from tests.tools.bench.bench_results import HERE

STARTED = StacksStarted(HERE, {"mamba-ssm": "2.3.2"}, (57, 2048, 600), 4096, 3, "bfloat16", 0)
TIMED = Trained(
    *("mamba2-1.4b", "single", "timed"),
    parameters=1_340_000_000,
    tokens=2705,
    passes=3,
    rows=2705,
    loss=10.8312345,
    apart=1.0,
    losses=(10.8312, 10.8, 10.7, 10.6),
    seconds=(2.0, 1.0, 3.0),
    peak=2**34,
)
ROWS = (
    TIMED,
    Trained("mamba2-1.4b", "padded", "too large", "out of memory"),
    replace(TIMED, mode="packed", passes=1, rows=4096, apart=1.02, seconds=(0.5, 0.5, 0.5), peak=2**35),
    Trained("mamba-1.4b", "mamba_ssm", "cannot", "it takes no boundaries"),
)
SAID = """\
Some GPU · torch 2.11.0, triton 3.6.0, mamba-ssm 2.3.2, driver 580.1
a step: 3 documents of 57 to 2,048 tokens, mean 902, in passes of at most 4,096 rows
bf16, forward, backward, one fused AdamW update; median of 3 steps · seed 0

mamba2-1.4b
  mode        passes  padding   s/step  tokens/s      x  peak GiB     loss  apart    after
  single           3     0.0%    2.000     1,352   1.00      16.0 10.83123   1.00 10.60000
  padded     too large: out of memory
  packed           1    34.0%    0.500     5,410   4.00      32.0 10.83123   1.02 10.60000

mamba-1.4b
  mode        passes  padding   s/step  tokens/s      x  peak GiB     loss  apart    after
  mamba_ssm  cannot: it takes no boundaries

mamba2-1.4b: tokens per second, packed is 4.00 x single

12.3 s"""
TABLE = """\
<!-- packproof table stack.json -->
`packproof bench stack` on Some GPU: packproof 0.1.0, torch 2.11.0,
triton 3.6.0, mamba-ssm 2.3.2, driver 580.1.
A step: 3 documents of 57 to 2,048 tokens, mean 902, in passes of at most 4,096 rows;
bf16, forward, backward, one fused AdamW update; median of 3 steps.

| model | mode | passes | padding | s a step | tokens/s | x | peak, GiB | loss | apart | loss after |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| mamba2-1.4b, 1.34 B | single | 3 | 0.0% | 2.000 | 1,352 | 1.00 | 16.0 | 10.83123 | 1.00 | 10.60000 |
| mamba2-1.4b | padded | too large | | | | | | | | |
| mamba2-1.4b, 1.34 B | packed | 1 | 34.0% | 0.500 | 5,410 | 4.00 | 32.0 | 10.83123 | 1.02 | 10.60000 |
| mamba-1.4b | mamba_ssm | cannot | | | | | | | | |

- mamba2-1.4b: tokens per second, packed is 4.00 x single
<!-- end of table -->"""


@pytest.fixture
def file(working_folder: Path) -> Path:
    """stack.json, with handmade times."""
    written = StacksFile("stack.json", "packproof bench stack")
    for event in events():
        written(event)
    return working_folder / "stack.json"


def events() -> tuple[StackEvent, ...]:
    return (STARTED, *ROWS, StacksFinished(12.34))


def test_rows_are_printed_as_they_come() -> None:
    said: list[str] = []
    report = StacksReport(said.append)
    for event in events():
        report(event)
    assert "\n".join(said) == SAID


def test_the_file_is_complete_after_every_row(tmp_path: Path) -> None:
    path = tmp_path / "stack.json"
    written = StacksFile(str(path), "")
    for count, event in enumerate(events()[:-1]):
        written(event)
        assert len(json.loads(path.read_text())["rows"]) == count


def test_the_table_and_the_plot_are_made_of_the_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the plot needs matplotlib")
    for name in ("one.svg", "two.svg"):
        assert main.run(["table", "stack.json", "--plot", name]) == ending.SUCCESS
        assert capsys.readouterr().out == TABLE + "\n"
    one, two = ((file.parent / name).read_bytes() for name in ("one.svg", "two.svg"))
    assert one == two
    assert b"<svg" in one


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 9}, " was not written by `packproof bench stack --json` in version 1"),
        (
            {"rows": [{"model": "m"}]},
            ": damaged, rows[0] has no mode; expected a file that `packproof bench",
        ),
        ({"started": {}}, ": damaged, started has no environment"),
        ({"rows": [{**asdict(ROWS[0]), "more": 1}]}, ": damaged, rows[0] has 'more', which is unknown"),
    ],
)
def test_a_damaged_file_is_named(
    file: Path, change: dict[str, object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    assert main.run(["table", "stack.json"]) == ending.WRONG_CALL
    assert f"packproof: stack.json{message}" in capsys.readouterr().err


@pytest.mark.proof
def test_the_command_trains_a_tiny_stack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "stack.json"
    line = "bench stack --device cpu --model mamba2-tiny --tokens 64 --packs 1 --steps 1 --modes packed,single --json"
    assert main.run([*line.split(), str(path)]) == ending.SUCCESS
    said = capsys.readouterr().out
    assert "without a GPU references train tiny stacks: the command works, and nothing is said of speed" in said
    assert [row["status"] for row in json.loads(path.read_text())["rows"]] == ["timed", "timed"]
    assert main.run([*line.replace("packed,single", "mamba_ssm").split(), str(path)]) == ending.WRONG_CALL


def test_a_mode_on_another_loss_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Trained("mamba2-tiny", "packed", "wrong", "its losses are not those of one document at a time: ...")
    monkeypatch.setattr("packproof.bench.stacks.run_stacks", lambda _: iter((STARTED, ROWS[0], wrong)))
    assert main.run(["bench", "stack", "--device", "cpu"]) == ending.FAILED


def test_a_file_that_cannot_be_written_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="--json: the folder"):
        StacksFile("no/stack.json", "")
