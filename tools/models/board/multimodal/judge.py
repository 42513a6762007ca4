"""One architecture that reads images: its text by each convention, and its vision tower, one image a document."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from packproof.models.board import flash
from packproof.models.board.board import BoardEntry, Built, Outcome, judge_convention, one_line
from packproof.models.board.multimodal.conventions import CUT, SENT, UNAWARE, WithImages, conventions_for
from packproof.models.board.multimodal.forms import FramedPatches, Patches, find_form
from packproof.models.board.multimodal.images import ImageForm, ReadsImages, Shape, draw_ids
from packproof.models.board.multimodal.tiny import tiny_multimodal_model
from packproof.models.board.tiny import Architecture
from packproof.models.subjects.conventions import Convention
from packproof.models.subjects.pack import Image, Lengths, Pack

TOWER = Convention(
    "tower",
    "the vision tower alone, each image a document: image_grid_thw, or target_sizes, tells where it ends",
    lambda pack: {"images": images_of_lengths(pack)},
)
CONVENTIONS_ASKED = (*SENT, CUT.name, TOWER.name)
FLASH_ASKED = (*(name for name in SENT if name.startswith("hf_")), UNAWARE.name, TOWER.name)
# Heights and widths of images by their number of tokens: one token, one row, squares past a window of two, and not.
_SHAPES: Mapping[int, Shape] = {4: (2, 2), 6: (2, 3), 9: (3, 3), 12: (3, 4)}
_TOWER_LAYOUTS: tuple[Lengths, ...] = ((6, 1, 4, 12), (4, 1, 1, 9, 2))
_FRAMED_LAYOUTS: tuple[Lengths, ...] = ((10, 4, 8, 17), (8, 4, 4, 14, 5))


class VisionTower(nn.Module):
    """The features that a model makes of images, one row for each token."""

    def __init__(self, model: Any, form: ImageForm) -> None:
        super().__init__()
        self.model, self.form, self.config = model, form, model.config
        self._supports_flash_attn = getattr(model, "_supports_flash_attn", False)

    def forward(self, pixels: Tensor, images: Sequence[Image]) -> Tensor:
        """pixels: (1, t, n), those of each token. Returns (t, d)."""
        layout = self.form.layout
        owner = next(module for module in self.model.modules() if hasattr(module, "get_image_features"))
        out = owner.get_image_features(
            pixel_values=layout.pixel_values(pixels[0], images), **layout.sizes(images), return_dict=True
        )
        features = out.pooler_output
        return torch.cat([part.flatten(0, -2) for part in features]) if isinstance(features, list | tuple) else features


def images_of_lengths(pack: Pack) -> tuple[Image, ...]:
    """Each document as one image."""
    shapes = [_SHAPES.get(length, (1, length)) for length in pack.lengths]
    starts = pack.offsets.tolist()
    return tuple(Image(start, *shape, shape[0] * shape[1]) for start, shape in zip(starts, shapes, strict=False))


def judge_multimodal_model(architecture: Architecture, seed: int) -> Iterator[BoardEntry]:
    """The entries of a model that reads images."""
    name, names = architecture.name, (architecture.name, architecture.model, architecture.also)
    torch.manual_seed(seed)
    try:
        model, layers = tiny_multimodal_model(name)
        parameters = sum(p.numel() for p in model.parameters())
        form = find_form(model)
    except Exception as error:
        yield Built(*names, reason=one_line(error))
        return
    yield Built(*names, layers, str(getattr(model.config, "_attn_implementation", "")), parameters)
    judge = partial(judge_convention, name, seed=seed, shrinks=False)
    reader = ReadsImages(model, form).eval()
    has_flash = flash.reaches_flash_attention(reader)
    for outcome in chain(_judge_text(judge, reader, has_flash), _judge_tower(judge, model, form, has_flash)):
        yield replace(outcome, module=outcome.module.removeprefix("model."))


def _judge_text(judge: Any, reader: ReadsImages, has_flash: bool) -> Iterator[Outcome]:
    places = reader.form.places()
    conventions = conventions_for(reader)
    with_flash = [convention for convention in conventions if has_flash and convention.name in FLASH_ASKED]
    for convention in conventions:
        yield judge(reader, convention, with_flash=False, inputs=draw_ids, layouts=places.layouts, place_images=places)
    cutting = reader.form.places(cuts=True)
    if cutting.can_cut:
        cut = replace(CUT, arguments=WithImages(CUT, reader))
        yield judge(reader, cut, with_flash=False, inputs=draw_ids, layouts=cutting.layouts, place_images=cutting)
    for convention in with_flash:
        yield judge(reader, convention, with_flash=True, inputs=draw_ids, layouts=places.layouts, place_images=places)


def _judge_tower(judge: Any, model: nn.Module, form: ImageForm, has_flash: bool) -> Iterator[Outcome]:
    """Where patches of several images lie end to end. The images of a batch are rows of their own."""
    if isinstance(form.layout, Patches):
        tower = VisionTower(model, form)
        layouts = _FRAMED_LAYOUTS if isinstance(form.layout, FramedPatches) else _TOWER_LAYOUTS
        for with_flash in (False, True) if has_flash else (False,):
            yield judge(tower, TOWER, with_flash=with_flash, inputs=form.pixels, layouts=layouts)
