"""The comparison of two runs beside other releases: what is worse, what changed otherwise, and what is no change."""

import json
from pathlib import Path
from typing import Any

import pytest

from packproof.proof.drift import main
from packproof.proof.drift_changes import unjudged_peers

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


def write_release(folder: Path, release: str, verdicts: dict[str, str], reason: str = "") -> None:
    """The scoreboard of a release, as `.ci/drift --releases` writes it: a verdict for each "property dtype"."""
    (folder / release).mkdir(parents=True)
    peers = [{"peer": "liger:rope", "version": release, "reason": reason}]
    rows = [
        {**ROW, "law": law, "dtype": dtype, "verdict": verdict}
        for (law, dtype), verdict in ((subject.split(), verdict) for subject, verdict in verdicts.items())
    ]
    (folder / release / "peers.json").write_text(json.dumps({"peers": peers, "rows": rows}))


def test_each_release_is_compared_with_the_one_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = {"packing float32": "passed", "packing bfloat16": "passed"}
    write_release(tmp_path / "liger", "0.9.0", {**both, "strides float32": "FAILED", "size float32": "passed"})
    write_release(tmp_path / "liger", "0.10.0", {**dict.fromkeys(both, "FAILED"), "strides float32": "passed"})
    write_release(tmp_path / "liger", "0.10.1", {**both, "strides float32": "passed", "carry float32": "FAILED"})
    write_release(tmp_path / "fla", "1.0", {"packing float32": "passed"})
    write_release(tmp_path / "fla", "1.1", {}, reason="not here")
    assert main(["--releases", str(tmp_path), "--markdown", str(tmp_path / "drift.md")]) == 1
    out = capsys.readouterr().out
    assert (tmp_path / "drift.md").read_text().strip() == out.strip()
    assert "| fla | 1.0, 1.1 | 0 | 1 | 0 | 0 |\n| liger | 0.9.0, 0.10.0, 0.10.1 | 4 | 2 | 2 | 1 |\n" in out
    [_, fla, first, second] = out.split("\n## ")
    assert fla.startswith("fla 1.0 → 1.1\n\n### Worse\n\n- liger:rope packing, fp32: passed, now not asked\n")
    assert fla.rstrip().endswith("### Not judged at 1.1\n\n- liger:rope: not here")
    assert first == (
        "liger 0.9.0 → 0.10.0\n\n### Worse\n\n- liger:rope packing, bf16 and fp32: passed, now FAILED\n"
        "- liger:rope size, fp32: passed, now not asked\n\n"
        "### Better\n\n- liger:rope strides, fp32: FAILED, now passed\n"
    )
    assert "### Better\n\n- liger:rope packing, bf16 and fp32: FAILED, now passed\n" in second
    assert "### Otherwise changed\n\n- liger:rope carry, fp32: not asked, now FAILED\n" in second


def test_a_missing_module_is_no_verdict_on_a_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The kernel was not run: what the release computes is not known."""
    write_release(tmp_path / "fla", "1.0", {"packing float32": "FAILED"})
    file = tmp_path / "fla/1.0/peers.json"
    data = json.loads(file.read_text())
    data["rows"][0]["lines"] = ["fp32, d=3", "ModuleNotFoundError: No module named 'more' (utils.py:24)"]
    file.write_text(json.dumps(data))
    write_release(tmp_path / "fla", "1.1", {"packing float32": "passed"})
    assert main(["--releases", str(tmp_path)]) == 0
    assert "| fla | 1.0, 1.1 | 1 | 0 | 0 | 1 |" in capsys.readouterr().out
    (tmp_path / "fla/1.1").rename(tmp_path / "fla/0.9")
    assert main(["--releases", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "- liger:rope packing, fp32: passed, now a module is missing\n" in out
    assert "### Not judged at 1.0\n\n- liger:rope: ModuleNotFoundError: No module named 'more'" in out


def test_a_peer_without_a_module_is_listed_as_the_scoreboard_has_it(tmp_path: Path) -> None:
    write_release(tmp_path, "1.0", {"packing float32": "a module is missing"})
    file = tmp_path / "1.0/peers.json"
    data = json.loads(file.read_text())
    data["rows"][0]["reason"] = "2 of 2 examples not judged: module more is not installed (utils.py:24)"
    file.write_text(json.dumps(data))
    assert unjudged_peers(file.parent) == ["liger:rope: module more is not installed (utils.py:24)"]


def test_releases_without_a_change_are_only_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for release in ("1.0", "1.1"):
        write_release(tmp_path / "fla", release, {"packing float32": "passed"})
    assert main(["--releases", str(tmp_path)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("| fla | 1.0, 1.1 | 1 | 0 | 0 | 0 |")


def test_a_folder_without_releases_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--releases", str(tmp_path)]) == 2
    assert "has no results, expected PACKAGE/RELEASE/peers.json" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--releases", str(tmp_path), str(tmp_path)])
