"""The board of flash-linear-attention's models as a Markdown page, made from its results."""

from collections.abc import Iterator

from packproof.models.board.fla.judge import CRITERIA, FORMS, labels_name
from packproof.models.board.page import models_table
from packproof.models.board.results import SIGNS, ModelBoard
from packproof.models.laws.losses import EVERY

_ABOUT = """\
`packproof models --package fla` over the causal language models of flash-linear-attention {package} (transformers
{transformers}, torch {torch}, {device}, {date}, seed {seed}). {built} of {all} classes could be built small, with two
layers, or one of each kind, and random weights; one that is not below was not run. Made from `data/fla_models.json`,
which has what moved and why a call was refused, by
`packproof models --package fla --from data/fla_models.json --markdown docs/fla_board.md`.

Boundaries arrive as `cu_seqlens`, and a pack is one row, in training: its kernels are those of chunks, whatever the
length. Tuned kernels have drawn configurations, so that a run repeats. Where flash-attn is not installed, plain PyTorch
is in its place. Mamba's classes take other paths where mamba-ssm and causal-conv1d are.

**logits**: ✓ isolates, and equals the documents alone. ≠ isolates, and differs from them. ✗ **leaks, without an
error**. † **crashes: the GPU is lost to its process**. R refuses, with an error. ? not judged.

**Labels**: `every` sends one for each token, `first_ignored` -100 as the label of each document's first token,
`shifted` sends `shift_labels` where forward takes them by name. ✓ the loss of the pack is a reduction of the documents'
losses, and so are its gradients. ✗ **the label of a document's first token crosses** into the document before. ≠ no
label crosses, and the loss or a gradient is no reduction of theirs. A dot: not asked, as where the logits do not
isolate, or the class has no such criterion. The criterion is PyTorch's, or *fused* (`fuse_cross_entropy`), or *fused
linear* (`fuse_linear_cross_entropy`).
"""


def as_markdown(board: ModelBoard) -> str:
    return "\n".join(_page(board)) + "\n"


def _page(board: ModelBoard) -> Iterator[str]:
    built = [model for model in board.models if not model.reason]
    yield from ("# The board of flash-linear-attention's models", "")
    fields = {name: getattr(board, name) for name in ("package", "transformers", "torch", "device", "date", "seed")}
    yield _ABOUT.format(**fields, built=len(built), all=len(board.models))
    columns = [(form, criterion) for form in FORMS for criterion in CRITERIA]
    titles = ["logits", *(f"`{form}`" if criterion == "plain" else criterion for form, criterion in columns)]
    names = ["", *(labels_name(*column) for column in columns)]
    yield from models_table(titles, {model.name: _signs(board, model.name, names) for model in built})
    yield from (
        "",
        "## What was seen",
        "",
        "In the logits; and in the loss of `every` label, by PyTorch's criterion.",
        "",
    )
    seen = {model.name: (_text(board, model.name, ""), _text(board, model.name, names[1])) for model in built}
    yield from models_table(["logits", f"`{EVERY}`"], {name: texts for name, texts in seen.items() if any(texts)})
    not_built = [f"- {model.name}: {model.reason[:110]}" for model in board.models if model.reason]
    yield from ("", "## Not built", "", *not_built) if not_built else ()


def _signs(board: ModelBoard, name: str, labels: list[str]) -> tuple[str, ...]:
    by_labels = {outcome.labels: SIGNS[outcome.word] for outcome in board.outcomes if outcome.name == name}
    no_logits = "·" if by_labels else SIGNS["not judged"]  # the run ended before
    return (by_labels.get("", no_logits), *(by_labels.get(each, "·") for each in labels[1:]))


def _text(board: ModelBoard, name: str, labels: str) -> str:
    """What an outcome says, without figures: the module of a leak, or the first clause."""
    outcome = next((o for o in board.outcomes if (o.name, o.labels) == (name, labels)), None)
    if outcome is None:
        return ""
    text = outcome.text.partition("; ")[0].partition(": ")[0] if outcome.word in ("leaks", "differs") else outcome.text
    return f"`{outcome.module}`" if outcome.module else text[:110].replace("|", "/")
