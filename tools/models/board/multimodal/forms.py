"""How a model takes its images: patches of any grid end to end, or a batch of images of one size.

Which form it is, is tried on one image: the first that the model accepts.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor

from packproof.models.board.multimodal.images import ImageForm, ReadsImages, Shape
from packproof.models.board.multimodal.sizes import MARKED
from packproof.models.running.construction import local_module
from packproof.models.subjects.pack import Image

_CHANNELS = 3
_SHAPES: tuple[Shape, Shape, Shape] = ((1, 1), (2, 2), (2, 3))
_USUAL_MERGE = 2


def find_form(model: Any) -> ImageForm:
    """Raises ValueError if it accepts none, with its own errors, or if what it returns does not follow the pixels."""
    reasons: dict[str, None] = {}
    model.eval()
    is_marked = getattr(getattr(model, "config", None), "model_type", "") in MARKED
    for candidate in _candidates(model, reasons):
        form = replace(candidate, is_marked=is_marked)
        try:
            if _follows_pixels(ReadsImages(model, form), Image(1, *form.shapes[1], prod(form.shapes[1]))):
                return form
            reasons["its output does not follow the pixels"] = None
        except Exception as error:
            reasons[_one_line(error)] = None
    raise ValueError(f"it took an image in no known form: {'; '.join(reasons)}")


def _follows_pixels(reader: ReadsImages, image: Image) -> bool:
    """Whether the output at an image changes with its pixels. Errors of the model pass through."""
    local = local_module(reader, None, redraw=True, seed=0)
    ids = torch.arange(image.tokens + 2)[None] % 50 + 3
    other_ids = ids.clone()
    other_ids[:, image.start : image.start + image.tokens] += 1
    with torch.no_grad():
        outputs = [local.pick_output(local.module(x, images=(image,), use_cache=False)) for x in (ids, other_ids)]
    return not torch.equal(*outputs)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def _candidates(model: Any, reasons: dict[str, None]) -> Iterator[ImageForm]:
    names = set(inspect.signature(model.forward).parameters)
    vision = getattr(getattr(model, "config", None), "vision_config", None)
    if {"image_grid_thw", "target_sizes"} & names:
        yield from _patch_forms(vision, names)
    elif "pixel_values" in names:
        yield from _batch_forms(model, vision, names, reasons)


@dataclass(frozen=True)
class Patches:
    """The patches of all images end to end, and `image_grid_thw`: how many each image has, up and across."""

    shape: tuple[int, ...]
    """Of the numbers of one patch."""
    merge: int
    """Patches that make one token, along each axis."""
    has_merge_sizes: bool = False

    def grid(self, image: Image) -> Shape:
        """The patches of an image, up and across."""
        return image.height * self.merge, image.width * self.merge

    def pixel_values(self, pixels: Tensor, images: Sequence[Image]) -> Tensor:
        numbers = torch.Size(self.shape).numel()
        blocks = torch.split(pixels, [image.tokens for image in images])
        needed = [numbers * height * width for height, width in map(self.grid, images)]
        return torch.cat([b.flatten()[:n] for b, n in zip(blocks, needed, strict=True)]).reshape(-1, *self.shape)

    def sizes(self, images: Sequence[Image]) -> Mapping[str, Any]:
        grid = torch.tensor([[1, *self.grid(image)] for image in images])
        merges = {"image_merge_sizes": torch.full((len(images),), self.merge)} if self.has_merge_sizes else {}
        return {"image_grid_thw": grid, **merges}


class FramedPatches(Patches):
    """Each row of an image ends with a token of its own, and so does the image, after one where it begins."""

    def grid(self, image: Image) -> Shape:
        tokens = image.tokens - 2
        height = next((n for n in (3, 2) if tokens % n == 0 and tokens // n in (n + 1, n + 2)), 1)
        return height * self.merge, (tokens // height - 1) * self.merge


class RowOfPatches(Patches):
    """The patches of all images as one image that is one patch high, and `target_sizes`."""

    def pixel_values(self, pixels: Tensor, images: Sequence[Image]) -> Tensor:
        return super().pixel_values(pixels, images).permute(1, 2, 0, 3).flatten(2)[None]

    def sizes(self, images: Sequence[Image]) -> Mapping[str, Any]:
        return {"target_sizes": torch.tensor([self.grid(image) for image in images], dtype=torch.int32)}


def _patch_forms(vision: Any, names: set[str]) -> Iterator[ImageForm]:
    merges = (getattr(vision, name, None) for name in ("spatial_merge_size", "merge_size", "merge_kernel_size"))
    first_merge: Any = next(filter(None, merges), _USUAL_MERGE)
    merge = int(first_merge[0] if isinstance(first_merge, list | tuple) else first_merge)
    frames: Any = getattr(vision, "temporal_patch_size", None) or getattr(vision, "patch_temporal", 1)
    patch = int(vision.patch_size)
    image_patch = (_CHANNELS, patch, patch)
    layouts: list[tuple[Patches, tuple[Shape, Shape, Shape]]] = []
    for depth in dict.fromkeys((frames, 1)):
        for shape in ((_CHANNELS * depth * patch**2,), image_patch):
            layouts.append((Patches(shape, merge, "image_merge_sizes" in names), _SHAPES))
    layouts.append((Patches((merge * patch, merge * patch, _CHANNELS), 1), _SHAPES))  # grids count tokens
    layouts.append((FramedPatches((_CHANNELS * frames * patch**2,), merge), ((1, 4), (1, 8), (1, 10))))
    layouts.append((RowOfPatches(image_patch, merge**2), _SHAPES))  # merged inside the tower and after it
    for layout, shapes in layouts:
        if ("target_sizes" in names) == isinstance(layout, RowOfPatches):
            yield ImageForm(shapes, torch.Size(layout.shape).numel() * layout.merge**2, layout)


@dataclass(frozen=True)
class Batch:
    """A batch of images of one size, each of as many tokens."""

    leading: tuple[int, ...]
    """Axes before that of the batch."""
    tiles: tuple[int, ...]
    """Axes of one image before its channels."""
    size: int
    """Pixels up and across."""
    has_sizes: bool
    """Whether `image_sizes` come with them."""

    @property
    def numbers(self) -> int:
        return torch.Size(self.tiles).numel() * _CHANNELS * self.size**2

    def pixel_values(self, pixels: Tensor, images: Sequence[Image]) -> Tensor:
        count = len(images)
        values = pixels.reshape(count, -1)[:, : self.numbers]
        return values.reshape(*self.leading, count, *self.tiles, _CHANNELS, self.size, self.size)

    def sizes(self, images: Sequence[Image]) -> Mapping[str, Any]:
        return {"image_sizes": torch.tensor([[self.size, self.size]] * len(images))} if self.has_sizes else {}

    def tokens_of_image(self, model: Any) -> int:
        """Rows of features that the model makes of one image. Its own errors pass through."""
        image = torch.randn(self.numbers, generator=torch.Generator().manual_seed(0))
        owner = next(m for m in model.modules() if hasattr(m, "get_image_features"))
        with torch.no_grad():
            images = [Image(0, 1, 1, 1)]
            out = owner.get_image_features(pixel_values=self.pixel_values(image, images), **self.sizes(images))
        features = getattr(out, "pooler_output", None)
        features = getattr(out, "last_hidden_state", out) if features is None else features
        parts = features if isinstance(features, list | tuple) else [features]
        return sum(part.numel() // part.shape[-1] for part in parts)


@dataclass(frozen=True)
class BatchOfPatches(Batch):
    """The patches of each image, and `image_position_ids`: where each patch lies."""

    side: int = 4
    """Patches up and across."""

    def pixel_values(self, pixels: Tensor, images: Sequence[Image]) -> Tensor:
        return super().pixel_values(pixels, images).reshape(len(images), self.side**2, -1)

    def sizes(self, images: Sequence[Image]) -> Mapping[str, Any]:
        positions = torch.cartesian_prod(torch.arange(self.side), torch.arange(self.side)).flip(-1)
        return {"image_position_ids": positions.expand(len(images), -1, -1)}


def _batch_forms(model: Any, vision: Any, names: set[str], reasons: dict[str, None]) -> Iterator[ImageForm]:
    size = getattr(vision, "image_size", None) or 16
    size = size[0] if isinstance(size, list | tuple) else size
    sizes = (True, False) if "image_sizes" in names else (False,)
    batches = [Batch(*shape) for shape in product(((), (1,)), ((), (2,), (3,)), (size,), sizes)]
    if "image_position_ids" in names:
        batches = [BatchOfPatches((), (), size, has_sizes=False, side=side) for side in (4, 2)]
    for batch in sorted(batches, key=lambda batch: batch.tiles):  # the fewest axes first
        try:
            tokens = batch.tokens_of_image(model)
        except Exception as error:
            reasons[_one_line(error)] = None
        else:
            shape = (1, tokens)
            yield ImageForm((shape, shape, shape), ceil(batch.numbers / tokens), batch)
