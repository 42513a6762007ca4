"""The comparison of two runs beside other releases: what is worse, what changed otherwise, and what is no change."""

import json
from pathlib import Path
from typing import Any

import pytest

from packproof.proof.drift import main

ROW = {"peer": "liger:rope", "law": "packing", "beyond": "", "dtype": "bfloat16", "verdict": "passed, 21 of 21 judged"}


def write_run(folder: Path, version: str, **found: Any) -> Path:
    """A folder as `.ci/drift` writes it, with one result of each kind unless `found` has others."""
    folder.mkdir()
    (folder / "versions.txt").write_text(f"torch==2.15.0\nliger-kernel=={version}\n-e git+here\n")
    museum = found.get("museum", [{"id": "D4", "status": "detected"}])
    alarms = found.get("alarms", [{"id": "scan.own_grid", "false": []}])
    rows = found.get("rows", [ROW])
    (folder / "museum.json").write_text(json.dumps({"results": museum}))
    (folder / "alarms.json").write_text(json.dumps({"results": alarms}))
    (folder / "peers.json").write_text(
        json.dumps({"peers": [{"peer": "liger:rope", "version": version}], "rows": rows})
    )
    return folder


def compared(tmp_path: Path, capsys: pytest.CaptureFixture[str], **after: Any) -> tuple[int, str]:
    before, now = write_run(tmp_path / "before", "0.8.4"), write_run(tmp_path / "now", "0.8.5", **after)
    code = main([str(before), str(now), "--markdown", str(tmp_path / "drift.md")])
    out = capsys.readouterr().out
    assert (tmp_path / "drift.md").read_text().strip() == out.strip()
    return code, out


def test_another_release_alone_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = compared(tmp_path, capsys)
    assert code == 0
    assert "3 results, 1 other release: 0 worse, 0 otherwise changed." in out
    assert "- liger-kernel 0.8.4 → 0.8.5" in out
    assert "Worse" not in out


@pytest.mark.parametrize(
    ("after", "line"),
    [
        ({"museum": [{"id": "D4", "status": "not detected"}]}, "museum D4: detected, now not detected"),
        ({"museum": []}, "museum D4: detected, now not asked"),
        (
            {"alarms": [{"id": "scan.own_grid", "false": [{}]}]},
            "correct kernel scan.own_grid: no alarm, now 1 false alarm",
        ),
        (
            {"rows": [{**ROW, "verdict": "FAILED, 3 of 21 judged"}]},
            "liger:rope packing bfloat16: passed, now FAILED (0.8.4 → 0.8.5)",
        ),
        (
            {"rows": [{**ROW, "verdict": "inconclusive, 3 of 21 judged"}]},
            "liger:rope packing bfloat16: passed, now inconclusive (0.8.4 → 0.8.5)",
        ),
    ],
)
def test_what_is_worse_fails(
    after: dict[str, Any], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = compared(tmp_path, capsys, **after)
    assert code == 1
    assert f"## Worse\n\n- {line}\n" in out


def test_what_is_mended_and_what_is_new_do_not_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing = {**ROW, "verdict": "FAILED, 21 of 21 judged"}
    before = write_run(tmp_path / "before", "0.8.4", rows=[failing])
    now = write_run(tmp_path / "now", "0.8.4", rows=[ROW, {**ROW, "dtype": "float16", "verdict": "FAILED"}])
    assert main([str(before), str(now)]) == 0
    assert "## Changed\n\n- liger:rope packing bfloat16: FAILED, now passed\n" in capsys.readouterr().out


def test_a_folder_without_a_run_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = write_run(tmp_path / "before", "0.8.4")
    assert main([str(before), str(tmp_path / "none")]) == 2
    (before / "museum.json").write_text("{")
    assert main([str(before), str(before)]) == 2
    assert "museum.json: damaged, not JSON" in capsys.readouterr().err
