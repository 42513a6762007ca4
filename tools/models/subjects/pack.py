"""Documents side by side in one row: their lengths, and the tensors of their boundaries."""

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from packproof.properties.declarations import source_constants

Lengths = tuple[int, ...]
PADDING = -1  # the document of a padding row
FIRST_LENGTHS: Lengths = (5, 9, 7)  # 21 tokens: a number that is rarely the size of another axis
_CHUNKS = ("chunk_size", "mamba_chunk_size", "attention_chunk_size", "block_size")
_WINDOWS = ("sliding_window", "attention_window_size", "local_window_size")
_WIDTHS = (
    *("d_conv", "mamba_d_conv", "conv_kernel", "conv_kernel_size"),
    *("conv_L_cache", "linear_conv_kernel_dim", "short_conv_kernel_size"),
)
_LENGTHS = ("original_max_position_embeddings",)
_NESTED = ("rope_scaling", "rope_parameters")  # of a config: they have such numbers too
_STEP = 4  # the time of a long layout follows from that of one a quarter as long
_LARGEST_CONSTANT = 1 << 40  # no layout is as long
_MANY_COUNTS = (258, 20)  # documents: more than a byte can count, and a number for few tokens


@dataclass(frozen=True)
class Image:
    """An image in a row of tokens."""

    start: int
    """Its first row."""
    height: int
    """In tokens."""
    width: int
    """In tokens."""
    rows: int
    """Its rows in the pack: fewer than height * width where the end of the pack cuts it."""

    @property
    def tokens(self) -> int:
        return self.height * self.width


@dataclass(frozen=True)
class Pack:
    """A layout of documents on a device."""

    lengths: Lengths
    """Tokens of each document."""
    device: str = "cpu"
    """The device of the module under test."""
    dtype: torch.dtype = torch.float32
    """The dtype of the module under test."""
    gaps: tuple[int, ...] = ()
    """Rows of padding before each document and after the last one; () for none."""
    images: tuple[Image, ...] = ()
    """The images of its documents, in the order of their rows."""

    @property
    def tokens(self) -> int:
        """The number of rows, padding included."""
        return sum(self.lengths) + sum(self.gaps)

    @cached_property
    def offsets(self) -> Tensor:
        """int64 (s + 1,), on the CPU, of documents without padding between them."""
        return torch.tensor([0, *self.lengths]).cumsum(0)

    @cached_property
    def document(self) -> Tensor:
        """int64 (t,): the document of each token, PADDING outside of every document."""
        documents = torch.full((self.tokens,), PADDING)
        for number in range(len(self.lengths)):
            documents[self.rows(number)] = number
        return documents.to(self.device)

    @cached_property
    def position(self) -> Tensor:
        """int64 (t,): the position of each token in its document, 0 in padding."""
        positions = torch.zeros(self.tokens, dtype=torch.int64)
        for number, length in enumerate(self.lengths):
            positions[self.rows(number)] = torch.arange(length)
        return positions.to(self.device)

    @cached_property
    def sees(self) -> Tensor:
        """bool (t, t): whether the query of a row may see the key of a column: causal, inside one document."""
        same_document = self.document[:, None] == self.document[None, :]
        return same_document & torch.ones_like(same_document).tril()

    def rows(self, document: int) -> slice:
        start = sum(self.lengths[:document]) + sum(self.gaps[: document + 1])
        return slice(start, start + self.lengths[document])

    def single_document(self, document: int) -> "Pack":
        """A pack with only this document."""
        rows = self.rows(document)
        images = tuple(replace(i, start=i.start - rows.start) for i in self.images if rows.start <= i.start < rows.stop)
        return Pack((self.lengths[document],), self.device, self.dtype, images=images)

    def without_boundaries(self) -> "Pack":
        """A pack of one document with as many tokens, and the same images."""
        return Pack((self.tokens,), self.device, self.dtype, images=self.images)


def cumulative_lengths(lengths: Sequence[int], dtype: torch.dtype, device: str) -> Tensor:
    """The offsets of these lengths, (s + 1,)."""
    return torch.tensor([0, *lengths]).cumsum(0).to(device=device, dtype=dtype)


@dataclass(frozen=True)
class ModuleSizes:
    """The numbers of a module that layouts are made for: of itself, its parts and its config."""

    widths: tuple[int, ...]
    """Of convolutions."""
    blocks: tuple[int, ...]
    """Chunks and windows, sorted, each once; 16 if it names none."""
    config_lengths: tuple[int, ...]
    """Chunks, windows and lengths, as the config has them."""
    constants: tuple[int, ...]
    """The integers in its own source and in that of its parts."""

    @classmethod
    def of(cls, module: nn.Module) -> "ModuleSizes":
        return cls(
            tuple(_sizes(module, _WIDTHS)),
            tuple(sorted(set(_sizes(module, _CHUNKS + _WINDOWS)) or {16})),
            tuple(_sizes(module, _CHUNKS + _WINDOWS + _LENGTHS)),
            tuple(sorted({n for n in _own_constants(module) if abs(n) <= _LARGEST_CONSTANT})),
        )


