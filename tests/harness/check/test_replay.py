"""A replay file is plain data: it fails again, recognises a fix, and is refused when damaged."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from packproof.base.errors import UsageError
from packproof.cli import main
from packproof.debug.diff import diff
from packproof.harness.check.check import run_check
from packproof.harness.check.replay import replay
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.events import CellFinished

MUSEUM = "packproof.museum.convolution"


@pytest.fixture(scope="module")
def leak(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the replay file of a planted leak holds."""
    request = CheckRequest(
        f"{MUSEUM}:C1",
        "causal_conv1d",
        dtypes=("float32",),
        properties=("packing",),
        profile="quick",
        questions=False,
        replay_dir=str(tmp_path_factory.mktemp("leak")),
    )
    (verdict,) = [event.verdict for event in run_check(request) if isinstance(event, CellFinished)]
    assert verdict.failure is not None
    return Path(verdict.failure.replay).read_text()


@pytest.fixture
def file(leak: str, working_folder: Path) -> Path:
    """Its replay file."""
    path = working_folder / "leak.json"
    path.write_text(leak)
    return path


def test_still_failing(file: Path) -> None:
    outcome = replay(file)
    assert outcome.status == "failing"
    assert "lengths [1, 1]" in outcome.text
    assert "alone" in outcome.text


