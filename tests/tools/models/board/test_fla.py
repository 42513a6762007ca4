"""Models of flash-linear-attention: how small they are, whose labels cross by which criterion, and the page."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from packproof.base.errors import UsageError
from packproof.cli.main import run
from packproof.models.board import board_kind, results
from packproof.models.board.board import Built, Outcome
from packproof.models.board.fla import judge, page
from packproof.models.board.fla.tiny import architectures_in, small_fields
from packproof.models.board.tiny import Architecture

ROOT = Path(__file__).parents[4]
DATA = ROOT / "data/fla_models.json"
PLAIN = judge.labels_name("every", "plain")


class Summing(nn.Module):
    """A running mean inside each document, with a loss as fla's classes have it: labels shifted over the whole row.

    shifts_inside: whether labels of first tokens are ignored, as in its StickBreakingAttentionForCausalLM.
    only: the dtype that its kernels need.
    """

    def __init__(self, *, leaks: bool = False, shifts_inside: bool = False, only: torch.dtype | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.leaks, self.shifts_inside, self.only = leaks, shifts_inside, only
        self.embeddings, self.head = nn.Embedding(64, 8), nn.Linear(8, 64)
        self.config: Any = SimpleNamespace(fuse_cross_entropy=True)

    def forward(self, input_ids: Tensor, cu_seqlens: Tensor, labels: Tensor | None = None, **_: Any) -> Any:
        if self.only not in (None, self.head.weight.dtype):
            raise AssertionError("does not support float32")
        x = self.embeddings(input_ids[0])
        lengths = [len(x)] if self.leaks else cu_seqlens.diff().tolist()
        logits = self.head(torch.cat([d.cumsum(0).tanh() for d in x.split(lengths)]))[None]
        if labels is None:
            return SimpleNamespace(logits=logits)
        labels, values = labels.clone(), logits[0].to(torch.promote_types(logits.dtype, torch.float32))
        if self.shifts_inside:
            labels[:, cu_seqlens[1:-1]] = -100
        return SimpleNamespace(loss=nn.functional.cross_entropy(values[:-1], labels[0, 1:]), logits=logits)


class Shifting(Summing):
    """Takes labels that are shifted already."""

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, cu_seqlens: Tensor, labels: Tensor | None = None, shift_labels: Tensor | None = None
    ) -> Any:
        if shift_labels is None:
            return super().forward(input_ids, cu_seqlens, labels)
        logits = super().forward(input_ids, cu_seqlens).logits
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits[0], shift_labels[0]), logits=logits)


def words(model: nn.Module) -> dict[str, str]:
    return {o.labels: o.word for o in judge.judge_built_model("summing", model, 0, "cpu")}


def test_labels_that_cross_are_seen_by_every_criterion() -> None:
    assert words(Summing()) == {
        "": "isolates",
        "every, plain": "leaks",
        "first_ignored, plain": "isolates",
        "every, fused": "leaks",
        "first_ignored, fused": "isolates",
    }


@pytest.mark.proof
def test_labels_that_are_shifted_inside_of_documents_pass() -> None:
    assert set(words(Summing(shifts_inside=True)).values()) == {"isolates"}
    assert words(Shifting())["shifted, plain"] == "isolates"
    assert words(Summing(leaks=True)) == {"": "leaks"}


def test_a_model_of_16_bits_alone_is_asked_for_leaks_and_labels_that_cross() -> None:
    logits, every, first_ignored, *_ = judge.judge_built_model("summing", Summing(only=torch.bfloat16), 0, "cpu")
    assert (logits.word, every.word, first_ignored.word) == ("isolates", "leaks", "refuses")
    assert logits.text.startswith("in bf16"), logits
    assert "does not support float32" in first_ignored.text


def test_a_criterion_is_chosen_where_a_config_has_its_switch() -> None:
    model = Summing()
    assert judge.criteria_of(model.config) == ["plain", "fused"]
    judge.select_criterion(model, "plain")
    assert vars(model.config) == {"fuse_cross_entropy": False}
    model.config.fuse_linear_cross_entropy = False
    assert judge.criteria_of(model.config) == list(judge.CRITERIA)
    judge.select_criterion(model, "fused linear")
    assert vars(model.config) == {"fuse_cross_entropy": False, "fuse_linear_cross_entropy": True}


def test_classes_are_listed_from_the_source_alone() -> None:
    source = "from fla.models.gla import GLAConfig, GLAForCausalLM, GLAModel\nfrom fla.models.utils import Cache\n"
    assert architectures_in(source) == {"gla": Architecture("gla", "GLAForCausalLM")}


def test_sizes_are_those_of_fields_that_a_config_has() -> None:
    assert small_fields("gla", {"hidden_size": 2048, "num_heads": 4, "head_dim": None}) == {
        "hidden_size": 64,
        "num_heads": 2,
    }
    assert small_fields("hgrn", {"expand_ratio": 128}) == {"expand_ratio": 1}


def test_a_model_that_cannot_be_built_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> nn.Module:
        raise ImportError("no such package")

    monkeypatch.setattr(judge, "tiny_fla_model", refuse)
    (entry,) = judge.judge_fla_model(Architecture("gla", "GLAForCausalLM"), 0, "cpu")
    assert entry == Built("gla", "GLAForCausalLM", (), reason="ImportError: no such package")


BOARD = results.make_board(
    [
        Built("gla", "GLAForCausalLM", (), "GatedLinearAttention", parameters=9),
        Outcome("gla", "cu_seqlens", flash=False, word="isolates"),
        Outcome("gla", "cu_seqlens", flash=False, word="leaks", labels=PLAIN, text="the label crosses: by 3; shift"),
        Built("mamba", "MambaForCausalLM", (), "Mamba", parameters=9),
        Outcome("mamba", "cu_seqlens", flash=False, word="leaks", module="layers.0.conv1d (Conv1d)", text="moves"),
        Built("mla", "MLAForCausalLM", (), reason="ImportError: flash-attn"),
        Built("kda", "KDAForCausalLM", (), "KDA", parameters=9),  # its run ended before it was judged
    ],
    1.0,
    0,
    {"transformers": "5.0", "torch": "2.0", "package": "0.6.0"},
    judge.CONVENTIONS_ASKED,
    "cuda",
)


def test_the_page_has_logits_and_labels_by_each_criterion() -> None:
    text = page.as_markdown(BOARD)
    assert "flash-linear-attention 0.6.0 (transformers\n5.0, torch 2.0, cuda," in text
    assert "3 of 4 classes" in text
    assert re.search(r"\| ✓ \| ✗ \|( · \|){8} gla \|", text)
    assert re.search(r"\| ✗ \|( · \|){9} mamba \|", text)
    assert re.search(r"\| \? \|( · \|){9} kda \|", text)
    assert "| `layers.0.conv1d (Conv1d)` |" in text
    assert "- mla: ImportError: flash-attn" in text


def test_a_board_is_made_from_its_own_results() -> None:
    kind = board_kind(multimodal=False, package="fla")
    assert kind.require_own(BOARD) == BOARD
    with pytest.raises(UsageError, match="fla's need --package fla"):
        kind.require_own(results.read_board(str(ROOT / "data/models.json")))


@pytest.mark.skipif(not DATA.exists(), reason="no run on a GPU was published")
def test_the_published_page_is_made_from_the_published_results(tmp_path: Path) -> None:
    out = tmp_path / "board.md"
    assert run(["models", "--package", "fla", "--from", str(DATA), "--markdown", str(out)]) == 0
    assert out.read_text() == (ROOT / "docs/fla_board.md").read_text(), (
        "make it again with `packproof models --package fla --from`"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--package", "fla", "--multimodal"], "leave out --package fla"),
        (["--device", "cuda"], "run on a CPU"),
        (["--package", "flax"], "fla"),
    ],
    ids=["two boards", "transformers on a GPU", "unknown package"],
)
def test_calls_that_name_no_board(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", *options]) == 2
    assert message in capsys.readouterr().err


def test_without_a_gpu_kernels_have_to_be_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UsageError, match="give --device cuda"):
        board_kind(multimodal=False, package="fla").require_device()
    board_kind(multimodal=False, package="fla", device="cuda").require_device()
