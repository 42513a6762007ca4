"""Documents with images: where their rows and pixels are, which model leaks, and the published board."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from packproof.base.errors import UsageError
from packproof.cli.main import run
from packproof.harness.report import Failure, RunFinished
from packproof.models.board import board_kind, results
from packproof.models.board.board import Built, Outcome, judge_convention
from packproof.models.board.multimodal import page
from packproof.models.board.multimodal.conventions import (
    AXES,
    CUT,
    SENT,
    TEXT_AND_AXES,
    UNAWARE,
    WithImages,
    conventions_for,
    own_positions,
)
from packproof.models.board.multimodal.forms import Patches, find_form
from packproof.models.board.multimodal.images import ImageForm, Places, ReadsImages, draw_ids, image_rows
from packproof.models.board.multimodal.judge import (
    CONVENTIONS_ASKED,
    FLASH_ASKED,
    TOWER,
    VisionTower,
    images_of_lengths,
)
from packproof.models.board.multimodal.sizes import IMAGE_ID
from packproof.models.check import run_module_check
from packproof.models.request import module_request
from packproof.models.subjects.pack import Image, Lengths, Pack

ROOT = Path(__file__).parents[4]
DATA = ROOT / "data/multimodal.json"
SHAPES = ((1, 1), (2, 2), (2, 3))
FORM = ImageForm(SHAPES, 4 * 3, Patches((3,), 2))
PLACES = Places(SHAPES)
REPORTED = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"}


class Tower(nn.Module):
    """Each patch plus the mean over its image; over all images where it ignores their grids."""

    def __init__(self, *, mixes_images: bool) -> None:
        super().__init__()
        self.mixes_images = mixes_images
        self.patch, self.out = nn.Linear(3, 8), nn.Linear(8, 8)

    def forward(self, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
        patches = self.patch(pixel_values)
        sizes = [len(patches)] if self.mixes_images else image_grid_thw.prod(-1).tolist()
        mixed = torch.cat([torch.tanh(image + image.mean(0)) for image in patches.split(sizes)])
        return self.out(mixed).reshape(-1, 4, 8).sum(1)


def causal_mean(x: Tensor) -> Tensor:
    return x.cumsum(0) / torch.arange(1, len(x) + 1)[:, None]


class Reader(nn.Module):
    """A causal mean over the tokens of a document: the smallest model that reads text and images."""

    def __init__(self, *, mixes_images: bool = False, ignores_boundaries: bool = False) -> None:
        super().__init__()
        self.ignores_boundaries = ignores_boundaries
        self.embedding, self.head = nn.Embedding(64, 8), nn.Linear(8, 8)
        self.tower = Tower(mixes_images=mixes_images)
        self.config = SimpleNamespace(
            model_type="reader", vision_config=SimpleNamespace(patch_size=1, spatial_merge_size=2)
        )

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_image_features(self, pixel_values: Tensor, image_grid_thw: Tensor, return_dict: bool) -> Any:
        return SimpleNamespace(pooler_output=self.tower(pixel_values, image_grid_thw))

    def get_rope_index(self, input_ids: Tensor, mm_token_type_ids: Tensor, **_: Any) -> tuple[Tensor, None]:
        """The time stands still inside an image."""
        positions = (1 - mm_token_type_ids).cumsum(-1)
        return positions.expand(3, *input_ids.shape), None

    def forward(
        self,
        input_ids: Tensor,
        mm_token_type_ids: Tensor,
        pixel_values: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        position_ids: Tensor | None = None,
        **_: Any,
    ) -> Any:
        x = self.embedding(input_ids)
        if pixel_values is not None:
            features = self.tower(pixel_values, image_grid_thw)
            is_image = (input_ids == IMAGE_ID)[..., None]
            if int(is_image.sum()) != len(features):
                raise ValueError("features and tokens do not match")
            x = x.masked_scatter(is_image, features)
        starts = [0]
        if position_ids is not None and not self.ignores_boundaries:
            starts = (position_ids[0].flatten() == 0).nonzero().flatten().tolist()
        ends = [*starts[1:], x.shape[1]]
        documents = [causal_mean(x[0, a:b]) for a, b in zip(starts, ends, strict=True)]
        return {"logits": self.head(torch.tanh(torch.cat(documents)))[None]}


def judge(model: nn.Module, name: str = TEXT_AND_AXES, form: ImageForm = FORM) -> Outcome:
    torch.manual_seed(0)
    reader, places = ReadsImages(model, form).eval(), form.places()
    convention = next(each for each in conventions_for(reader) if each.name == name)
    return judge_convention(
        "reader",
        reader,
        convention,
        0,
        with_flash=False,
        shrinks=False,
        inputs=draw_ids,
        layouts=places.layouts,
        place_images=places,
    )


def test_each_document_has_its_images_in_every_pack() -> None:
    pack = Pack((3, 9, 11, 2), images=PLACES((3, 9, 11, 2)))
    assert [(i.start, i.height, i.width, i.rows) for i in pack.images] == [
        (5, 2, 3, 6),
        (13, 1, 1, 1),
        (16, 2, 3, 6),
        (23, 1, 1, 1),
    ]
    for j, length in enumerate(pack.lengths):
        assert pack.single_document(j).images == PLACES((length,))
    assert pack.without_boundaries().images == pack.images
    assert int(image_rows(pack.images, pack.tokens).sum()) == 14


@pytest.mark.parametrize("tokens", range(1, 40))
def test_documents_have_lengths_of_their_own_and_every_kind_is_packed(tokens: int) -> None:
    places = Places(((1, tokens),) * 3)
    kinds = places.documents
    assert len(kinds) == 4
    assert set(kinds) < {length for layout in places.layouts for length in layout}
    assert any(length not in kinds for layout in places.layouts for length in layout)


def test_a_cut_image_has_rows_as_far_as_the_pack_reaches() -> None:
    cutting = Places(SHAPES, cuts=True)
    lengths: Lengths = cutting.layouts[0]
    *_, last = cutting(lengths)
    assert (last.rows, last.tokens) == (3, 6)
    assert last.start + last.rows == sum(lengths)
    assert not Places(((1, 1),) * 3, cuts=True).can_cut


def test_pixels_follow_the_ids_of_their_document() -> None:
    reader, images = ReadsImages(Reader(), FORM), (Image(1, 2, 2, 4),)
    ids = torch.arange(3, 9)[None]
    changed = ids.clone()
    changed[0, 2] = 30
    with torch.no_grad():
        one, two = (reader(x, images=images)["logits"] for x in (ids, changed))
    assert torch.equal(one[0, 0], two[0, 0])
    assert not torch.equal(one[0, 3], two[0, 3])


def test_the_models_own_positions_restart_in_each_document() -> None:
    reader, pack = ReadsImages(Reader(), FORM), Pack((3, 6), images=PLACES((3, 6)))
    assert own_positions(reader, pack).tolist() == [[[1, 2, 3, 1, 1, 1, 1, 1, 2]]] * 3
    arguments = {name: WithImages(SENT[name], reader)(pack) for name in SENT}
    assert arguments[AXES]["position_ids"].shape == (3, 1, 9)
    assert arguments[TEXT_AND_AXES]["position_ids"][0].tolist() == [[0, 1, 2, 0, 1, 2, 3, 4, 5]]
    assert arguments["hf_position_ids"]["position_ids"].shape == (1, 9)
    alone = WithImages(SENT[TEXT_AND_AXES], reader)(pack.single_document(1))
    assert set(alone) == {"attention_mask", "images", "use_cache"}


def test_a_correct_model_isolates_and_equals_its_documents_alone() -> None:
    assert judge(Reader()) == Outcome("reader", TEXT_AND_AXES, flash=False, word="isolates")


@pytest.mark.parametrize("flaw", ["mixes_images", "ignores_boundaries"])
def test_a_leak_is_seen(flaw: str) -> None:
    torch.manual_seed(0)
    outcome = judge(Reader(**{flaw: True}))
    assert (outcome.word, outcome.module) == ("leaks", "model (Reader)")
    assert "gradient at its tokens" in outcome.text


def test_a_call_that_tells_of_no_boundary_is_a_leak() -> None:
    assert judge(Reader(), UNAWARE.name).word == "leaks"


@pytest.mark.parametrize(("mixes_images", "word"), [(False, "isolates"), (True, "leaks")])
def test_a_tower_is_judged_alone(mixes_images: bool, word: str) -> None:
    torch.manual_seed(0)
    tower = VisionTower(Reader(mixes_images=mixes_images), FORM)
    outcome = judge_convention("reader", tower, TOWER, 0, with_flash=False, inputs=FORM.pixels, layouts=((6, 1, 4),))
    assert outcome.word == word


def test_each_document_of_a_tower_is_one_image() -> None:
    shapes = [(i.start, i.height, i.width) for i in images_of_lengths(Pack((6, 1, 5)))]
    assert shapes == [(0, 2, 3), (6, 1, 1), (7, 1, 5)]


def test_a_cut_image_is_refused() -> None:
    reader, cutting = ReadsImages(Reader(), FORM), Places(SHAPES, cuts=True)
    convention = CUT.__class__(CUT.name, CUT.about, WithImages(CUT, reader))
    outcome = judge_convention(
        "reader",
        reader,
        convention,
        0,
        with_flash=False,
        inputs=draw_ids,
        layouts=cutting.layouts,
        place_images=cutting,
    )
    assert (outcome.word, outcome.text) == ("refuses", "ValueError: features and tokens do not match")


def test_the_form_is_the_first_that_a_model_accepts() -> None:
    assert find_form(Reader()).layout == Patches((3,), 2)
    with pytest.raises(ValueError, match="no known form"):
        find_form(nn.Linear(2, 2))


BOARD = results.make_board(
    [
        Built("qwen2_vl", "Qwen2VL", (), "", "sdpa", 9),
        Outcome("qwen2_vl", "hf_position_ids", flash=False, word="leaks", module="layers.0 (A)", text="moves"),
        Outcome("qwen2_vl", TEXT_AND_AXES, flash=False, word="isolates"),
        Outcome("qwen2_vl", TEXT_AND_AXES, flash=True, word="isolates"),
        Outcome("qwen2_vl", TOWER.name, flash=False, word="isolates"),
        Built("janus", "Janus", (), reason="ValueError: too large"),
    ],
    1.0,
    0,
    versions={"transformers": "5.0", "torch": "2.0"},
    conventions=CONVENTIONS_ASKED,
)


def test_the_page_says_what_to_pass_and_what_was_not_built() -> None:
    text = page.as_markdown(BOARD)
    way = "`position_ids` of text and axes (4, 1, t)"
    assert f"| sdpa or eager: {way} and `use_cache=False`; flash: {way} | qwen2_vl |" in text
    assert "| `layers.0 (A)` | qwen2_vl |" in text
    assert "- janus: ValueError: too large" in text


def test_the_published_page_is_made_from_the_published_results(tmp_path: Path) -> None:
    out = tmp_path / "board.md"
    assert run(["models", "--multimodal", "--from", str(DATA), "--markdown", str(out)]) == 0
    assert out.read_text() == (ROOT / "docs/multimodal_board.md").read_text(), (
        "make it again with `packproof models --multimodal --from`"
    )


def test_each_board_is_made_from_its_own_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "--from", str(DATA)]) == 2
    assert "need --multimodal" in capsys.readouterr().err
    kind, board = board_kind(multimodal=True), results.read_board(str(ROOT / "data/models.json"))
    with pytest.raises(UsageError, match="others do not have it"):
        kind.require_own(board)


def test_the_published_results_hold_every_question_of_every_model_that_was_built() -> None:
    board = results.read_board(str(DATA))
    built = {model.name for model in board.models if not model.reason}
    assert len(built) >= 55
    assert built >= REPORTED
    for name in built:
        outcomes = [o for o in board.outcomes if o.name == name]
        asked = {(o.convention, o.flash) for o in outcomes}
        optional = {AXES, TEXT_AND_AXES, CUT.name, TOWER.name}
        assert {(each, False) for each in CONVENTIONS_ASKED if each not in optional} <= asked
        assert (
            not any(flash for _, flash in asked)
            or {(each, True) for each in FLASH_ASKED if each not in optional} <= asked
        )
        unaware = [o for o in outcomes if o.convention == UNAWARE.name and not o.flash]
        assert [o.word for o in unaware] == ["leaks"], name


def leak_of(shrinks: bool) -> Failure:
    torch.manual_seed(0)
    reader = ReadsImages(Reader(ignores_boundaries=True), FORM)
    convention = next(each for each in conventions_for(reader) if each.name == TEXT_AND_AXES)
    request = module_request(
        reader,
        convention=convention,
        inputs=draw_ids,
        layouts=PLACES.layouts,
        laws=("isolation",),
        records=False,
        place_images=PLACES,
        shrinks=shrinks,
    )
    *_, end = run_module_check(request)
    assert isinstance(end, RunFinished)
    failure = end.verdicts[0].failure
    assert failure
    return failure


def test_a_board_keeps_the_layout_of_a_leak_so_that_two_runs_agree() -> None:
    assert (leak_of(shrinks=False).lengths, leak_of(shrinks=True).lengths) == (PLACES.layouts[0], (1, 1))


def test_arguments_that_tell_of_no_boundary_are_not_called_ineffective() -> None:
    (line,) = (line for line in leak_of(shrinks=False).lines if line.startswith("ignored"))
    assert line == "ignored: position_ids: for one document the output has the same bits"


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("hf_position_ids", ("leaks", "model.language_model.layers.0.self_attn (Qwen2VLAttention)")),
        (TEXT_AND_AXES, ("isolates", "")),
    ],
)
def test_qwen2_vl_isolates_by_a_row_of_text_positions_above_its_axes(name: str, want: tuple[str, str]) -> None:
    pytest.importorskip("transformers")
    from packproof.models.board.multimodal.tiny import tiny_multimodal_model  # noqa: PLC0415

    model, layers = tiny_multimodal_model("qwen2_vl")
    assert layers == "full_attention"
    form = find_form(model)
    assert form.layout == Patches((96,), 2)
    outcome = judge(model, name, form)
    assert (outcome.word, outcome.module.removeprefix("model.")) == want


@pytest.mark.proof
@pytest.mark.parametrize("script", sorted(ROOT.glob("docs/models/*.py")), ids=lambda script: script.stem)
def test_each_script_shows_its_leak_without_packproof(script: Path) -> None:
    pytest.importorskip("transformers")
    if "from fla." in script.read_text() and importlib.util.find_spec("fla") is None:
        pytest.skip("flash-linear-attention is not installed")
    assert "packproof" not in script.read_text()
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    sizes = [float(size) for size in re.findall(r"(?:move|off) by (\S+)", done.stdout)]
    assert any(sizes) or "nothing reaches attention" in done.stdout, done.stdout


class Blind(Reader):
    """Takes images, and does not look at them."""

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        pixel_values: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        **_: Any,
    ) -> Any:
        return super().forward(input_ids, input_ids)


def test_a_model_that_does_not_look_at_its_images_is_not_judged() -> None:
    with pytest.raises(ValueError, match="does not follow the pixels"):
        find_form(Blind())
