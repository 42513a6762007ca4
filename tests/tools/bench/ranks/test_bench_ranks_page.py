"""Files of `packproof bench ranks` beside the cost model: the table, the plot, and files that are none."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from packproof.base.environment import Environment
from packproof.bench.ranks import model
from packproof.bench.ranks.page import read_rows
from packproof.bench.ranks.row import OpJudgement
from packproof.cli import ending, main

ROWS: list[dict[str, Any]] = [
    {"op": "causal_conv1d", "one": 3.0, "all": 1.6, "parts": {"rank": 1.5, "two all-gathers": 0.06}},
    {"op": "ssd", "one": 28.0, "all": 14.2, "parts": {"rank": 14.1, "two all-gathers": 0.08}},
    {"op": "attention", "one": 100.0, "all": 96.0, "parts": {"rank": 76.0, "two exchanges": 3.0}},
    {"op": "attention, zig-zag", "one": 100.0, "all": 53.0, "parts": {"rank": 51.0, "two exchanges": 3.0}},
]
FILE: dict[str, Any] = {
    "packproof": "0.1.0",
    "command": "packproof bench ranks --json ranks.json",
    "device": "GPU",
    "environment": asdict(Environment("cuda", "GPU", "2.11", "3.6", "3.12", 1)),
    "ranks": 2,
    "judged": [asdict(OpJudgement("ssd", "float32", 50, 300, 100, (), 1.0))],
    "failed": [],
    "rows": [{"layout": "one document", "ranks": 2, "tokens": 262_144, **row} for row in ROWS],
}
TABLE = """\
<!-- packproof table ranks.json -->
`packproof bench ranks --json ranks.json` on 2 × GPU, torch 2.11, triton 3.6.
`partition` with these ranks: 50 cases, 300 comparisons, 100 of them bit for bit,
0 failures.

| op | tokens | GPUs | one GPU, ms | all, ms | rate | model, ms | measured over it |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| causal_conv1d, one document | 262,144 | 2 | 3.00 | 1.60 | 1.88 x | 1.54 | +4% |
| ssd, one document | 262,144 | 2 | 28.00 | 14.20 | 1.97 x | 14.05 | +1% |
| attention, one document | 262,144 | 2 | 100.00 | 96.00 | 1.04 x | 79.81 | +20% |
| attention, zig-zag, one document | 262,144 | 2 | 100.00 | 53.00 | 1.89 x | 54.81 | -3% |

More than 15% from the model, part by part (model → measured; the rest is in no part):

| op | GPUs | kernels, ms | collectives, ms | rest, ms |
| --- | ---: | ---: | ---: | ---: |
| attention, one document | 2 | 75.00 → 76.00 | 4.81 → 3.00 | 17.00 |

On 2 GPUs: α 0.020 ms assumed, 0.030 ms measured (convolution); β
450 GB/s assumed, 210 GB/s measured (SSD beside it).
<!-- end of table -->
"""


@pytest.fixture
def file(working_folder: Path) -> Path:
    path = working_folder / "ranks.json"
    path.write_text(json.dumps(FILE))
    return path


def test_the_table_sets_times_beside_the_model(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["table", "ranks.json"]) == ending.SUCCESS
    assert capsys.readouterr().out == TABLE


def test_several_files_make_one_table(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = [{**row, "ranks": 4, "all": row["all"] / 2} for row in FILE["rows"]]
    file.with_name("four.json").write_text(json.dumps({**FILE, "rows": more}))
    assert main.run(["table", "four.json,ranks.json"]) == ending.SUCCESS
    assert [row.ranks for row in read_rows("four.json,ranks.json")[0]] == [2] * 4 + [4] * 4
    assert "On 4 GPUs" in capsys.readouterr().out


def test_the_plot_has_the_same_bytes_each_time(file: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot needs matplotlib")
    for name in ("one.svg", "two.svg"):
        assert main.run(["table", "ranks.json", "--plot", name]) == ending.SUCCESS
    one, two = ((file.parent / name).read_bytes() for name in ("one.svg", "two.svg"))
    assert one == two
    assert b"<svg" in one


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"all": "fast"}, 'rows[0].all is "fast", expected float'),
        ({"more": 1}, "rows[0] has 'more', which is unknown"),
        ({"parts": {}}, "rows[0] does not fit the cost model (KeyError: 'rank')"),
        ({"op": "s5"}, "rows[0] does not fit the cost model (KeyError: 's5')"),
        ({"all": 0}, "rows[0] does not fit the cost model (ZeroDivisionError"),
    ],
)
def test_a_damaged_file_is_named(
    file: Path, change: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(json.dumps({**FILE, "rows": [FILE["rows"][0] | change]}))
    assert main.run(["table", "ranks.json"]) == ending.WRONG_CALL
    assert f"packproof: ranks.json: damaged, {message}" in (said := capsys.readouterr().err)
    assert said.endswith("expected a file that `packproof bench ranks --json` wrote\n")


def test_a_zig_zag_shares_out_the_work_of_a_causal_mask() -> None:
    """Of 4 ranks the last has queries that see 7 of 16 quarters of the mask."""
    assert model.share("attention", "one document", 4) == 7 / 16
    assert model.share("attention, zig-zag", "one document", 4) == 1 / 4
