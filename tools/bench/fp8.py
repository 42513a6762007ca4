"""`packproof bench fp8`: the error of attention with 8-bit operands, with and without incoherent processing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packproof import refs
from packproof.refs.low_precision import BLOCK

FP8_TOKENS = 16384
QUERIES = 256  # the last of the sequence: each sees nearly all of it
HEADS, CHANNELS = 4, 128
_OUTLIERS, _DEVIATION = 0.001, 10.0  # N(0, 1) + N(0, 100) Bernoulli(0.001), as FlashAttention-3 draws them

Draw = Callable[[tuple[int, ...], torch.Generator], Tensor]


@dataclass(frozen=True)
class ErrorRow:
    """Relative errors (of the norm, over all heads) against attention of the same inputs in float64."""

    inputs: str
    """The distribution of the inputs."""
    naive: float
    """The error without incoherent processing."""
    incoherent: float
    """The error with incoherent processing."""

    @property
    def ratio(self) -> float:
        """The factor by which incoherent processing reduces the error."""
        return self.naive / self.incoherent


def gaussian(shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=g, dtype=torch.float64)


def with_outliers(shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    """One element in a thousand has 10 times the standard deviation."""
    is_outlier = torch.rand(shape, generator=g, dtype=torch.float64) < _OUTLIERS
    return gaussian(shape, g) + torch.where(is_outlier, _DEVIATION * gaussian(shape, g), 0)


def with_large_tokens(shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    """One token in a thousand is three times as large, in all channels alike."""
    is_large = torch.rand((*shape[:2], 1), generator=g, dtype=torch.float64) < _OUTLIERS
    return gaussian(shape, g) * torch.where(is_large, 3.0, 1.0)


def sign_values(shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    """1 or -1. e4m3 represents both exactly, but not their mixture after incoherent processing."""
    return gaussian(shape, g).sign()


# how queries and keys are drawn, and how values are
INPUTS: dict[str, tuple[Draw, Draw]] = {
    "N(0, 1)": (gaussian, gaussian),
    "0.1 % outliers": (with_outliers, with_outliers),
    "0.1 % large tokens": (with_large_tokens, gaussian),
    "q and k of 1 and -1": (sign_values, gaussian),
}


def measure_errors(tokens: int = FP8_TOKENS, seed: int = 0) -> Iterator[ErrorRow]:
    """A row for each distribution of inputs, over the last queries of one causal sequence."""
    queries = min(QUERIES, tokens)
    pack: dict[str, Any] = {
        "cu_seqlens": torch.tensor([0, queries]),
        "cu_seqlens_k": torch.tensor([0, tokens]),
        "causal": True,
    }
    signs = refs.random_signs(CHANNELS, seed=seed)
    for name, (draw, draw_values) in INPUTS.items():
        g = torch.Generator().manual_seed(seed)
        squared_norms = torch.zeros(3, dtype=torch.float64)
        for _ in range(HEADS):  # one after another, which takes less memory
            q, k, v = (
                draw_input((n, 1, CHANNELS), g)
                for draw_input, n in ((draw, queries), (draw, tokens), (draw_values, tokens))
            )
            exact = refs.attention(q, k, v, **pack)
            naive = refs.attention_fp8_naive(q, k, v, **pack)
            incoherent = refs.attention_fp8(q, k, v, signs=signs, **pack)
            squared_norms += torch.stack([x.square().sum() for x in (exact, naive - exact, incoherent - exact)])
        exact, naive, incoherent = squared_norms.sqrt().tolist()
        yield ErrorRow(name, naive / exact, incoherent / exact)


def fp8_error_lines(tokens: int = FP8_TOKENS, seed: int = 0) -> Iterator[str]:
    """The rows as lines of text."""
    yield f"e4m3 q, k and v in blocks of {BLOCK} tokens; {tokens:,} tokens, {HEADS} heads of {CHANNELS}"
    yield ""
    yield f"{'inputs':<28}{'plain':>10}{'incoherent':>13}{'times better':>15}"
    for row in measure_errors(tokens, seed):
        yield f"{row.inputs:<28}{row.naive:>10.2%}{row.incoherent:>13.2%}{row.ratio:>15.2f}"
