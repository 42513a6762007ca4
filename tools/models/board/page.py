"""The board as JSON, the source, and as a Markdown page made from it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from packproof.base.records import read_record, to_json
from packproof.base.wording import plural
from packproof.harness.report.formats import markdown_table, texts
from packproof.models.board.board import CONVENTION_NAMES, FLASH, LABELS, BoardEntry, Built, Outcome
from packproof.models.laws.losses import FIRST_IGNORED
from packproof.models.subjects.conventions import CONVENTIONS

SIGNS = {"isolates": "✓", "leaks": "✗", "refuses": "R", "differs": "≠", "not judged": "?"}
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


@dataclass(frozen=True)
class ModelBoard:
    """The results of one run, with the versions it ran on."""

    transformers: str
    torch: str
    date: str
    """In ISO format."""
    seed: int
    seconds: float
    """The duration of the run."""
    models: tuple[Built, ...]
    outcomes: tuple[Outcome, ...]


def make_board(entries: Sequence[BoardEntry], seconds: float, seed: int, versions: Mapping[str, str]) -> ModelBoard:
    """Make a board from the entries of a run, sorted by name. A later reason replaces the first entry of a model whose
    process ended.

    versions: of transformers and torch.
    """
    built = {entry.name: entry for entry in entries if isinstance(entry, Built)}
    outcomes = [entry for entry in entries if isinstance(entry, Outcome)]
    outcomes.sort(key=lambda o: (o.name, bool(o.labels), o.flash, CONVENTION_NAMES.index(o.convention), o.labels))
    return ModelBoard(
        versions["transformers"],
        versions["torch"],
        date.today().isoformat(),
        seed,
        round(seconds, 1),
        tuple(built[name] for name in sorted(built)),
        tuple(outcomes),
    )


def as_json(board: ModelBoard) -> str:
    return json.dumps(to_json(board), indent=1, ensure_ascii=False) + "\n"


def read_board(path: str) -> ModelBoard:
    """Read a board from a JSON file. Raises UsageError where the file holds none."""
    return read_record(ModelBoard, path, f"--from: {path}", "`packproof models --json`", named=True)


def outcome_line(outcome: Outcome) -> str:
    """One outcome, for the terminal."""
    convention = f"{outcome.convention}, flash" if outcome.flash else outcome.convention
    convention += f", labels: {outcome.labels}" if outcome.labels else ""
    return "  ".join(
        filter(None, (f"  {outcome.name:<24} {convention:<38} {outcome.word}", outcome.module, outcome.text))
    )


def board_counts(board: ModelBoard) -> str:
    """How many models there are, and how many isolate or leak by each convention."""
    n_built = sum(not model.reason for model in board.models)
    lines = [f"{plural(len(board.models), 'architecture')}, {n_built} built, {board.seconds:.0f} s"]
    for with_flash in (False, True):
        for name in FLASH if with_flash else CONVENTION_NAMES:
            words = [o.word for o in board.outcomes if (o.convention, o.flash, o.labels) == (name, with_flash, "")]
            lines.append(f"{name}{', flash' if with_flash else ''}: {_numbers(words)}")
    lines += [f"labels: {form}: {_numbers([o.word for o in board.outcomes if o.labels == form])}" for form in LABELS]
    return "\n".join(lines)


def _numbers(words: Sequence[str]) -> str:
    return ", ".join(f"{words.count(w)} {w}" for w in SIGNS if w in words)


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
    yield from _models_table(["pass"], {model.name: (_advice(board, model),) for model in built_models})
    yield from ("", "## Every convention", "")
    first, *others = (COLUMNS[name] for name in FLASH)
    titles = [*COLUMNS.values(), f"flash: {first}", *others]
    yield from _models_table(titles, {model.name: _signs(board, model.name) for model in built_models})
    yield from ("", "## The first module that leaks", "", "By `position_ids` alone, as transformers runs on a CPU.", "")
    leaks = [o for o in board.outcomes if (o.convention, o.flash, o.word) == ("hf_position_ids", False, "leaks")]
    yield from _models_table(["module"], {o.name: (f"`{o.module}`",) for o in leaks if o.module})
    yield from ("", "## Labels", "", _LABELS, "")
    yield from _models_table(
        [f"`{form}`" for form in LABELS] + ["what was seen"], {m.name: _labels(board, m.name) for m in built_models}
    )
    yield from ("", "## Not built", "")
    yield from (f"- {model.name}: {model.reason[:110]}" for model in board.models if model.reason)


def _models_table(titles: Sequence[str], cells_by_model: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """A table with one row for all models with the same cells, the most common cells first."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, cells in cells_by_model.items():
        groups.setdefault(cells, []).append(name)
    most_common = sorted(groups.items(), key=lambda item: -len(item[1]))
    return markdown_table(texts(*titles, "models"), [(*cells, ", ".join(names)) for cells, names in most_common])


def _signs(board: ModelBoard, name: str) -> tuple[str, ...]:
    signs = {(o.convention, o.flash): SIGNS[o.word] for o in board.outcomes if o.name == name and not o.labels}
    settings = [*((convention, False) for convention in COLUMNS), *((convention, True) for convention in FLASH)]
    return tuple(signs.get(setting, "·") for setting in settings)


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


def _advice(board: ModelBoard, built: Built) -> str:
    outcomes = [o for o in board.outcomes if o.name == built.name and not o.labels]
    isolating = {(o.convention, o.flash) for o in outcomes if o.word == "isolates"}
    stock = next((text for convention, text in _EASIEST_FIRST if (convention, False) in isolating), "")
    flash = next((text for convention, text in _EASIEST_FIRST if (convention, True) in isolating), "")
    if not (stock or flash) and (differing := [o for o in outcomes if o.word == "differs"]):
        ways = dict.fromkeys(f"flash: {COLUMNS[o.convention]}" if o.flash else COLUMNS[o.convention] for o in differing)
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