def layouts_for(sizes: ModuleSizes, *, most_tokens: int) -> list[Lengths]:
    """Lengths of documents around the chunk sizes, windows and convolution widths of a module or its config.

    The last ones go past the two largest numbers of the module's own source that such a pack may have.

    Every length is at least one. Small layouts come first.
    """
    width = max(sizes.widths, default=4)
    candidates = [(1, max(width - 2, 1), width - 1 or 1, width, width + 1, 2), (1, 1, 1, 2)]
    for size in sizes.blocks:
        candidates += [(size, size, 1), (size - 1 or 1, 1, size + 1), (3, 2 * size + 1, 2)]
    candidates += [(3, n + 1, 2) for n in [n for n in sizes.constants if 1 < n <= most_tokens - 6][-2:]]
    return list(dict.fromkeys([FIRST_LENGTHS, *(lengths for lengths in candidates if sum(lengths) <= most_tokens)]))


def long_layouts(sizes: ModuleSizes, least_tokens: int, most_tokens: int) -> tuple[Lengths, ...]:
    """One long document beside short ones: past each number of a module's config or of its own source in this range.

    Of the source the largest two numbers count. Shorter layouts come between, as far as they are needed to tell how
    long the next one takes.
    """
    in_range = range(least_tokens - 5, most_tokens - 5)
    own_constants = sorted(n for n in set(sizes.constants) if n in in_range)[-2:]
    of_config = [n for n in sizes.config_lengths if n in in_range]
    layouts = [(3, n + 1, 2) for n in sorted({*of_config, *own_constants})]
    steps: list[Lengths] = []
    tokens = least_tokens
    for layout in layouts:
        while _STEP * tokens < sum(layout):
            tokens *= _STEP
            steps.append((3, tokens - 5, 2))
        tokens = sum(layout)
    return tuple(sorted({*layouts, *steps}, key=sum))


def _own_constants(module: nn.Module) -> Iterator[int]:
    """The integers in the source of a module and its parts, unless they are of an installed package."""
    for part in {type(part): part for part in module.modules()}.values():
        file = getattr(sys.modules.get(type(part).__module__), "__file__", None) or ""
        if "site-packages" not in Path(file).parts:
            yield from source_constants(part)


def many_documents(most_tokens: int) -> Lengths:
    """More documents of one token each than a small counter can hold."""
    return (1,) * next(count for count in _MANY_COUNTS if count <= most_tokens)


def padded_layouts(sizes: ModuleSizes, *, between_documents: bool) -> list[tuple[Lengths, tuple[int, ...]]]:
    """Lengths of documents, and the rows of padding around them.

    between_documents: pad between documents too, not only past the last one.
    """
    block = min(sizes.blocks[0], 64)
    if between_documents:
        return [(FIRST_LENGTHS, (0, 2, 0, 3)), ((5, 9), (1, 3, 0)), ((1, 1), (0, 1, block))]
    return [(FIRST_LENGTHS, (0, 0, 0, 3)), ((1, 4), (0, 0, 1)), ((5, 9), (0, 0, block + 1))]


def shrink_lengths(lengths: Lengths, leaks: Callable[[Lengths], bool]) -> Lengths:
    """The smallest layout that still leaks: the fewest tokens in two documents, then in three.

    Many documents of one token each shrink to fewer of them. Returns the lengths themselves if nothing smaller leaks.
    """
    sizes = sorted({1, 2, 3, 4, 5, *lengths})
    pairs = [*product(sizes, repeat=2), *product((1, 2, 4), repeat=3)]
    for candidate in sorted((p for p in pairs if sum(p) < sum(lengths)), key=lambda p: (sum(p), len(p), p)):
        if leaks(candidate):
            return candidate
    if len(lengths) > 3 and (set(lengths) == {1} or leaks((1,) * len(lengths))):
        return (1,) * bisect_left(range(len(lengths)), True, lo=4, key=lambda count: leaks((1,) * count))
    return lengths


def smaller_padded_layouts(
    lengths: Lengths, gaps: tuple[int, ...], *, between_documents: bool
) -> Iterator[tuple[Lengths, tuple[int, ...]]]:
    """Layouts with fewer rows than this one: one document and one row of padding first, then two documents."""
    end_padding = [((1,), (0, 1)), ((1, 1), (0, 0, 1)), ((2,), (0, 2)), ((4,), (0, 4))]
    padding_between = [((1,), (1, 0)), ((1, 1), (0, 1, 0)), ((2,), (2, 0)), ((2, 2), (0, 2, 0))]
    for pair in sorted(
        [*end_padding, *(padding_between if between_documents else ())], key=lambda pair: sum(pair[0]) + sum(pair[1])
    ):
        if sum(pair[0]) + sum(pair[1]) < sum(lengths) + sum(gaps):
            yield pair


def _sizes(module: nn.Module, names: tuple[str, ...]) -> list[int]:
    """The positive integers under these names in a module, its parts and its config."""
    sizes: list[int] = []
    config = getattr(module, "config", None)
    for part in (module, config, *(_entry(config, name) for name in _NESTED), *module.modules()):
        for name in names:
            value: Any = _entry(part, name)
            value = value[0] if isinstance(value, tuple | list) and value else value
            if type(value) is int and value > 0:
                sizes.append(value)
    return sizes


def _entry(owner: Any, name: str) -> Any:
    """An attribute of an object or an entry of a dictionary; None where there is none."""
    return owner.get(name) if isinstance(owner, dict) else getattr(owner, name, None)
