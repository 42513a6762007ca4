"""Distributions of a sample's values, by the op's word for an input (`Op.draws`) and by regime."""

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from packproof.properties.cases.case import HARD_DECAY, STRONG_GATES
from packproof.refs.groups.formats import FORMATS, round_to_element

_DISTINCT_VALUES = 3840
_STRENGTHS = (1e4, 1e9, 1e20)
STRONGEST = 1.6e38  # in fp32 the sum of two or three is -inf


def distinct_values(size: tuple[int, ...], g: torch.Generator) -> Tensor:
    """3,840 numbers, different in every dtype: seven bits, from 2^-7 to 2^8, of both signs.

    They differ throughout a tensor of as many elements, so that a choice among its columns is unique too. In a larger
    one they differ within each row and each column, as far as there are enough of them.
    """
    n = math.prod(size)
    if n <= _DISTINCT_VALUES:
        number = torch.rand(n, generator=g, dtype=torch.float64).argsort().argsort() * _DISTINCT_VALUES // max(n, 1)
    else:
        number = _latin_squares(size[0], math.prod(size[1:]), g)
    signed_rank = number.reshape(size) - _DISTINCT_VALUES // 2
    octave, mantissa = (2 * signed_rank.abs() + (signed_rank < 0)) // 2 // 128, signed_rank.abs() % 128
    return torch.where(signed_rank < 0, -1.0, 1.0) * torch.pow(2.0, octave - 7.0) * (1 + mantissa / 128)


