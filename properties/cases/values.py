"""How the values of a sample are drawn, by the word that an op has for an input, and by regime."""

import math

import torch
from torch import Tensor

from packproof.properties.cases.case import STRONG_GATES

_DISTINCT = 3840
_STRENGTHS = (1e4, 1e9, 1e20)
STRONGEST = 1.6e38  # in fp32 the sum of two or three is -inf


def distinct(size: tuple[int, ...], g: torch.Generator) -> Tensor:
    """Numbers of seven bits between 2^-7 and 2^8, and below zero: 3,840 that differ in every dtype, in each column."""
    rank = torch.rand(size, generator=g, dtype=torch.float64).argsort(0).argsort(0)
    place = (rank * _DISTINCT) // max(size[0], 1) - _DISTINCT // 2
    octave, part = (2 * place.abs() + (place < 0)) // 2 // 128, place.abs() % 128
    return torch.where(place < 0, -1.0, 1.0) * torch.pow(2.0, octave - 7.0) * (1 + part / 128)


def decay(size: tuple[int, ...], g: torch.Generator, regime: str, *, tokens: bool) -> Tensor:
    """Rates below 0; under long decay slower by 10 to 1,000: some lose a part over a chunk, others nothing.

    tokens: each token has its own, so that under hard decay three in ten nearly forget.
    """
    if regime == STRONG_GATES:
        return strong_decay(size, g, _STRENGTHS[-1], tokens=tokens)
    rate = -(0.1 + 0.9 * torch.rand(size, generator=g, dtype=torch.float64))
    if regime == "long decay":
        return rate * 10 ** -(1 + 2 * torch.rand(size, generator=g, dtype=torch.float64))
    if regime == "hard decay" and tokens:
        return rate * torch.where(torch.rand(size, generator=g, dtype=torch.float64) < 0.3, 60, 0.06)
    return rate * 60 if regime == "hard decay" else rate


def strong_decay(size: tuple[int, ...], g: torch.Generator, strongest: float, *, tokens: bool) -> Tensor:
    """Rates below 0, of which one token's in five is so strong that it forgets all, or four of five without tokens.

    The strong ones of a channel are alike, so that none hides what a weaker one does; neighbours have others.
    """
    rate = decay(size, g, "normal", tokens=tokens)
    strengths = torch.tensor((*_STRENGTHS, strongest, *(() if tokens else (0.0,))), dtype=torch.float64)
    channels = size[1:] if tokens else size
    begin = int(torch.randint(len(strengths), (1,), generator=g))
    strength = strengths[(begin + torch.arange(math.prod(channels))) % len(strengths)].view(channels)
    strong = torch.rand(size, generator=g, dtype=torch.float64) < 0.2 if tokens else strength > 0
    return torch.where(strong, (rate - 1) * strength, rate)


def fitting_strong_rates(size: tuple[int, ...], g: torch.Generator) -> Tensor:
    """Factors by which some strong rates become ordinary ones; a rate that none fits forgets all, or nothing."""
    strengths = torch.tensor((1.0, *_STRENGTHS), dtype=torch.float64)
    return 1 / strengths[torch.randint(len(strengths), size, generator=g)]


def share(size: tuple[int, ...], g: torch.Generator, regime: str) -> Tensor:
    """Shares of a memory that a token replaces: 0, 1 or 2 of it in three tokens of ten. Under long decay a thousandth
    to a tenth, since what is replaced is forgotten."""
    part, which = torch.rand(2, *size, generator=g, dtype=torch.float64).unbind()
    if regime == "long decay":
        return torch.pow(10.0, -(1 + 2 * part))
    return torch.where(which < 0.3, (10 * which).floor(), part)


def with_length(x: Tensor, g: torch.Generator, regime: str) -> Tensor:
    """The vectors along the last axis with length 1; in the wide regime with lengths from 0.25 to 1.25."""
    length = 0.25 + torch.rand(*x.shape[:-1], 1, generator=g, dtype=torch.float64)
    unit: Tensor = x / x.norm(dim=-1, keepdim=True)
    return length * unit if regime == "wide" else unit


def step(size: tuple[int, ...], g: torch.Generator, regime: str, *, tokens: bool) -> Tensor:
    """Time steps; under hard decay three in ten tokens nearly forget, the others nearly keep everything. Under strong
    gates most are as small as rates are large, and what is added to all steps is nearly nothing."""
    step = 0.05 + 0.95 * torch.rand(size, generator=g, dtype=torch.float64)
    forget = torch.rand(size, generator=g, dtype=torch.float64) < 0.3
    if regime == STRONG_GATES:
        return step * (fitting_strong_rates(size, g) if tokens else 1 / _STRENGTHS[-1])
    return torch.where(forget, step, step * 1e-3) if regime == "hard decay" and tokens else step


def with_large_steps(x: Tensor, g: torch.Generator) -> Tensor:
    """One token in four has a step so large that softplus is its argument, up to where exp ends in float32."""
    share, large = torch.rand(2, *x.shape, generator=g, dtype=torch.float64)
    return torch.where(share < 0.25, 20 + 80 * large, x)


def wide(size: tuple[int, ...], g: torch.Generator, dtype: str) -> Tensor:
    """A factor per token from 1e-3 to 1e3 (1e-1 to 1e1 in float16, which ends at 65,504)."""
    decades = 1.0 if dtype == "float16" else 3.0
    per_token = torch.rand(size[:1] + (1,) * (len(size) - 1), generator=g, dtype=torch.float64)
    return torch.pow(10.0, decades * (2 * per_token - 1))