def test_the_maps_of_a_replay(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main.run(["replay", str(file), "--map", "--html", str(page)]) == 1
    shown = capsys.readouterr().out
    assert "  sequence 1  █\n" in shown
    assert "  sequence 1, token 0  |X|#|\n" in shown
    source = page.read_text()
    assert "Which inputs reach y: 1 leak<" in source
    assert "only the case of" in source


def test_a_fixed_kernel_has_a_page_too(file: Path, tmp_path: Path) -> None:
    file.write_text(file.read_text().replace(f"{MUSEUM}:C1", f"{MUSEUM}:correct"))
    page = tmp_path / "page.html"
    assert main.run(["replay", str(file), "--map", "--html", str(page)]) == 0
    assert "Every property held" in page.read_text()


def test_fixed(file: Path) -> None:
    assert replay(file, target=f"{MUSEUM}:correct").status == "fixed"


ONCE = """
import torch
from torch.autograd.function import once_differentiable
from packproof import refs

class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return dy

def conv(x, weight, cu_seqlens):
    return Once.apply(refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens))
"""


def test_a_case_with_nothing_to_compare_is_not_fixed(file: Path, working_folder: Path) -> None:
    (working_folder / "once.py").write_text(ONCE)
    file.write_text(json.dumps({**json.loads(file.read_text()), "property": "double_backward"}))
    outcome = replay(file, target="once.py:conv")
    assert outcome.status == "not applicable"
    assert "differentiating twice raises an error" in outcome.text


def test_not_applicable_where_the_kernel_is_missing(file: Path) -> None:
    outcome = replay(file, target=f"{MUSEUM}:gone")
    assert outcome.status == "not applicable"
    assert "has no gone" in outcome.text


def test_not_applicable_without_the_device(file: Path) -> None:
    import torch  # noqa: PLC0415

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert replay(file, device="cuda").status == "not applicable"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "a replay file of version 2, and this packproof reads 1; use packproof 0."),
        ({"property": "luck"}, "luck"),
        ({"dtype": "int8"}, "int8"),
        ({"case": []}, "case is []"),
        ({"case": {"lengths": [1], "dtype": "float33", "sizes": []}}, "float33"),
        ({"case": {"lengths": [1], "dtype": "float32", "sizes": []}}, "the case has no size 'd'"),
        ({"case": {"lengths": [1], "dtype": "float32", "sizes": [["d", "x"], ["w", 4]]}}, "size d is 'x'"),
        ({"promises": {"always": True}}, "promises"),
        ({"target": None}, "target is null"),
    ],
)
def test_a_damaged_file_is_refused(file: Path, change: dict[str, Any], words: str) -> None:
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, **change}))
    for run in (replay, partial(diff, f"{MUSEUM}:C1", None)):
        with pytest.raises(UsageError) as caught:
            run(file)
        assert words in str(caught.value)
        assert str(file) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("lengths", [1, -1], "lengths is"),
        ("lengths", [1.5], "lengths is"),
        ("lengths", "x", "lengths is"),
        ("lengths", [2**31 - 1] * 9, "elements, expected 134,217,728 at most"),
        ("dtype", [], "expected an object with lengths, dtype and sizes"),
        ("sizes", [["d", 0], ["w", 4]], "size d is 0, expected an integer above 0"),
        ("sizes", [["d", "longest"], ["w", 4]], "size d is 'longest', expected an integer above 0"),
        ("sizes", [["d", 10**30], ["w", 4]], "d is '1000000"),
        ("sizes", [["d", [[[4]]]], ["w", 4]], "values are not nested"),
        ("sizes", [["d", 4], ["d", 4]], "names are different strings"),
        ("axes", [["weight", 7]], "weight has no form 7"),
        ("axes", [["nothing", 0]], "the op has no input 'nothing'"),
        ("axes", [["weight", -1]], "weight is '-1'"),
        ("options", [["activation", {"a": 1}]], "values are not objects"),
        ("options", [["activation", "tanh"]], "option activation is 'tanh'"),
        ("options", [["colour", 1]], "the op has no option 'colour'"),
        ("present", [["bias"]], "present is"),
        ("slack", -1, "slack is '-1'"),
        ("slack", 2**31 - 1, "elements, expected"),
        ("index_dtype", "float32", "index_dtype is 'float32'"),
        ("seed", True, "seed is 'True'"),
        ("regime", ["normal"], "regime is"),
        ("colour", 1, "unknown field 'colour'"),
    ],
)
def test_a_damaged_case_is_a_usage_error_before_anything_is_allocated(
    file: Path, capsys: pytest.CaptureFixture[str], field: str, value: Any, words: str
) -> None:
    data = json.loads(file.read_text())
    data["case"][field] = value
    file.write_text(json.dumps(data))
    assert main.run(["replay", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"packproof: {file}: damaged, ")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target", "a\0b:c"),
        ("op", "rope"),
        ("op", "\0.py:OP"),
        ("op", "[" * 5000),
        ("domain", ["d ** 9"]),
        ("domain", 1),
    ],
)
def test_a_damaged_name_is_no_verdict_about_the_kernel(file: Path, field: str, value: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    assert main.run(["replay", str(file)]) == 2


def test_sizes_that_no_call_of_the_op_has_are_damage(file: Path) -> None:
    data = json.loads(file.read_text())
    data |= {"op": "attention", "target": "packproof.museum.attention:correct"}
    data["case"] |= {"sizes": [["hq", 3], ["hk", 2], ["k", 4], ["v", 3]], "options": [], "present": []}
    file.write_text(json.dumps(data))
    with pytest.raises(UsageError, match="its sizes are none of attention: hq % hk == 0"):
        replay(file)


def test_diff_imports_no_op_from_a_path_on_the_word_of_a_file(file: Path) -> None:
    (file.parent / "op.py").write_text("raise SystemExit('imported')\n")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"op": "op.py:OP"}))
    with pytest.raises(UsageError, match=r"names the op 'op\.py:OP', which is imported only if you name it"):
        diff(f"{MUSEUM}:C1", case=file)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00\x01", "{}", "[" * 100_000, "1" * 5000, " " * (1 << 21)])
def test_what_is_no_replay_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UsageError):
        replay(path)
    with pytest.raises(UsageError):
        replay(tmp_path / "missing.json")
    with pytest.raises(UsageError, match=r"missing\.json: No such file"):
        diff(f"{MUSEUM}:C1", case=tmp_path / "missing.json")


def test_a_case_that_names_what_the_op_lacks_is_refused(file: Path) -> None:
    data = json.loads(file.read_text())
    data["case"]["present"] = ["colour"]
    file.write_text(json.dumps(data))
    with pytest.raises(UsageError, match="no input 'colour'"):
        replay(file)
