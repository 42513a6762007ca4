"""What trainers send to a model that reads images, with the positions of several axes that it computes itself."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from packproof.models.board.multimodal.images import ReadsImages
from packproof.models.subjects.conventions import CONVENTIONS, Arguments, Convention
from packproof.models.subjects.pack import Pack

AXES, TEXT_AND_AXES = "hf_mrope", "hf_mrope_text"
CUT = Convention(
    "image_cut",
    "the end of the pack cuts an image, whose pixels come whole; with a boolean 4-D mask, and restarted position_ids",
    CONVENTIONS["mask4d"].arguments,
)
AXES_ALONE = (AXES, "mask4d", "mask4d_additive")  # a mask tells the boundaries
ONE_ROW = ("hf_position_ids", CUT.name)  # of positions, also where the model has axes
UNAWARE = Convention(
    "unaware",
    "an attention_mask of ones alone, as a collator sends it that knows nothing of packs: the model makes positions",
    lambda pack: {
        "attention_mask": torch.ones(1, pack.tokens, dtype=torch.int64, device=pack.device),
        "use_cache": False,
    },
)
TEXT_OFFSETS = Convention(
    "text_cu_seqlens",
    "all that a padding-free collator sends, and cu_seqlens, as kernels of linear attention call it",
    lambda pack: {
        **CONVENTIONS["hf_flash_kwargs"].arguments(pack),
        "cu_seqlens": CONVENTIONS["cu_seqlens"].arguments(pack)["cu_seqlens"],
    },
)
_NAMES = (
    *("hf_position_ids", AXES, TEXT_AND_AXES, "hf_flash_kwargs", "hf_flash_kwargs_no_position_ids"),
    *("hf_cache", "hf_ones_mask", "mask4d", "mask4d_additive"),
)
SENT: Mapping[str, Convention] = {
    convention.name: convention for convention in (*(CONVENTIONS[n] for n in _NAMES), TEXT_OFFSETS, UNAWARE)
}


@dataclass(frozen=True)
class WithImages:
    """The arguments of a convention, and the images. A document alone gets what a collator sends that packs nothing:
    it is how the model computes the document where there is no pack.
    """

    convention: Convention
    reader: ReadsImages

    def __call__(self, pack: Pack) -> Arguments:
        images = {"images": pack.images}
        if len(pack.lengths) == 1:
            return {**UNAWARE.arguments(pack), **images}
        arguments = {**self.convention.arguments(pack), **images}
        if self.has_axes and "position_ids" in arguments and self.convention.name not in ONE_ROW:
            axes = own_positions(self.reader, pack)
            rows = [] if self.convention.name in AXES_ALONE else [pack.position.expand(1, 1, -1)]
            arguments["position_ids"] = torch.cat([*rows, axes])
        return arguments

    @property
    def has_axes(self) -> bool:
        """Whether the model has positions of several axes."""
        return position_maker(self.reader) is not None


def position_maker(reader: ReadsImages) -> Any:
    """The module inside that computes positions of several axes, None if there is none."""
    return next((module for module in reader.model.modules() if hasattr(module, "get_rope_index")), None)


def own_positions(reader: ReadsImages, pack: Pack) -> Tensor:
    """int64 (axes, 1, t): the positions that the model gives each document alone, one after another."""
    maker = position_maker(reader)
    names = inspect.signature(maker.get_rope_index).parameters

    def of_document(document: Pack) -> Tensor:
        ids = torch.full((1, document.tokens), 3, device=document.device)
        arguments = {**reader.arguments(ids, document.images), "attention_mask": torch.ones_like(ids)}
        positions, _ = maker.get_rope_index(**{n: value for n, value in arguments.items() if n in names})
        return torch.as_tensor(positions)

    return torch.cat([of_document(pack.single_document(j)) for j in range(len(pack.lengths))], -1)


def conventions_for(reader: ReadsImages) -> list[Convention]:
    """The conventions for this model, each with its images."""
    has_axes = position_maker(reader) is not None
    sent = [each for each in SENT.values() if has_axes or each.name not in (AXES, TEXT_AND_AXES)]
    return [replace(each, arguments=WithImages(each, reader)) for each in sent]
