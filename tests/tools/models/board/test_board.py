"""The board of models: small configs by the names of fields, flash attention's stand-in, JSON and the page."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from packproof import refs
from packproof.base.errors import UsageError
from packproof.cli.main import run
from packproof.models.board import page, results
from packproof.models.board.board import CONVENTION_NAMES, FLASH, LABELS, Built, Outcome
from packproof.models.board.flash import flash, flash_varlen
from packproof.models.board.tiny import layer_kinds, one_layer_per_kind

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("config", "want"),
    [
        (
            {"num_hidden_layers": 6, "layer_types": ["linear", "linear", "full"] * 2, "hidden_size": 4096},
            {"num_hidden_layers": 2, "layer_types": ["linear", "full"]},
        ),
        (
            {
                "num_hidden_layers": 4,
                "layer_types": ["full", "slide"] * 2,
                "mlp_layer_types": ["dense"] + ["sparse"] * 3,
            },
            {
                "num_hidden_layers": 3,
                "layer_types": ["full", "slide", "full"],
                "mlp_layer_types": ["dense", "sparse", "sparse"],
            },
        ),
        ({"n_layer": 12}, {"n_layer": 2}),
        ({"hidden_size": 8}, {}),
    ],
    ids=["two kinds", "kinds of two lists", "one kind", "no layers"],
)
def test_one_layer_of_each_kind_is_kept(config: dict[str, Any], want: dict[str, Any]) -> None:
    assert one_layer_per_kind(config) == want


def test_kinds_are_listed_once_and_in_order() -> None:
    class Config:
        layer_types = ("full_attention", "conv", "full_attention")
        mlp_layer_types = ("dense", "sparse")

    assert layer_kinds(Config()) == "full_attention, conv, dense, sparse"


@pytest.mark.parametrize("heads", [2, 4])
def test_the_stand_in_for_flash_attention_computes_attention(heads: int) -> None:
    q = torch.randn(9, 4, 8, dtype=torch.float64)
    k, v = (torch.randn(9, heads, 8, dtype=torch.float64) for _ in range(2))
    cu_seqlens = torch.tensor([0, 2, 2, 9], dtype=torch.int32)
    got = flash_varlen(q, k, v, cu_seqlens, cu_seqlens, 7, 7, causal=True)
    groups = 4 // heads
    want = refs.attention(
        q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), cu_seqlens=cu_seqlens, causal=True
    )
    torch.testing.assert_close(got, want)
    alone = flash(q[None, 2:], k[None, 2:], v[None, 2:], causal=True, window_size=(3, 0))[0]
    torch.testing.assert_close(alone[:4], want[2:6])
    assert not torch.equal(alone[4:], want[6:])


BOARD = results.make_board(
    [
        Outcome("opt", "hf_position_ids", flash=False, word="leaks", module="layers.0 (A)", text="moves"),
        Outcome("opt", "mask4d", flash=False, word="isolates"),
        Built("opt", "OPTForCausalLM", (), "", "sdpa", 9),
        Built("blt", "BltForCausalLM", (), reason="ValueError: too large"),
        Built("xlm", "XLM", ()),
        Outcome("xlm", "hf_cache", flash=False, word="leaks"),
    ],
    1.0,
    0,
    versions={"transformers": "5.0", "torch": "2.0"},
)


def test_a_board_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "board.json").write_text(results.as_json(BOARD))
    assert results.read_board(str(tmp_path / "board.json")) == BOARD
    (tmp_path / "board.json").write_text("{}")
    with pytest.raises(UsageError, match=r"damaged, the record is \{\}, expected .* `packproof models --json` wrote"):
        results.read_board(str(tmp_path / "board.json"))


def test_boards_of_several_runs_are_one_and_a_later_one_replaces_models(tmp_path: Path) -> None:
    again = replace(
        BOARD,
        seconds=2.0,
        models=(Built("xlm", "XLM", ("a",)),),
        outcomes=(Outcome("xlm", "hf_cache", flash=False, word="isolates"),),
    )
    files = []
    for number, board in enumerate((BOARD, again, replace(again, device="cuda"))):
        files.append(str(tmp_path / f"{number}.json"))
        Path(files[-1]).write_text(results.as_json(board))
    board = results.read_boards(",".join(files[:2]))
    assert {model.name for model in board.models} == {model.name for model in BOARD.models}
    assert [o.word for o in board.outcomes if o.name == "xlm"] == ["isolates"]
    assert board.seconds == BOARD.seconds + 2.0
    assert results.read_boards(files[0]) == BOARD
    with pytest.raises(UsageError, match=r"2\.json has device cuda, not cpu; runs of one board have the same"):
        results.read_boards(",".join(files))


def test_the_page_says_what_to_pass_and_what_was_not_built() -> None:
    text = page.as_markdown(BOARD)
    assert "| sdpa or eager: a boolean 4-D mask and `use_cache=False` | opt |" in text
    assert "| **do not pack**: nothing isolates here | xlm |" in text
    assert "| `layers.0 (A)` | opt |" in text
    assert "- blt: ValueError: too large" in text


def test_the_published_page_is_made_from_the_published_results(tmp_path: Path) -> None:
    out = tmp_path / "board.md"
    assert run(["models", "--from", str(ROOT / "data/models.json"), "--markdown", str(out)]) == 0
    assert out.read_text() == (ROOT / "docs/models_board.md").read_text(), (
        "make it again with `packproof models --from`"
    )
    assert len(out.read_text().splitlines()) <= 200


def test_the_published_results_hold_every_convention_of_every_model_that_was_built() -> None:
    board = results.read_board(str(ROOT / "data/models.json"))
    built = [each.name for each in board.models if not each.reason]
    assert len(built) >= 90
    for name in built:
        outcomes = [o for o in board.outcomes if o.name == name]
        found = [(o.convention, o.flash) for o in outcomes if not o.labels]
        assert found[: len(CONVENTION_NAMES)] == [(each, False) for each in CONVENTION_NAMES]
        assert found[len(CONVENTION_NAMES) :] in ([], [(each, True) for each in FLASH])
        isolates = any(o.word == "isolates" for o in outcomes if not o.labels)
        assert sorted(o.labels for o in outcomes if o.labels) == (sorted(LABELS) if isolates else [])


def test_the_page_on_models_links_each_script() -> None:
    linked = set(re.findall(r"\]\(models/(\w+\.py)\)", (ROOT / "docs/models.md").read_text()))
    assert linked == {script.name for script in ROOT.glob("docs/models/*.py")}


def test_wrong_calls(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["models", "--from", str(tmp_path / "none.json")]) == 2
    assert "--from" in capsys.readouterr().err
    assert run(["models", "--json", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err
    assert run(["models", "--max-time", "soon"]) == 2
    assert "--max-time: 'soon' is no duration" in capsys.readouterr().err


@pytest.mark.parametrize(("file", "count"), [("models", 500), ("multimodal", 250)])
def test_what_a_board_calls_a_leak_has_a_gradient_and_moves_by_more_than_rounding(file: str, count: int) -> None:
    """Two signs that no isolated model has: a gradient that is not zero, and outputs that move by far more than 256
    roundings of fp32."""
    told = re.compile(
        r"document \d+ reaches document \d+: outputs of up to (\S+) move by (\S+) when it changes, and their "
    )
    outcomes = results.read_board(str(ROOT / f"data/{file}.json")).outcomes
    leaks = [o for o in outcomes if o.word == "leaks" and not o.labels]
    assert len(leaks) > count
    for leak in leaks:
        found = told.match(leak.text)
        assert found, leak
        assert " gradient at its tokens is up to " in leak.text
        assert float(found[2]) > 1e-3 * float(found[1]), leak
        assert not leak.text.endswith("up to 0, not 0"), leak
