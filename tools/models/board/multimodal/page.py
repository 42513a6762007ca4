"""The board of models that read images as a Markdown page, made from its results."""

from collections.abc import Iterator

from packproof.harness.report.formats import markdown_table, texts
from packproof.models.board.multimodal.conventions import AXES, CUT, SENT, TEXT_AND_AXES, UNAWARE
from packproof.models.board.multimodal.judge import FLASH_ASKED, TOWER
from packproof.models.board.page import advice, models_table, signs
from packproof.models.board.results import ModelBoard

_TEXT_COLUMNS = {
    "hf_position_ids": "pos",
    AXES: "axes",
    TEXT_AND_AXES: "text + axes",
    "hf_flash_kwargs": "all",
    "hf_flash_kwargs_no_position_ids": "no pos",
    "hf_cache": "cache",
    "hf_ones_mask": "ones",
    "mask4d": "bool",
    "mask4d_additive": "add",
    "text_cu_seqlens": "offsets",
    UNAWARE.name: "unaware",
}
_COLUMNS = {**_TEXT_COLUMNS, CUT.name: "cut", TOWER.name: "tower"}
_ABOUT_OF = {
    **{name: convention.about for name, convention in SENT.items()},
    "hf_position_ids": "position_ids (1, t) restarted for each document, no cache",
    AXES: "position_ids that the model's `get_rope_index` computes, for each document: (3, 1, t); no cache",
    TEXT_AND_AXES: "the same below a row of restarted text positions: (4, 1, t); no cache",
    "hf_cache": "what restarts as under *all*, with use_cache=True, the default of most configs",
    "hf_ones_mask": "what restarts as under *all*, with an attention_mask of ones, as a tokenizer returns it",
    "mask4d": "a boolean block-diagonal causal attention_mask (1, 1, t, t), and positions as under *axes*",
    "hf_flash_kwargs": "cu_seq_lens_q/k, max_length_q/k, seq_idx and position_ids, *text + axes* where there are axes",
    CUT.name: CUT.about,
    TOWER.name: TOWER.about,
}
_SETTINGS = (
    *((name, False) for name in _TEXT_COLUMNS),
    *((name, True) for name in FLASH_ASKED if name != TOWER.name),
    (CUT.name, False),
    *((TOWER.name, with_flash) for with_flash in (False, True)),
)
_EASIEST_FIRST = (
    ("hf_position_ids", "`position_ids` (1, t)"),
    (TEXT_AND_AXES, "`position_ids` of text and axes (4, 1, t)"),
    ("hf_flash_kwargs_no_position_ids", "flash kwargs without `position_ids`"),
    ("hf_flash_kwargs", "`position_ids` and flash kwargs"),
    ("mask4d", "a boolean 4-D mask and `position_ids`"),
    ("mask4d_additive", "an additive 4-D mask and `position_ids`"),
)

_ABOUT = """\
`packproof models --multimodal` over the models of transformers {transformers} that read images and write text (torch
{torch}, CPU, {date}, seed {seed}). {made} of {all} architectures could be built small, with random weights, a small
tower of vision and one layer of each kind of their default config. Made from `data/multimodal.json`, which has what
moved and why a call was refused, by `packproof models --multimodal --from data/multimodal.json --markdown
docs/multimodal_board.md`.

Packs have documents of text alone, of one token, with an image before any text, in the middle and near the end, and
with two images of other sizes. A document's pixels are its own: they change with its tokens, and gradients are taken
at them too. A document alone is called as where nothing is packed, with an `attention_mask` of ones and without
`position_ids`, so that the model makes its positions itself.

✓ isolates, and equals the documents alone. ≠ isolates, and differs from them, as where a position of the text stands
for those of an image's axes, or a mask replaces a window. ✗ **leaks, without an error**. R refuses, with an error. ?
not judged. A dot: not asked, as where a model has one axis, or offers no flash attention.
"""
_NOTES = """\
The first columns are what transformers chooses on a CPU: sdpa, or eager attention where a model has no other. Under
*flash* transformers' path of flash attention runs up to the kernel, with plain PyTorch in its place, in the tower too;
a mask of an image's own, as gemma3's, is no part of it, for documents alone either. *unaware* tells of no boundary: it
leaks in every model, or the others would say nothing. Images that come as a batch are rows of their own, and have no
*tower*. Convolutions and scans are PyTorch's fallbacks: a model that refuses without a package may isolate with it, or
leak. Another version of transformers gives another board."""


def as_markdown(board: ModelBoard) -> str:
    return "\n".join(_page(board)) + "\n"


def _page(board: ModelBoard) -> Iterator[str]:
    built = [model for model in board.models if not model.reason]
    yield from ("# The board of models that read images", "")
    yield _ABOUT.format(
        **{name: getattr(board, name) for name in ("transformers", "torch", "date", "seed")},
        made=len(built),
        all=len(board.models),
    )
    rows = [(title, _ABOUT_OF[name]) for name, title in _COLUMNS.items()]
    yield from markdown_table(texts("column", "what is passed, beside ids, pixels and sizes of images"), rows)
    yield from ("", _NOTES, "", "## What to pass", "")
    sent = {name: _COLUMNS[name] for name in _TEXT_COLUMNS}
    yield from models_table(["pass"], {model.name: (advice(board, model, _EASIEST_FIRST, sent),) for model in built})
    yield from ("", "## Every convention", "")
    yield from models_table(_titles(), {model.name: signs(board, model.name, _SETTINGS) for model in built})
    yield from ("", "## The first module that leaks", "", "By *all* that a collator sends, as under sdpa or eager.", "")
    yield from _culprits(board, "hf_flash_kwargs")
    yield from ("", "By `position_ids` (1, t) alone.", "")
    yield from _culprits(board, "hf_position_ids")
    yield from ("", "## Not built", "")
    yield from (f"- {model.name}: {model.reason[:110]}" for model in board.models if model.reason)


def _titles() -> list[str]:
    titles = [f"flash: {_COLUMNS[name]}" if with_flash else _COLUMNS[name] for name, with_flash in _SETTINGS]
    first = titles.index(f"flash: {_COLUMNS[FLASH_ASKED[0]]}")
    last = first + len(FLASH_ASKED) - 1
    return [t.removeprefix("flash: ") if first < k < last else t for k, t in enumerate(titles)]


def _culprits(board: ModelBoard, convention: str) -> Iterator[str]:
    leaks = [o for o in board.outcomes if (o.convention, o.flash, o.word) == (convention, False, "leaks")]
    return models_table(["module"], {o.name: (f"`{o.module}`",) for o in leaks if o.module})
