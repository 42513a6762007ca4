"""How a module is asked for its loss: the labels it gets, and the loss in what it returns.

Labels arrive as transformers passes them: `labels`, one for each token, which the module shifts; or `shift_labels`,
shifted already; and `num_items_in_batch`, the number by which a sum is divided. -100 marks a label to ignore.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from packproof.base.names import LABEL_FORMS
from packproof.models.laws.rounding import cast
from packproof.models.subjects.conventions import Convention
from packproof.models.subjects.pack import FIRST_LENGTHS, Pack
from packproof.models.subjects.refusals import ModuleRefused, NoOutput
from packproof.models.subjects.subject import Subject
from packproof.models.subjects.tested_module import ModuleCall, ModuleFacts
from packproof.models.subjects.watch import tensors_in

IGNORED_LABEL = -100
EVERY, FIRST_IGNORED, SHIFTED = LABEL_FORMS
_FEW_DOCUMENTS = 3


def label_form(facts: ModuleFacts, convention: Convention, form: str) -> str:
    """The form of labels to send; "" if the module takes none.

    form: one of LABEL_FORMS, "auto" for that of the convention, or "none".
    """
    if form == "none" or (form == "auto" and not {"labels", "shift_labels"} & set(facts.arguments)):
        return ""
    if form != "auto":
        return form
    return convention.labels if "labels" in facts.arguments else SHIFTED


@dataclass(frozen=True)
class LossOfPack:
    """Asks a module for the loss of a pack, or of one of its documents alone."""

    subject: Subject
    """The module in its own precision, which inputs are drawn for."""
    convention: Convention
    form: str
    """One of LABEL_FORMS."""
    seed: int
    items: int | None = None
    """num_items_in_batch; None: not sent."""

    def call(self, subject: Subject, called_pack: Pack, pack: Pack, rows: slice, labels: Tensor) -> ModuleCall:
        """The call that returns the loss of some rows.

        called_pack: the layout of the call: the whole pack, or one document alone.
        rows: its tokens in the whole pack.
        labels: int64 (t,) of the whole pack.
        """
        x = cast(self.subject.input(pack.tokens, self.seed)[:, rows], subject)
        arguments = self._label_arguments(labels[rows], called_pack)
        return ModuleCall(x, self.convention, called_pack, further=arguments, picks="loss")

    def value(self, subject: Subject, pack: Pack, labels: Tensor) -> Tensor:
        """The loss of a pack, a scalar, or (t,) with one value for each token. Raises ModuleRefused, or NoOutput."""
        return subject.call(self.call(subject, pack, pack, slice(None), labels))

    def labels(self, pack: Pack, variant: int = 0) -> Tensor:
        """int64 (t,): a label for each token. Of document 1, the first half is ignored, as a prompt is; all of it where
        there are more than three documents.

        variant: another number draws other labels, and ignores the same.
        """
        generator = torch.Generator().manual_seed(self.seed + 2)
        labels = torch.randint(self._classes, (pack.tokens,), generator=generator)
        labels = (labels + variant) % self._classes
        if len(pack.lengths) > 1:
            rows = pack.rows(1)
            stop = rows.stop if len(pack.lengths) > _FEW_DOCUMENTS else (rows.start + rows.stop) // 2
            labels[rows.start : stop] = IGNORED_LABEL
        if self.form == FIRST_IGNORED:
            labels[[pack.rows(j).start for j in range(len(pack.lengths))]] = IGNORED_LABEL
        return labels.to(self.subject.device)

    def refusal(self) -> str:
        """Why the module returns no loss even of one document alone, "" if it does: its labels are others."""
        subject = self.subject.copy()  # a call may leave a state
        pack = subject.pack(FIRST_LENGTHS[:1])
        try:
            self.value(subject, pack, self.labels(pack))
        except ModuleRefused as refusal:
            return str(refusal)
        return ""

    def with_items(self, items: int) -> "LossOfPack":
        return replace(self, items=items)

    @property
    def takes_items(self) -> bool:
        """Whether forward has num_items_in_batch by its name."""
        return "num_items_in_batch" in self.subject.facts.arguments

    @property
    def may_take_items(self) -> bool:
        return self.takes_items or self.subject.facts.takes_any_keyword

    @cached_property
    def _classes(self) -> int:
        """The number of labels: the width of the output without labels, no more than the rows of the embedding."""
        rows = self.subject.facts.embedding_rows
        sizes = [rows] if rows is not None else []
        pack = self.subject.pack(FIRST_LENGTHS)
        try:
            x = self.subject.input(pack.tokens, self.seed)
            out = self.subject.copy().call(ModuleCall(x, self.convention, pack))
            sizes += [out.shape[-1]] if out.dim() > 1 else []
        except ModuleRefused:  # it returns a loss alone, or needs labels
            pass
        if not sizes:
            raise NoOutput(
                "labels: neither an output along tokens nor an nn.Embedding tells how many classes there are"
            )
        return min(sizes)

    def _label_arguments(self, labels: Tensor, pack: Pack) -> dict[str, Any]:
        arguments = {"labels": labels}
        if self.form == SHIFTED:
            shifted = labels.roll(-1)
            shifted[[pack.rows(j).stop - 1 for j in range(len(pack.lengths))]] = IGNORED_LABEL
            arguments["shift_labels"] = shifted
            if "labels" not in self.subject.facts.arguments:
                del arguments["labels"]
        if self.convention.batched:
            arguments = {name: value[None] for name, value in arguments.items()}
        return arguments if self.items is None else {**arguments, "num_items_in_batch": self.items}


def loss_in(return_value: Any, tokens: int) -> Tensor:
    """The loss: the attribute or key `loss`, else the first tensor that is one number, or one for each token."""
    by_key = return_value.get("loss") if isinstance(return_value, Mapping) else None
    loss = getattr(return_value, "loss", by_key)
    candidates: Iterator[Tensor] = iter([loss]) if isinstance(loss, Tensor) else tensors_in(return_value)
    for tensor in candidates:
        if tensor.is_floating_point() and tensor.numel() == 1:
            return tensor.reshape(())
        if tensor.is_floating_point() and tensor.numel() in (tokens, tokens - 1):
            values = tensor.reshape(-1)
            return torch.cat([values, values.new_zeros(tokens - len(values))])  # the last token has no next one
    raise NoOutput(
        f"loss: forward took labels and returned {type(return_value).__name__} without one: expected `loss`, or a "
        "tensor of one number, or of one for each token"
    )
