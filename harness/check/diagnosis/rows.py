"""The wrong rows of the pack, and whether they were never written."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from packproof.base.axes import role
from packproof.base.errors import KernelFault
from packproof.interpreter import is_poison
from packproof.properties.calling import Refusal, TensorKey
from packproof.properties.cases import Sample
from packproof.properties.judgement import Comparison, KernelUnderTest
from packproof.properties.laws import Violation

_SMALLEST_TILE, _LARGEST_TILE = 16, 256
_MAX_RUNS = 3  # of consecutive rows, named one by one


def wrong_rows(comparisons: Sequence[Comparison], scores: Sequence[Tensor]) -> tuple[int, ...]:
    """The rows of the pack with a wrong element; empty for a tensor without a row for each token.

    scores: the errors of the comparisons as multiples of the budget; of equal bits, any number above 0 is wrong.
    """
    rows = set[int]()
    for comparison, score in zip(comparisons, scores, strict=True):
        if role(comparison.rows.axes) == "token":
            is_wrong = (score > (0 if comparison.budget is None else 1)).reshape(len(score), -1).any(1)
            rows |= {comparison.start + row for row in torch.nonzero(is_wrong).flatten().tolist()}
    return tuple(sorted(rows))


class UnwrittenRows(NamedTuple):
    """The rows of a tensor that were never written."""

    numbers: tuple[int, ...]
    n_rows: int
    """Of the whole tensor."""
    kind: str
    """What has a row: "token", "sequence" or "shared" (`role`)."""


def unwritten_rows(kernel: KernelUnderTest, sample: Sample, violation: Violation) -> dict[TensorKey, UnwrittenRows]:
    """The rows of outputs and gradients that keep what fresh memory holds, of each tensor with such rows.

    Rows of a tensor without tokens count too. Empty if the violation is not of a tensor.
    """
    if violation.text or violation.tensor is None:
        return {}
    try:
        plain = kernel.cached_run(sample)
        guarded = kernel.run(sample, guard=True)
    except (KernelFault, Refusal):
        return {}
    rows = {
        key: UnwrittenRows(_poisoned_rows(x, plain[key]), len(x), role(sample.axes[key.name]))
        for key, x in guarded.items()
        if x.dim() and x.numel()
    }
    return {key: unwritten for key, unwritten in rows.items() if unwritten.numbers}


def _poisoned_rows(guarded: Tensor, plain: Tensor) -> tuple[int, ...]:
    is_poisoned = torch.as_tensor(is_poison(guarded)) | (guarded.isnan() & ~plain.isnan())
    return tuple(torch.nonzero(is_poisoned.reshape(len(guarded), -1).any(1)).flatten().tolist())


def wrong_rows_lines(violation: Violation, wrong: Sequence[int], n_rows: int) -> list[str]:
    """A line with the wrong rows of the pack; empty without rows, or where another run than this one is wrong.

    n_rows: of the pack, slack included.
    """
    is_of_this_run = violation.expected is None or not abs(violation.got - violation.expected) <= violation.allowed
    return [f"{violation.tensor} is wrong in {rows_text(wrong, n_rows)}"] if wrong and is_of_this_run else []


def unwritten_rows_line(tensor: TensorKey, unwritten: UnwrittenRows) -> str:
    numbers, n_rows, kind = unwritten
    rows = (
        rows_text(numbers, n_rows)
        if kind == "token"
        else _numbers_text("sequence" if kind == "sequence" else "row", numbers)
    )
    return f"{tensor} was never written in {rows}: it holds what its memory held before"


def _numbers_text(noun: str, numbers: Sequence[int]) -> str:
    shown = [
        *map(str, numbers[:_MAX_RUNS]),
        *([f"{len(numbers) - _MAX_RUNS} more"] if len(numbers) > _MAX_RUNS else []),
    ]
    text = " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
    return f"{noun}{'s' if len(numbers) > 1 else ''} {text}"


def rows_text(rows: Sequence[int], n_rows: int) -> str:
    """Rows of a pack in words, with the multiple of a tile at which they end or begin.

    >>> rows_text([61, 62, 63], 66)
    'rows 61 to 63 of the pack, just before row 64'
    >>> rows_text([64, 65], 66)
    'rows 64 to 65 of the pack, from a multiple of 64 on'
    """
    if len(rows) == n_rows:
        return f"all {n_rows} rows of the pack" if n_rows > 1 else "the only row of the pack"
    starts = [b for a, b in pairwise((-2, *rows)) if b != a + 1]
    ends = [a for a, b in pairwise((*rows, n_rows + 1)) if b != a + 1]
    runs = [f"{a} to {b}" if a < b else str(a) for a, b in zip(starts, ends, strict=True)]
    shown = [*runs[:_MAX_RUNS], *([f"{len(runs) - _MAX_RUNS} more places"] if len(runs) > _MAX_RUNS else [])]
    text = " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
    return f"row{'s' if len(rows) > 1 else ''} {text} of the pack{_tile_text(starts[0], ends[0], n_rows)}"


def _tile_text(first: int, last: int, n_rows: int) -> str:
    """The multiple of a tile just after these rows, or at their start."""
    if tile := _tile(last + 1):
        return f", just before row {last + 1}" if last + 1 < n_rows else f", up to a multiple of {tile}"
    tile = _tile(first)
    return f", from a multiple of {tile} on" if tile else ""


def _tile(row: int) -> int:
    """The largest power of two that divides a row, from 16 up to 256; 0 if there is none."""
    powers = (2**k for k in range(_LARGEST_TILE.bit_length() - 1, _SMALLEST_TILE.bit_length() - 2, -1))
    return next((power for power in powers if row and row % power == 0), 0)
