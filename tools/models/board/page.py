"""The board of causal language models as a Markdown page, made from its results."""

from collections.abc import Iterator, Mapping, Sequence

from packproof.harness.report.formats import markdown_table, texts
from packproof.models.board.board import FLASH, LABELS, Built
from packproof.models.board.results import SIGNS, ModelBoard
from packproof.models.laws.losses import FIRST_IGNORED
from packproof.models.subjects.conventions import CONVENTIONS

COLUMNS = {
    "hf_position_ids": "pos",
    "hf_mrope": "3-axis",
    "hf_mrope_text": "4-axis",
    "hf_flash_kwargs": "all",
    "hf_flash_kwargs_no_position_ids": "no pos",
    "hf_flash_kwargs_no_seq_idx": "no idx",
    "hf_cache": "cache",
    "hf_ones_mask": "ones",
    "mask4d": "bool",
    "mask4d_additive": "add",
}
Setting = tuple[str, bool]  # a convention, and whether attention is flash attention
_SETTINGS: tuple[Setting, ...] = (*((name, False) for name in COLUMNS), *((name, True) for name in FLASH))


def as_markdown(board: ModelBoard) -> str:
    return "\n".join(_page(board)) + "\n"


_ABOUT = """\
`packproof models` over the causal language models of transformers {transformers} (torch {torch}, CPU, {date},
seed {seed}). {made} of {all} architectures could be built small, with random weights and one layer of each kind of
their default config. Made from `data/models.json`, which has the kinds of layers, what moved and why a call was
refused, by `packproof models --from data/models.json --markdown docs/models_board.md`.

✓ isolates, and equals the documents alone. ≠ isolates, and differs from them, as where positions run on.
✗ **leaks, without an error**. R refuses, with an error. ? not judged.
"""

_FLASH = """\
The first columns are what transformers chooses on a CPU: sdpa, or eager attention where a model has no other. Under
*flash* transformers' path of flash attention runs up to the kernel, with plain PyTorch in its place; a dot: not
offered. Convolutions and scans are PyTorch's fallbacks: a model that refuses without a package may isolate with it, or
leak. Documents alone get a mask of the same kind, so that ✓ says nothing about a sliding window that a 4-D mask
replaces. Another version of transformers gives another board."""


_LABELS = """\
The loss, by the first arguments that isolate the logits; a dot: none do. `every` sends a label for each token, as a
trainer does that knows nothing of packs, `first_ignored` -100 as the label of each document's first token, as
`DataCollatorWithFlattening` does. ✓ the loss of the pack is the reduction named, of the documents' losses, and so are
its gradients. ✗ **the label of a document's first token crosses** into the document before. ≠ no label crosses, and
the loss or a gradient is no reduction of theirs, as where a router is balanced over the pack."""


def _page(board: ModelBoard) -> Iterator[str]:
    built_models = [model for model in board.models if not model.reason]
    yield from ("# The board of models", "")
    yield _ABOUT.format(
        **{name: getattr(board, name) for name in ("transformers", "torch", "date", "seed")},
        made=len(built_models),
        all=len(board.models),
    )
    conventions = [(column, CONVENTIONS[name].about) for name, column in COLUMNS.items()]
    yield from markdown_table(texts("column", "what is passed, beside `input_ids`"), conventions)
    yield from ("", _FLASH, "", "## What to pass", "")
    yield from models_table(["pass"], {model.name: (advice(board, model),) for model in built_models})
    yield from ("", "## Every convention", "")
    first, *others = (COLUMNS[name] for name in FLASH)
    titles = [*COLUMNS.values(), f"flash: {first}", *others]
    yield from models_table(titles, {model.name: signs(board, model.name, _SETTINGS) for model in built_models})
    yield from ("", "## The first module that leaks", "", "By `position_ids` alone, as transformers runs on a CPU.", "")
    leaks = [o for o in board.outcomes if (o.convention, o.flash, o.word) == ("hf_position_ids", False, "leaks")]
    yield from models_table(["module"], {o.name: (f"`{o.module}`",) for o in leaks if o.module})
    yield from ("", "## Labels", "", _LABELS, "")
    yield from models_table(
        [f"`{form}`" for form in LABELS] + ["what was seen"], {m.name: _labels(board, m.name) for m in built_models}
    )
    yield from ("", "## Not built", "")
    yield from (f"- {model.name}: {model.reason[:110]}" for model in board.models if model.reason)


def models_table(titles: Sequence[str], cells_by_model: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """A table with one row for all models with the same cells, the most common cells first."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, cells in cells_by_model.items():
        groups.setdefault(cells, []).append(name)
    most_common = sorted(groups.items(), key=lambda item: -len(item[1]))
    return markdown_table(texts(*titles, "models"), [(*cells, ", ".join(names)) for cells, names in most_common])


def signs(board: ModelBoard, name: str, settings: Sequence[Setting]) -> tuple[str, ...]:
    """The sign of each setting of a model, a dot for one that it was not asked."""
    by_setting = {(o.convention, o.flash): SIGNS[o.word] for o in board.outcomes if o.name == name and not o.labels}
    return tuple(by_setting.get(setting, "·") for setting in settings)


def _labels(board: ModelBoard, name: str) -> tuple[str, ...]:
    outcomes = {o.labels: o for o in board.outcomes if o.name == name and o.labels}
    signs = [SIGNS[outcomes[form].word] if form in outcomes else "·" for form in LABELS]
    text = outcomes[FIRST_IGNORED].text if FIRST_IGNORED in outcomes else ""
    return (*signs, text.partition("; ")[0].partition(", ")[0])


# Arguments that a trainer can pass, the easiest first.
_EASIEST_FIRST = (
    ("hf_position_ids", "`position_ids`"),
    ("hf_flash_kwargs_no_position_ids", "flash kwargs without `position_ids`"),
    ("hf_flash_kwargs", "`position_ids` and flash kwargs"),
    ("hf_mrope", "`position_ids` of three axes"),
    ("mask4d", "a boolean 4-D mask"),
    ("mask4d_additive", "an additive 4-D mask"),
)


def advice(
    board: ModelBoard,
    built: Built,
    easiest_first: Sequence[tuple[str, str]] = _EASIEST_FIRST,
    columns: Mapping[str, str] = COLUMNS,
) -> str:
    """What to pass to this model.

    easiest_first: the conventions to advise, with what to pass.
    columns: the titles of all conventions, those that may differ.
    """
    outcomes = [o for o in board.outcomes if o.name == built.name and not o.labels and o.convention in columns]
    isolating = {(o.convention, o.flash) for o in outcomes if o.word == "isolates"}
    stock = next((text for convention, text in easiest_first if (convention, False) in isolating), "")
    flash = next((text for convention, text in easiest_first if (convention, True) in isolating), "")
    if not (stock or flash) and (differing := [o for o in outcomes if o.word == "differs"]):
        ways = dict.fromkeys(f"flash: {columns[o.convention]}" if o.flash else columns[o.convention] for o in differing)
        return f"isolates, but differs from the documents alone: {', '.join(ways)}"
    if not (stock or flash) and all(o.word in ("refuses", "not judged") for o in outcomes):
        return "nothing was accepted or could be judged"
    if not (stock or flash):
        return "**do not pack**: nothing isolates here"
    if "mask" in stock and ("sliding" in built.layers or "chunked" in built.layers):
        stock += ", with its window in it,"
    cache = " and `use_cache=False`" if stock and ("hf_cache", False) not in isolating else ""
    return "; ".join(
        filter(None, (f"sdpa or eager: {stock}{cache}" if stock else "", f"flash: {flash}" if flash else ""))
    )