def _latin_squares(rows: int, columns: int, g: torch.Generator) -> Tensor:
    """Numbers below 3,840. None is twice in a row or a column of a square of 3,840 rows and columns.

    Each column of a square is a permutation, the same for all but for where it begins.
    """
    n = _DISTINCT_VALUES
    row, column = torch.arange(rows)[:, None], torch.arange(columns)
    permutations = torch.rand(rows // n + 1, columns // n + 1, n, generator=g).argsort(-1)
    starts = torch.randperm(n, generator=g)[column % n]
    return permutations[row // n, column // n, (row + starts) % n]


def octaves(size: tuple[int, ...], g: torch.Generator) -> Tensor:
    """Normal numbers times a power of two from 2^-6 to 2^6, one for each 8 channels of a row."""
    runs = torch.randint(-6, 7, (*size[:-1], -(-size[-1] // 8)), generator=g)
    exponents = runs.repeat_interleave(8, -1)[..., : size[-1]]
    return torch.ldexp(torch.randn(size, generator=g, dtype=torch.float64), exponents)


def element(size: tuple[int, ...], g: torch.Generator, block_format: str) -> Tensor:
    """Numbers of a format's elements."""
    return round_to_element(2 * torch.randn(size, generator=g, dtype=torch.float64), FORMATS[block_format].element)


def scale(size: tuple[int, ...], g: torch.Generator, block_format: str) -> Tensor:
    """Scales of a format, from 2^-6 to 2^2: powers of two, with 3 bits of mantissa, or with those of fp32."""
    powers, fractions = torch.randint(-6, 2, size, generator=g), torch.rand(size, generator=g, dtype=torch.float64)
    kind = FORMATS[block_format].scale
    mantissas = {"e4m3": (8 * fractions).floor() / 8, "fp32": fractions}.get(kind, 0 * fractions)
    return torch.ldexp((1 + mantissas).float().double(), powers)


def decay(size: tuple[int, ...], g: torch.Generator, regime: str, *, tokens: bool) -> Tensor:
    """Decay rates below 0. Under long decay 10 to 1,000 times slower: some lose a part over a chunk, others nothing.

    tokens: each token has its own rate; under hard decay three in ten tokens nearly forget.
    """
    if regime == STRONG_GATES:
        return strong_decay(size, g, _STRENGTHS[-1], tokens=tokens)
    rate = -(0.1 + 0.9 * torch.rand(size, generator=g, dtype=torch.float64))
    if regime == "long decay":
        return rate * 10 ** -(1 + 2 * torch.rand(size, generator=g, dtype=torch.float64))
    if regime == HARD_DECAY and tokens:
        return rate * torch.where(torch.rand(size, generator=g, dtype=torch.float64) < 0.3, 60, 0.06)
    return rate * 60 if regime == HARD_DECAY else rate


def strong_decay(size: tuple[int, ...], g: torch.Generator, strongest: float, *, tokens: bool) -> Tensor:
    """Decay rates below 0, some so strong that all is forgotten: of one token in five, or four of five without tokens.

    The strong rates of a channel have one strength, so that none hides the effect of a weaker one. Neighbouring
    channels have other strengths.
    """
    rate = decay(size, g, "normal", tokens=tokens)
    strengths = torch.tensor((*_STRENGTHS, strongest, *(() if tokens else (0.0,))), dtype=torch.float64)
    channels = size[1:] if tokens else size
    first_strength = int(torch.randint(len(strengths), (1,), generator=g))
    strength = strengths[(first_strength + torch.arange(math.prod(channels))) % len(strengths)].view(channels)
    is_strong = torch.rand(size, generator=g, dtype=torch.float64) < 0.2 if tokens else strength > 0
    return torch.where(is_strong, (rate - 1) * strength, rate)


def fitting_strong_rates(size: tuple[int, ...], g: torch.Generator) -> Tensor:
    """Factors that turn some strong rates into ordinary ones. With another factor a rate forgets all or nothing."""
    strengths = torch.tensor((1.0, *_STRENGTHS), dtype=torch.float64)
    return 1 / strengths[torch.randint(len(strengths), size, generator=g)]


def share(size: tuple[int, ...], g: torch.Generator, regime: str) -> Tensor:
    """The share of the memory replaced by each token: 0, 1 or 2 in three tokens of ten, else between 0 and 1.

    Under long decay a thousandth to a tenth, since a replaced memory is forgotten.
    """
    fraction, selector = torch.rand(2, *size, generator=g, dtype=torch.float64).unbind()
    if regime == "long decay":
        return torch.pow(10.0, -(1 + 2 * fraction))
    return torch.where(selector < 0.3, (10 * selector).floor(), fraction)


def with_unit_length(x: Tensor, g: torch.Generator, regime: str) -> Tensor:
    """The vectors along the last axis with length 1; in the wide regime with lengths from 0.25 to 1.25."""
    length = 0.25 + torch.rand(*x.shape[:-1], 1, generator=g, dtype=torch.float64)
    unit: Tensor = x / x.norm(dim=-1, keepdim=True)
    return length * unit if regime == "wide" else unit


def step(size: tuple[int, ...], g: torch.Generator, regime: str, *, tokens: bool) -> Tensor:
    """Time steps. Under hard decay three in ten tokens nearly forget, the others keep nearly everything.

    Under strong gates most steps are as small as rates are large, and a bias added to all steps is nearly zero.
    """
    steps = 0.05 + 0.95 * torch.rand(size, generator=g, dtype=torch.float64)
    forgets = torch.rand(size, generator=g, dtype=torch.float64) < 0.3
    if regime == STRONG_GATES:
        return steps * (fitting_strong_rates(size, g) if tokens else 1 / _STRENGTHS[-1])
    return torch.where(forgets, steps, steps * 1e-3) if regime == HARD_DECAY and tokens else steps


def with_large_steps(x: Tensor, g: torch.Generator) -> Tensor:
    """Steps with one token in four so large that softplus returns its argument; up to 100, where exp overflows fp32."""
    selector, large_part = torch.rand(2, *x.shape, generator=g, dtype=torch.float64)
    return torch.where(selector < 0.25, 20 + 80 * large_part, x)


def wide_factors(size: tuple[int, ...], g: torch.Generator, dtype: str) -> Tensor:
    """A factor per token from 1e-3 to 1e3 (1e-1 to 1e1 in float16, which ends at 65,504)."""
    decades = 1.0 if dtype == "float16" else 3.0
    per_token = torch.rand(size[:1] + (1,) * (len(size) - 1), generator=g, dtype=torch.float64)
    return torch.pow(10.0, decades * (2 * per_token - 1))


def token_ids(lengths: Sequence[int], slack: int, n: int, g: torch.Generator, seed: int) -> Tensor:
    """Token ids, with both ends of the vocabulary at the first and last token of the pack, in an order by the seed.

    With each fourth seed the first token of a sequence is the last one before it: labels are equal on both sides of a
    boundary.
    """
    ids, ends = torch.randint(n, (sum(lengths) + slack,), generator=g), (0, n - 1)
    ids[:1] = ends[seed % 2]
    ids[sum(lengths) - 1 : sum(lengths)] = ends[1 - seed % 2]
    if seed % 4 == 3:
        for start in list(accumulate(lengths))[:-1]:
            if 0 < start < len(ids):
                ids[start] = ids[start - 1]
    return ids


def tokens_that_count(lengths: Sequence[int], slack: int, g: torch.Generator, seed: int) -> Tensor:
    """The tokens that count, by the seed: all; all but the first ones of each sequence, as those of a prompt; the same
    without one whole sequence of several; about half. Rows of slack never count, and the last token of a pack does.
    """
    pattern = seed % 4
    counts = torch.rand(sum(lengths), generator=g) < (0.5 if pattern == 3 else 1.0)
    if pattern in (1, 2):
        starts = [0, *accumulate(lengths)]
        for start, n in zip(starts, lengths, strict=False):
            counts[start : start + int(torch.randint(n // 2 + 1, (1,), generator=g))] = False
        with_tokens = [j for j, n in enumerate(lengths) if n]
        if pattern == 2 and len(with_tokens) > 1:
            j = with_tokens[int(torch.randint(len(with_tokens), (1,), generator=g))]
            counts[starts[j] : starts[j] + lengths[j]] = False
    elif pattern == 3:
        counts[-1:] = True
    return torch.cat([counts, counts.new_zeros(slack)])


def splits(lengths: Sequence[int], g: torch.Generator, seed: int) -> Tensor:
    """How many tokens of each sequence lie before a boundary inside of it, by the seed: half of them; all or none; any
    number with the other seeds.
    """
    n, pattern = torch.tensor(lengths, dtype=torch.int64), seed % 4
    if pattern == 0:
        return n // 2
    part = torch.rand(len(lengths), generator=g)
    return n * (part < 0.5) if pattern == 2 else (part * (n + 1)).long()
