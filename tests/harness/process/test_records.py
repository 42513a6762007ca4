"""Dataclasses as JSON, in reports of processes and in files: nothing is converted; an error names the value by path."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from packproof.base.errors import UsageError
from packproof.base.records import RecordError, from_json, from_row, read_record, to_json, to_row


@dataclass(frozen=True)
class Point:
    x: int
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Line:
    points: tuple[Point, ...]
    center: Point | None
    weights: Mapping[str, float]


LINE = Line((Point(1), Point(2, "b")), Point(3), {"w": 1})
ROW: dict[str, Any] = {
    "points": [{"x": 1, "kind": "a"}, {"x": 2, "kind": "b"}],
    "center": {"x": 3, "kind": "a"},
    "weights": {"w": 1},
}


def test_reports_have_the_names_of_classes_and_files_have_none() -> None:
    assert to_row(LINE) == ROW
    assert to_json(LINE)["is"] == "Line"
    assert to_json(LINE)["points"][0] == {"is": "Point", "x": 1, "kind": "a"}
    assert from_row(Line, json.loads(json.dumps(to_row(LINE)))) == LINE
    assert from_json(Line, json.loads(json.dumps(to_json(LINE)))) == LINE


def test_a_field_with_a_default_may_be_absent_in_a_file_only() -> None:
    assert from_row(Point, {"x": 1}) == Point(1)
    with pytest.raises(RecordError, match="the record has no kind"):
        from_json(Point, {"is": "Point", "x": 1})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": [{"x": 1}, {"x": True}]}, "points[1].x is true, expected int"),
        ({"points": [{"x": 1, "kind": "c"}]}, "points[0].kind is \"c\", expected 'a' or 'b'"),
        ({"points": [{}]}, "points[0] has no x"),
        ({"points": {}}, "points is {}, expected tuple"),
        ({"center": {"x": "far"}}, 'center.x is "far", expected int'),
        ({"center": 3}, "center is 3, expected Point"),
        ({"weights": {"w": None}}, "weights.w is null, expected float"),
        ({"color": 1}, "the record has 'color', which is unknown"),
    ],
)
def test_an_error_has_the_path_of_the_value(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError) as error:
        from_row(Line, ROW | change)
    assert str(error.value) == message
    file = tmp_path / "line.json"
    file.write_text(json.dumps(ROW | change))
    with pytest.raises(UsageError) as refusal:
        read_record(Line, file, "--from: line.json", "`draw --json`")
    assert str(refusal.value) == f"--from: line.json: damaged, {message}; expected a file that `draw --json` wrote"
