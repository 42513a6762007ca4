"""Where the documents of a row begin: offsets, numbers of documents, positions and a numbered mask agree with them."""

from collections.abc import Iterator, Sequence
from operator import sub

import torch

from packproof.base.wording import plural
from packproof.packers.collations import LONGEST, NUMBERS, OFFSETS, Collation, excerpt


def boundaries(collation: Collation) -> Iterator[str]:
    """Offsets, numbers of documents, positions and the longest length agree with the documents."""
    mask = numbered_mask(collation)
    judges = [
        *(_offsets(collation, name) for name in OFFSETS if collation.has(name)),
        *(_slots(collation, name) for name in OFFSETS if collation.has(name) and collation.has(f"{name}_padded")),
        *(_numbers(collation, name, collation.row(name) or []) for name in NUMBERS if collation.has(name)),
        *(_positions(collation, axis) for axis in range(len(collation.positions()))),
        *([_numbers(collation, "attention_mask", mask)] if mask else []),
    ]
    if not judges and len(collation.starts) > 1:
        names = ", ".join(name for name in map(str, collation.batch) if collation.has(name))
        yield f"the batch has {names}: nothing says where documents begin; expected one of {', '.join(OFFSETS[:1])}, "
        yield f"{NUMBERS[0]} and position_ids"
    for judge in (*judges, _longest(collation)):
        for line in judge:
            yield line
            return


def numbered_mask(collation: Collation) -> list[int] | None:
    """An attention mask with the numbers of documents, from 1, and 0 in padding; None for one of 0 and 1 alone."""
    mask = collation.mask()
    return mask if mask and max(mask) > 1 else None


def _offsets(collation: Collation, name: str) -> Iterator[str]:
    values = torch.as_tensor(collation.batch[name]).flatten().tolist()
    total = len(collation.tokens)
    expected = list(dict.fromkeys(collation.offsets))
    distinct = list(dict.fromkeys(values))
    if distinct not in (expected, list(dict.fromkeys([*expected, collation.rows]))) or values != sorted(values):
        yield f"{name} is {excerpt(values)}; expected {excerpt(expected)}"
    elif total < collation.rows and distinct[-1] == collation.rows and len(values) == len(distinct) == len(expected):
        yield f"{name} ends at {collation.rows}, with the padding in the last document, which ends at {total}"


def _slots(collation: Collation, name: str) -> Iterator[str]:
    """The offsets of rows with their padding, beside those of tokens: one for each, with room for its tokens."""
    offsets, padded = (torch.as_tensor(collation.batch[key]).flatten().tolist() for key in (name, f"{name}_padded"))
    if len(padded) != len(offsets):
        yield f"{name}_padded has {plural(len(padded), 'offset')}, {name} {len(offsets)}: kernels read them in pairs"
        return
    for j, (tokens, rows) in enumerate(zip(map(sub, offsets[1:], offsets), map(sub, padded[1:], padded), strict=True)):
        if rows < tokens:
            yield f"{name}_padded has {plural(rows, 'row')} for sequence {j}, which has {plural(tokens, 'token')}"
            return


def _numbers(collation: Collation, name: str, numbers: Sequence[int]) -> Iterator[str]:
    starts = {*collation.starts, *([len(collation.tokens)] if len(collation.tokens) < len(numbers) else [])}
    for row in range(1, len(numbers)):
        is_change, is_start = numbers[row] != numbers[row - 1], row in starts
        if is_change != is_start and not (is_change and row > len(collation.tokens)):
            reason = "padding begins" if row == len(collation.tokens) else "a document begins"
            yield (
                f"{name} changes in row {row}, where no document begins"
                if is_change
                else f"{name} is {numbers[row]} in rows {row - 1} and {row}, where {reason}"
            )
            return
    if name in NUMBERS and any(number < 0 for number in numbers[: len(collation.tokens)]):
        yield f"{name} is {numbers[0]} in row 0, a token: kernels take a negative number for padding"


def _positions(collation: Collation, axis: int) -> Iterator[str]:
    axes = collation.positions()
    name = "position_ids" + (f", axis {axis}," if len(axes) > 1 else "")
    for start, piece in zip(collation.offsets, collation.pieces, strict=False):
        rows = axes[axis][start : start + len(piece)]
        first = piece.start if rows and rows[0] == piece.start else 0  # a piece goes on, or begins at 0 again
        for k, actual in enumerate(rows):
            if actual != first + k:
                place_text = "" if k else ", where a document begins"
                yield f"{name} is {actual} in row {start + k}{place_text}; expected {first + k}"
                return


def _longest(collation: Collation) -> Iterator[str]:
    for name in LONGEST:
        if collation.has(name):
            value = int(collation.batch[name])
            if not collation.longest <= value <= max(collation.rows, collation.longest):
                yield f"{name} is {value}; expected {collation.longest}, the longest document"
                return
