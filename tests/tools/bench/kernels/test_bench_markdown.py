"""The Markdown table from a file with handmade times, and the messages for other files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packproof.base.errors import UsageError
from packproof.bench.kernels.file import BenchFile
from packproof.bench.kernels.layouts import BenchLayout
from packproof.bench.kernels.markdown import table
from packproof.bench.kernels.results import LayoutFinished, SizeProof
from packproof.cli import ending, main
from tests.tools.bench.bench_results import result, stream

TABLE = """\
<!-- packproof table bench.json -->
`packproof bench --op rope` on Some GPU: packproof 0.1.0, torch 2.11.0,
triton 3.6.0, driver 580.1. Milliseconds; in brackets the part of the ceiling that was
measured in the same run (copy 4000 GB/s, bf16 products 700 TFLOP/s), and the time over that of
the first row. Host: µs to enqueue a call. Kept: bytes per token and channel kept for the backward pass.

**rope** · bf16 · h=32 k=128 r=64

| | pass | L2 | L4 | host | kept |
| --- | --- | ---: | ---: | ---: | ---: |
| packproof | forward | 0.25 (100%) | 0.5 (50%) | 30 | 8 |
| fla_rope | forward | 0.5 (50%, 2.00 x) | wrong | 30 | 8 |

Not timed: flash_attn_rope (not installed)
<!-- end of table -->"""


@pytest.fixture(autouse=True)
def file(working_folder: Path) -> Path:
    """bench.json, of two implementations at two layouts; the second one is wrong at L4."""
    written = BenchFile("bench.json", "packproof bench --op rope")
    long = BenchLayout("L4", (64,))
    wrong = replace(result("fla_rope", layout=long), passes=(), kept_bytes=None, verdict="spot check (y): ...")
    absent = SizeProof("rope", "flash_attn_rope", "h=32 k=128 r=64", "bfloat16", "not installed", "not installed")
    for event in (
        *stream(result(), result("fla_rope", 0.5), finished=False),
        LayoutFinished((result(ms=0.5, layout=long), wrong)),
        absent,
    ):
        written(event)
    return working_folder / "bench.json"


def test_a_line_for_each_implementation_and_a_column_for_each_layout() -> None:
    assert table("bench.json") == TABLE


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["table", "bench.json"]) == ending.SUCCESS
    assert capsys.readouterr().out == TABLE + "\n"
    assert main.run(["table", "none.json"]) == ending.WRONG_CALL
    assert capsys.readouterr().err == "packproof: none.json: No such file or directory\n"


def test_a_file_of_an_older_packproof_is_refused(file: Path) -> None:
    data: dict[str, Any] = json.loads(file.read_text())
    del data["rows"][0]["of_ceiling"]
    file.write_text(json.dumps(data))
    with pytest.raises(
        UsageError,
        match=r"bench\.json: damaged, rows\[0\] has no of_ceiling; expected a file that `packproof bench",
    ):
        table("bench.json")


def test_a_file_of_another_kind_is_refused(file: Path) -> None:
    file.write_text("{}")
    with pytest.raises(UsageError, match=r"bench\.json was not written by `packproof bench --json` in version 1"):
        table("bench.json")
