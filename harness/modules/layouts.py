"""Layouts of documents for a module: around the chunk sizes, windows and widths of convolutions that its config has."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from torch import nn

Lengths = tuple[int, ...]
_CHUNKS = ("chunk_size", "mamba_chunk_size", "attention_chunk_size", "block_size")
_WINDOWS = ("sliding_window", "attention_window_size", "local_window_size")
_WIDTHS = (
    *("d_conv", "mamba_d_conv", "conv_kernel", "conv_kernel_size"),
    *("conv_L_cache", "linear_conv_kernel_dim", "short_conv_kernel_size"),
)
FIRST: Lengths = (5, 9, 7)  # 21 tokens: the size of nothing else, as a rule


def layouts_for(module: nn.Module, *, most_tokens: int) -> list[Lengths]:
    """Lengths of documents, each at least one token: small ones first."""
    width = max(_sizes(module, _WIDTHS), default=4)
    around = [(1, max(width - 2, 1), width - 1 or 1, width, width + 1, 2), (1, 1, 1, 2)]
    for size in sorted(set(_sizes(module, _CHUNKS + _WINDOWS)) or {16}):
        around += [(size, size, 1), (size - 1 or 1, 1, size + 1), (3, 2 * size + 1, 2)]
    return list(dict.fromkeys([FIRST, *(lengths for lengths in around if sum(lengths) <= most_tokens)]))


def smaller(lengths: Lengths) -> Iterator[Lengths]:
    """Two documents, then three, that have fewer tokens than these, the fewest first."""
    sizes = sorted({1, 2, 3, 4, 5, *lengths})
    pairs = [*product(sizes, repeat=2), *product((1, 2, 4), repeat=3)]
    yield from sorted((p for p in pairs if sum(p) < sum(lengths)), key=lambda p: (sum(p), len(p), p))


def _sizes(module: nn.Module, names: tuple[str, ...]) -> list[int]:
    """The values of these names in a module, its parts and its config."""
    found: list[int] = []
    for part in (module, getattr(module, "config", None), *module.modules()):
        for name in names:
            value: Any = getattr(part, name, None)
            value = value[0] if isinstance(value, tuple | list) and value else value
            if type(value) is int and value > 0:
                found.append(value)
    return found
