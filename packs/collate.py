"""Collates documents into the inputs of a model: tokens in one row, and the boundaries in every convention at once."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from packproof.base.arguments import whole_number
from packproof.base.errors import ArgumentError, LayoutError, checked_init
from packproof.base.wording import kind, plural
from packproof.refs.packers import Piece
from packproof.refs.packing import PackLayout

IGNORE_INDEX = -100  # the default ignore_index of torch's cross_entropy


@checked_init
class PackCollator:
    """Makes one pack of documents, for `DataLoader(collate_fn=...)`.

    capacity: rows of each pack; None for as many as there are tokens. Rows without a token are padding.
    pad: the token of padding.

    A document is a tensor or list of tokens (t,), or a mapping of features of one length with `input_ids`. `PackStream`
    adds its piece: the tokens `start` to `stop` of the whole document, possibly none.
    Returns, for T rows and s documents:

    - `input_ids` (1, T) int64, and every other feature of the documents; padding is `pad`, zero for other features
    - `labels` (1, T) int64: those of the documents, or else their tokens; -100 in padding. The first label of a
      document is -100 too: a model with shifted labels would predict it from the previous document. A piece continued
      from the previous pack keeps its first label; the last row of that pack predicts it
    - `shift_labels` (1, T) int64: in each row the label of the document's next token, even if it lies in the next pack;
      -100 in the last row of a document. For a loss that does not shift, a cut then costs no target
    - `position_ids` (1, T) int64, from 0 in each document and in padding, or from the start of its piece
    - `seq_idx` (1, T) int32, -1 in padding
    - `cu_seqlens` (s + 1,) int32; its last entry is the number of tokens
    - `max_seqlen`, an int
    - `pieces`, a tuple of s pieces

    Pass your model the entries that it takes; `packproof model` names them. Raises LayoutError if the documents do not
    fit, ArgumentError for anything but a document.

    >>> from packproof.packs import PackCollator
    >>> batch = PackCollator(capacity=6)([[5, 6, 7], [8, 9]])
    >>> batch["input_ids"], batch["labels"]
    (tensor([[5, 6, 7, 8, 9, 0]]), tensor([[-100,    6,    7, -100,    9, -100]]))
    >>> batch["position_ids"], batch["cu_seqlens"]
    (tensor([[0, 1, 2, 0, 1, 0]]), tensor([0, 3, 5], dtype=torch.int32))
    """

    def __init__(self, capacity: int | None = None, *, pad: int = 0) -> None:
        self.capacity = None if capacity is None else whole_number("PackCollator", "capacity", capacity, 1)
        self.pad = whole_number("PackCollator", "pad", pad)

    def __call__(self, documents: Sequence[Any]) -> dict[str, Any]:
        """Collate one pack.

        documents: at least one, in their order in the pack.
        """
        if not documents:
            raise LayoutError("PackCollator: there are no documents; at least one was expected")
        features, pieces = zip(*(_read_document(j, document) for j, document in enumerate(documents)), strict=True)
        for j, document_features in enumerate(features):
            if document_features.keys() != features[0].keys():
                names = (", ".join(sorted(feature_names)) for feature_names in (document_features, features[0]))
                raise ArgumentError("PackCollator: document {} has {}, and document 0 {}".format(j, *names))
        layout = PackLayout.from_lengths(map(len, pieces), slack=self._slack_rows(sum(map(len, pieces))))
        offsets = layout.cu_seqlens()
        position = layout.position_ids().long()
        position[len(position) - layout.slack :] = torch.arange(layout.slack)  # one more document, not one for each row
        seq_idx = layout.seq_idx()
        starts = torch.tensor([*(piece.start for piece in pieces), 0])  # the last: of padding
        tensors = {
            name: self._concatenate(name, [document_features[name] for document_features in features], layout)
            for name in features[0]
        }
        labels = tensors["labels"]
        first_rows = [(row, piece) for row, piece in zip(offsets.tolist(), pieces, strict=False) if len(piece)]
        labels[0, [row for row, piece in first_rows if row or not piece.continues]] = IGNORE_INDEX
        return {
            **tensors,
            "position_ids": (position + starts[seq_idx.long()])[None],
            "seq_idx": seq_idx[None],
            "cu_seqlens": offsets,
            "max_seqlen": layout.max_seqlen,
            "pieces": pieces,
        }

    def _slack_rows(self, tokens: int) -> int:
        if self.capacity is None:
            return 0
        if tokens > self.capacity:
            excess = f"more than the capacity of {self.capacity}"
            raise LayoutError(f"PackCollator: the documents have {plural(tokens, 'token')}, {excess}")
        return self.capacity - tokens

    def _concatenate(self, name: str, parts: list[Tensor], layout: PackLayout) -> Tensor:
        """One feature of all documents, followed by its padding."""
        filler = {"labels": IGNORE_INDEX, "shift_labels": IGNORE_INDEX, "input_ids": self.pad}.get(name, 0)
        padding = parts[0].new_full((layout.slack, *parts[0].shape[1:]), filler)
        return torch.cat([*parts, padding])[None]


def _read_document(j: int, document: Any) -> tuple[dict[str, Tensor], Piece]:
    """The features of a document with its labels, cut to its piece."""
    content, piece = document if _has_piece(document) else (document, None)
    raw_features = content if isinstance(content, Mapping) else {"input_ids": content}
    if "input_ids" not in raw_features:
        raise ArgumentError(
            f"PackCollator: document {j} has {', '.join(map(str, raw_features)) or 'nothing'}, no input_ids"
        )
    features = {str(name): _feature_tensor(j, str(name), value) for name, value in raw_features.items()}
    tokens = features["input_ids"].long()
    features |= {"input_ids": tokens, "labels": features.get("labels", tokens).long().clone()}
    features.setdefault("shift_labels", _next_labels(features["labels"]))
    for name, x in features.items():
        if len(x) != len(tokens):
            raise ArgumentError(f"PackCollator: {name} of document {j} has {len(x)} rows, input_ids {len(tokens)}")
    if piece is None:
        piece = Piece(j, 0, len(tokens))
    if piece.stop > len(tokens):
        raise LayoutError(
            f"PackCollator: document {j} has {plural(len(tokens), 'token')}, its piece ends at {piece.stop}; a piece "
            "is tokens start to stop of the whole document, which comes with it"
        )
    return {name: x[piece.start : piece.stop] for name, x in features.items()}, piece


def _next_labels(labels: Tensor) -> Tensor:
    shifted = labels.roll(-1)
    shifted[-1:] = IGNORE_INDEX
    return shifted


def _has_piece(document: Any) -> bool:
    return isinstance(document, tuple) and len(document) == 2 and isinstance(document[1], Piece)


def _feature_tensor(j: int, name: str, value: Any) -> Tensor:
    try:
        x = value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"PackCollator: {name} of document {j} is {kind(value)}; a tensor was expected") from error
    is_token_list = x.ndim == 1 and not (x.is_floating_point() and x.numel())  # an empty list makes floats
    if not x.ndim or (name in ("input_ids", "labels") and not is_token_list):
        raise ArgumentError(f"PackCollator: {name} of document {j} is {x.dtype} {tuple(x.shape)}; tokens (t,) expected")
    return x
