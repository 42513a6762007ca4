"""The regression gate on handmade times: what is slower, what is noise, and what cannot be compared."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from packproof.base.errors import UsageError
from packproof.base.records import to_row
from packproof.bench.kernels.compare import compare, compare_times, require_rows
from packproof.bench.kernels.file import BenchDocument, BenchFile, RowTimes, read_bench
from packproof.bench.kernels.layouts import BenchLayout
from packproof.bench.kernels.results import BenchResult, Decile, Event, Spread
from tests.tools.bench.bench_results import HERE, ON_CPU, result, spread, stream


def document(events: list[Event], path: str | None = None) -> BenchDocument:
    file = BenchFile(path, "packproof bench")
    for event in events:
        file(event)
    return file.document


def of(*results: BenchResult) -> BenchDocument:
    return document(stream(*results))


def test_a_run_of_the_same_numbers_passes() -> None:
    run = of(result(), result("fla_rope", 0.4))
    assert compare(run, run, "old.json").text == "2 rows compared, none slower than allowed"


def test_a_slow_down_of_20_percent_is_a_regression() -> None:
    found = compare(of(result(ms=0.25)), of(result(ms=0.30)), "old.json")
    assert found.regressions == (
        "rope · packproof · forward · L2, 64 tokens · bfloat16 · h=32 k=128 r=64: "
        "0.3 ms, was 0.25: 1.20 x, allowed 1.05 x",
    )


@pytest.mark.parametrize(("ms", "noise", "slower"), [(0.261, 0.01, 0), (0.265, 0.01, 1), (0.3, 0.2, 0), (0.35, 0.2, 1)])
def test_noise_of_both_runs_is_allowed_for(ms: float, noise: float, slower: int) -> None:
    found = compare(of(result(ms=0.25, noise=noise)), of(result(ms=ms, noise=noise)), "old.json")
    assert len(found.regressions) == slower


def test_rounds_disturbed_by_other_work_are_not_a_regression() -> None:
    """Half of the rounds took longer: a slower kernel would be slower in all of them."""
    quiet = result(ms=0.25)
    [passed] = quiet.passes
    disturbed = replace(quiet, passes=(replace(passed, device=Spread(0.25, 0.33, 0.34, 60)),))
    assert not compare(of(quiet), of(disturbed), "old.json").regressions
    slower = replace(quiet, passes=(replace(passed, device=Spread(0.32, 0.33, 0.34, 60)),))
    assert compare(of(quiet), of(slower), "old.json").regressions


def test_a_row_that_had_a_time_and_is_wrong_now_is_a_regression() -> None:
    [line] = compare(of(result()), of(replace(result(), passes=(), verdict="wrong")), "old.json").regressions
    assert line.endswith("had a time and is wrong now")


def test_rows_are_matched_by_everything_that_affects_their_time() -> None:
    same_name = of(replace(result(), layout=BenchLayout("L2", (10, 20, 30))))
    [(configuration, _)] = same_name.times
    said = "--compare: old.json has no row of this run: tokens 64 there and 60 here; longest 34 there and 30 here"
    with pytest.raises(UsageError) as error:
        require_rows(of(result()), [asdict(configuration)], "old.json")
    assert str(error.value) == f"{said}; repeat the command that wrote it: packproof bench"
    with pytest.raises(UsageError, match="has no row that was timed in this run"):
        compare(of(result()), same_name, "old.json")


def at(ms: float, noise: float = 1.01) -> RowTimes:
    return RowTimes(spread(ms), Decile(ms, noise, {"small operations": 1.0, "products": 0.5}))


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (at(1.0), "not slower"),
        (at(1.1), "not slower"),
        (at(1.3), "slower"),
        (at(1.14, 1.08), "undecided"),
        (at(1.15, 1.2), "undecided"),
        (at(1.5, 1.2), "slower"),
        (RowTimes(spread(1.5), Decile(1.5, 1.0, {"small operations": 1.5, "products": 0.75})), "not slower"),
        (RowTimes(spread(1.5), Decile(1.5, 1.0, {"small operations": 1.5, "products": 0.5})), "undecided"),
        (RowTimes(spread(1.95), Decile(1.95, 1.0, {"small operations": 1.5, "products": 0.5})), "slower"),
        (RowTimes(spread(0.8), Decile(0.8, 1.0, {"small operations": 0.6, "products": 0.3})), "slower"),
        (RowTimes(spread(0.7), Decile(0.7, 1.0, {"small operations": 1.0, "products": 0.5})), "not slower"),
    ],
    ids=[
        "the same",
        "another process",
        "1.3 x slower",
        "between both",
        "slower or noise",
        "1.5 x slower",
        "a machine that is slower at everything",
        "a machine that is slower at some work",
        "1.3 x slower on a slower machine",
        "1.3 x slower on a faster machine",
        "faster",
    ],
)
def test_on_a_cpu_the_machine_and_its_noise_are_allowed_for(now: RowTimes, found: str) -> None:
    assert compare_times(at(1.0, 1.0), now) == found


def test_what_the_noise_leaves_open_is_not_called_unchanged() -> None:
    before, now = (
        document(stream(result(decile=at(ms, noise).decile), environment=ON_CPU))
        for ms, noise in ((1.0, 1.0), (1.14, 1.1))
    )
    found = compare(before, now, "old.json")
    assert found.text == (
        "1 row compared, none slower than allowed, 1 undecided: too much noise\n"
        "  rope · packproof · forward · L2, 64 tokens · bfloat16 · h=32 k=128 r=64: 1.14 ms, was 1: 1.14 x, allowed "
        "1.12 x; beside it fixed work takes 1.00 to 1.00 x, which leaves 1.11 to 1.17 x"
    )


def test_a_row_that_was_too_noisy_for_a_time_is_undecided() -> None:
    quiet = result(decile=at(1.0).decile)
    noisy = replace(quiet, passes=(), noise="against itself the same code takes forward 1.50 x")
    before, now = (document(stream(r, environment=ON_CPU)) for r in (quiet, noisy))
    [line] = compare(before, now, "old.json").undecided
    assert line.endswith("against itself the same code takes forward 1.50 x")


def test_another_number_of_threads_is_refused() -> None:
    two = replace(ON_CPU, threads=2)
    before, now = (document(stream(result(decile=at(1.0).decile), environment=where)) for where in (ON_CPU, two))
    with pytest.raises(UsageError, match=r"measured on Some CPU \(cpu, 1 thread\), this run is on .*2 threads"):
        compare(before, now, "old.json")


def test_a_file_without_deciles_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "old.json")
    document(stream(result(), environment=ON_CPU), path)
    with pytest.raises(UsageError, match=r"old: rows\[0\] has no first decile: an older packproof wrote this file"):
        read_bench(path, "old")


def test_another_device_is_refused() -> None:
    there = document(stream(result(), environment=replace(HERE, name="Other GPU")))
    with pytest.raises(
        UsageError, match=r"old\.json was measured on Other GPU \(cuda\), this run is on Some GPU \(cuda\)"
    ):
        compare(there, of(result()), "old.json")


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    declined = replace(result("fla_rope"), passes=(), limit="no memory")
    unfinished = document(stream(result(decile=at(1.0).decile), declined, finished=False), str(path))
    assert json.loads(path.read_text())["finished"] is False  # complete, though the run goes on
    assert read_bench(str(path), "old") == unfinished


def _damaged(change: str) -> Any:
    data: Any = to_row(document(stream(result())))
    row = data["rows"][0]
    match change:
        case "version":
            data["version"] = 2
        case "rows":
            data["rows"] = {}
        case "row":
            data["rows"] = [3]
        case "tokens":
            row["tokens"] = True
        case "time":
            row["ms"]["median"] = -1
        case "nan":
            row["ms"]["high"] = float("nan")
        case "decile":
            row["decile"] = {"ms": 1.0, "noise": 0.5, "beside": {}}
        case "pass":
            row["pass"] = None
        case "threads":
            data["environment"]["threads"] = "many"
        case "noisy":
            data["noisy"] = [3]
        case "environment":
            data["environment"] = {"device": "cuda", "name": 3}
        case "list":
            data = [data]
    return data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("version", " was not written by `packproof bench --json` in version 1"),
        ("list", " was not written by `packproof bench --json` in version 1"),
        ("rows", ": damaged, rows is {}, expected tuple"),
        ("row", ": damaged, rows[0] is 3, expected TimedRow"),
        ("tokens", ": damaged, rows[0].tokens is true, expected int"),
        ("time", ": damaged, rows[0].ms is {"),
        ("nan", ": damaged, rows[0].ms is {"),
        ("pass", ": damaged, rows[0].pass is null, expected 'forward' or 'backward' or 'both'"),
        ("environment", ": damaged, environment has no torch"),
        ("threads", ': damaged, environment.threads is "many", expected int'),
        ("noisy", ": damaged, noisy[0] is 3, expected NoisyRow"),
        ("decile", ": damaged, rows[0].decile is {"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, change: str, message: str) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(_damaged(change)))
    with pytest.raises(UsageError) as error:
        read_bench(str(path), f"--compare: {path}")
    assert str(error.value).startswith(f"--compare: {path}{message}")


@pytest.mark.parametrize(
    ("text", "message"), [(None, "No such file"), ("{", "damaged, not JSON"), ("[" * 10**6, "damaged")]
)
def test_a_file_that_is_not_json_is_refused_in_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "old.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_bench(str(path), "old")
