"""The problems that a submission is timed at: sizes and layouts drawn once it is fixed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from packproof.base.names import short_dtype
from packproof.bench.kernels import Setting, setting
from packproof.harness.check.targets import CheckTarget
from packproof.properties.cases import Domain, Sample, draw, shorten
from packproof.properties.contracts import Contract

_TOKENS = {"cpu": (512, 1024), "cuda": (32_768, 65_536)}  # least and most
_LONGEST_SHORT = 96  # tokens of the sequences that are compared with the reference
_FACTORS = (1, 1, 2, 3)  # of one size
_WITHOUT_SLACK = Domain.of("slack == 0")


@dataclass(frozen=True)
class Problem:
    """One call to time."""

    setting: Setting
    """Sizes, optional inputs and options."""
    lengths: tuple[int, ...]
    """The layout."""
    dtype: str
    """Of the tokens, by its long name."""
    sample: Sample
    """The tensors."""

    def __str__(self) -> str:
        lengths = f"{len(self.lengths)} sequences of {shorten(self.lengths)} tokens"
        return f"{lengths}, {self.setting}, {short_dtype(self.dtype)}"


def draw_problems(target: CheckTarget, contract: Contract, seed: int, count: int) -> Iterator[Problem]:
    """Problems inside the contract; fewer where none of a drawn layout is in its domain, none of an op with a pool."""
    op, device = target.op, target.request.device
    if op.pool:
        return
    generator = random.Random(seed)
    base = _within(setting(op, device, {}, None), contract)
    for number in range(count):
        dtype = target.dtypes[generator.randrange(len(target.dtypes))]
        space = target.space(dtype)
        space = replace(space, domain=space.domain & _WITHOUT_SLACK)
        sizes = replace(space, op=replace(op, sizes=(_drawn_sizes(base, generator),))).plain_sizes
        lengths = _drawn_lengths(generator, *_TOKENS[device])
        if not sizes:
            continue
        drawn_setting = replace(base, sizes=sizes[0])
        case = drawn_setting.case(lengths, dtype, seed + number)
        nearest = space.fit(case)
        if nearest is None or not nearest.n_tokens or nearest.key_lengths:
            continue
        fitted = replace(
            drawn_setting, sizes=dict(nearest.sizes), present=nearest.present, options=dict(nearest.options)
        )
        yield Problem(fitted, nearest.lengths, dtype, draw(op, nearest))


def _within(usual: Setting, contract: Contract) -> Setting:
    """The usual setting without the optional inputs and options that a kernel may lack."""
    return replace(
        usual,
        present=tuple(name for name in usual.present if name in contract.takes),
        options={name: value for name, value in usual.options.items() if name in contract.takes},
    )


def _drawn_sizes(usual: Setting, generator: random.Random) -> dict[str, int | str]:
    """The usual sizes, one of them perhaps larger."""
    numbers = [axis for axis, n in usual.sizes.items() if isinstance(n, int)]
    axis, factor = generator.choice(numbers or [""]), generator.choice(_FACTORS)
    return {name: n * factor if name == axis and isinstance(n, int) else n for name, n in usual.sizes.items()}


def _drawn_lengths(generator: random.Random, least: int, most: int) -> tuple[int, ...]:
    """Lengths of a short sequence, then another one, an empty one, and longer ones of some size, in some order.

    Where a budget grows with the tokens before, the first sequence alone is compared after the last timed call.
    """
    remaining = generator.randint(least, most)
    first, other = (generator.randint(1, _LONGEST_SHORT) for _ in range(2))
    lengths = [0, other]
    longest = generator.choice([remaining // 8, remaining // 3, remaining])
    while remaining > 0:
        length = min(generator.randint(max(longest // 4, 1), longest), remaining)
        lengths.append(length)
        remaining -= length
    generator.shuffle(lengths)
    return (first, *lengths)
