"""A model of transformers whose input ids choose text and pixels alike, so that a document's pixels are its own.

The laws change the ids of a document and take gradients at them. Here each id stands for an embedding, and, at the rows
of an image, for the pixels of one token of it: what a document shows changes with its ids, and a gradient at them is
one at its pixels too.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from packproof.models.board.multimodal.sizes import END_ID, FIRST_SPECIAL_ID, IMAGE_ID, PREFIXED, START_ID
from packproof.models.subjects.pack import Image, Lengths

Shape = tuple[int, int]


@dataclass(frozen=True)
class ImageForm:
    """How a model takes its images."""

    shapes: tuple[Shape, Shape, Shape]
    """Heights and widths of three images, in tokens, that it can take."""
    pixels: int
    """Numbers that make the pixels of one token."""
    layout: "ImageLayout"
    is_marked: bool = False
    """Whether the token before an image and the one after it are ids of their own: no image comes before any text."""

    def places(self, *, cuts: bool = False) -> "Places":
        """Where documents have such images.

        cuts: whether the end of the pack cuts the last one.
        """
        return Places(self.shapes, starts_with_image=not self.is_marked, cuts=cuts)


class ImageLayout(Protocol):
    """The keyword arguments of a model for images."""

    def pixel_values(self, pixels: Tensor, images: Sequence[Image]) -> Tensor:
        """pixels: (n, numbers), those of each token of the images."""

    def sizes(self, images: Sequence[Image]) -> Mapping[str, Any]:
        """What tells their sizes."""


class ReadsImages(nn.Module):
    """The model, with one table for the embeddings of text and for the pixels of images."""

    def __init__(self, model: Any, form: ImageForm) -> None:
        super().__init__()
        self.model, self.form, self.config = model, form, model.config
        self.hidden = model.get_input_embeddings().embedding_dim
        self.table = nn.Embedding(IMAGE_ID, self.hidden + form.pixels)
        self._supports_flash_attn = getattr(model, "_supports_flash_attn", False)

    def forward(self, input_ids: Tensor, images: Sequence[Image] = (), **boundaries: Any) -> Any:
        """input_ids: (1, t), below IMAGE_ID, at the rows of images too."""
        contents, is_image = self.table(input_ids), image_rows(images, input_ids.shape[1]).to(input_ids.device)
        arguments = dict(self.arguments(input_ids, images))
        if images:
            pixels = self._pixels(contents[0, :, self.hidden :], images)
            arguments["pixel_values"] = self.form.layout.pixel_values(pixels, images)
        with self._embedding_text(contents[..., : self.hidden], is_image):
            return self.model(**arguments, **boundaries)

    def arguments(self, input_ids: Tensor, images: Sequence[Image]) -> Mapping[str, Any]:
        """The ids with those of images, and what else tells of images, but for their pixels."""
        is_image = image_rows(images, input_ids.shape[1]).to(input_ids.device)[None]
        parameters = inspect.signature(self.model.forward).parameters
        names = [n for n in ("mm_token_type_ids", "token_type_ids") if n in parameters]
        sizes = self.form.layout.sizes(images) if images else {}
        ids = input_ids.masked_fill(is_image, IMAGE_ID)
        for image in images if self.form.is_marked else ():
            ids[:, image.start - 1], ids[:, image.start + image.rows :][:, :1] = START_ID, END_ID
        is_type_one = ~is_image if self.config.model_type in PREFIXED else is_image
        return {"input_ids": ids, **dict.fromkeys(names, is_type_one.int()), **sizes}

    def _pixels(self, contents: Tensor, images: Sequence[Image]) -> Tensor:
        """The pixels of all tokens of the images. What a cut takes away repeats the last row."""
        rows = [row for image in images for row in _all_rows(image)]
        return contents[torch.tensor(rows, device=contents.device)]

    @contextmanager
    def _embedding_text(self, contents: Tensor, is_image: Tensor) -> Iterator[None]:
        """The model's embedding of text returns these contents, and its own at the rows of images."""

        def replace(_module: nn.Module, _args: Any, out: Tensor) -> Tensor:
            return torch.where(is_image[:, None], out, contents) if out.shape == contents.shape else out

        hook = self.model.get_input_embeddings().register_forward_hook(replace)
        try:
            yield
        finally:
            hook.remove()


def _all_rows(image: Image) -> list[int]:
    return [image.start + min(k, image.rows - 1) for k in range(image.tokens)]


def image_rows(images: Sequence[Image], tokens: int) -> Tensor:
    """bool (t,): whether a row is one of an image."""
    is_image = torch.zeros(tokens, dtype=torch.bool)
    for image in images:
        is_image[image.start : image.start + image.rows] = True
    return is_image


def draw_ids(tokens: int, generator: torch.Generator) -> Tensor:
    """Random ids (1, t) of text."""
    return torch.randint(3, FIRST_SPECIAL_ID, (1, tokens), generator=generator)


@dataclass(frozen=True)
class Places:
    """Which documents have images, by their lengths: a document of the same length is the same in every pack."""

    shapes: tuple[Shape, Shape, Shape]
    """Of the images."""
    starts_with_image: bool = True
    """Whether a document has an image before any text."""
    cuts: bool = False
    """Whether the end of the pack cuts an image."""

    def __call__(self, lengths: Lengths) -> tuple[Image, ...]:
        images, row = [], 0
        for length in lengths:
            for offset, shape in self.documents.get(length, ()):
                tokens = min(shape[0] * shape[1], length - offset)
                images.append(Image(row + offset, *shape, tokens))
            row += length
        return tuple(images)

    @property
    def can_cut(self) -> bool:
        """Whether an image has more tokens than one."""
        return max(height * width for height, width in self.shapes) > 1

    @property
    def documents(self) -> Mapping[int, Sequence[tuple[int, Shape]]]:
        """The rows and shapes of images by the length of their document."""
        a, b, c = self.shapes
        first, second, third = (shape[0] * shape[1] for shape in self.shapes)
        if self.cuts:
            return {1 + max(third // 2, 1): [(1, c)], second + 2: [(1, b)]}
        start = 0 if self.starts_with_image else 1
        return {
            first + 1 + start: [(start, a)],
            second + 2: [(1, b)],
            third + 3: [(2, c)],
            first + third + 4: [(1, a), (first + 3, c)],
        }

    @property
    def layouts(self) -> tuple[Lengths, ...]:
        """Packs of such documents: with text and without, in several orders, and with single tokens between them."""
        lengths = tuple(self.documents)
        text = next(n for n in range(3, 100) if n not in lengths)
        if self.cuts:
            cut, whole = lengths
            return (whole, cut), (text, cut)
        first, second, third, both = lengths
        return (both, text, third, first, text), (second, first, 1, 1, second)
