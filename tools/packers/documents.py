"""Documents to be packed: their lengths, the capacity of a pack, and their tokens and labels."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from hypothesis import strategies as st

IGNORE_INDEX = -100
"""The label of a token without a loss, in torch's cross_entropy and in transformers."""
CAPACITIES = (10, 64, 100, 7, 1, 96, 1000)
"""Capacities of a pack: powers of two, and others, since trees over the capacity break there."""
_FIRST_ID = 5  # below are ids that a tokenizer may give to padding and separators
_MOST_OF_A_FULL_PACK = 100
_MANY = 200  # documents among which a packer's fill shows


@dataclass(frozen=True)
class DocumentCase:
    """Documents in order of arrival."""

    lengths: tuple[int, ...]
    """Tokens of each."""
    capacity: int
    """Rows of a pack."""
    labelled: bool = False
    """Whether they come with labels; the first half is ignored, like a prompt."""
    separators: tuple[int, ...] = ()
    """Ids that documents hold inside, such as the end of a turn."""

    @property
    def are_ordinary(self) -> bool:
        """Whether there are some, each has a token, and each fits into a pack."""
        return bool(self.lengths) and all(0 < n <= self.capacity for n in self.lengths)

    @property
    def has_longer(self) -> bool:
        """Whether one has more tokens than a pack has rows."""
        return any(n > self.capacity for n in self.lengths)

    @property
    def unusual(self) -> str:
        """What a packer may refuse about them; "" if they are ordinary."""
        if self.are_ordinary:
            return ""
        if not self.lengths:
            return "no documents"
        return "empty document" if 0 in self.lengths else "document longer than a pack"

    def of_one_pack(self) -> "DocumentCase":
        """The first of them, up to the capacity of one pack; at least one."""
        ends = list(accumulate(self.lengths))
        n_fitting = sum(end <= self.capacity for end in ends)
        return replace(self, lengths=self.lengths[: max(n_fitting, 1)])

    def tokens(self, document: int) -> list[int]:
        """The ids of a document. No two tokens have the same, but for separators, at every second token inside."""
        start, n = _FIRST_ID + sum(self.lengths[:document]), self.lengths[document]
        ids = list(range(start, start + n))
        if self.separators:
            for k in range(1, n - 1, 2):
                ids[k] = self.separators[(ids[k] // 2) % len(self.separators)]
        return ids

    def is_own(self, token: int) -> bool:
        """Whether the id is that of a token of a document, and no separator."""
        return _FIRST_ID <= token < _FIRST_ID + sum(self.lengths) and token not in self.separators

    def labels(self, document: int) -> list[int]:
        """The labels of a document: its tokens, the first half ignored if it is labelled."""
        ids = self.tokens(document)
        n_ignored = len(ids) // 2 if self.labelled else 0
        return [IGNORE_INDEX] * n_ignored + ids[n_ignored:]

    def features(self) -> list[dict[str, Any]]:
        """The documents as a dataset has them."""
        return [
            {"input_ids": self.tokens(j), **({"labels": self.labels(j)} if self.labelled else {})}
            for j in range(len(self.lengths))
        ]

    def text(self) -> str:
        """The case in one line."""
        inside = f", with {', '.join(map(str, self.separators))} inside" if self.separators else ""
        return f"capacity {self.capacity}" + (", with labels" if self.labelled else "") + inside


def golden_documents(capacities: Sequence[int], seed: int) -> Iterator[DocumentCase]:
    """Documents around the breaking points of packers and collators, small ones first."""
    for capacity in capacities:
        for n in dict.fromkeys((1, 2, capacity // 2, capacity - 1, capacity)):
            if 0 < n <= capacity:
                yield DocumentCase((n,), capacity)
        half = capacity // 2
        for lengths in (
            (1, 1),  # the second begins where positions and labels of the first end
            (half + 1, half),
            (half, capacity - half, 1),
            (capacity, 1, capacity),
            (half + 1, half + 1, 1, 1),  # room that only later documents fill
            (3, 5, 2, 3, 7, 1, 4),
            (1,) * min(capacity, _MOST_OF_A_FULL_PACK),  # as many documents as a pack has rows
        ):
            yield from _if_ordinary(lengths, capacity)
        yield from _if_ordinary(many_lengths(capacity, seed), capacity)


def unusual_documents(capacities: Sequence[int]) -> Iterator[DocumentCase]:
    """Documents for a packer to take or refuse: none, empty ones, and longer ones than a pack."""
    for capacity in capacities:
        half = max(capacity // 2, 1)
        for lengths in ((), (0,), (0, half), (half, 0), (half, 0, 0, 1), (capacity + 1,), (half, 2 * capacity + 1, 1)):
            yield DocumentCase(lengths, capacity)


def many_lengths(capacity: int, seed: int) -> tuple[int, ...]:
    """Many lengths, short and long: the shortest are the most frequent, as in data."""
    draw = random.Random(f"{seed} {capacity}")
    return tuple(1 + int(capacity * draw.random() ** 2) if capacity > 1 else 1 for _ in range(_MANY))


def drawn_documents(capacities: Sequence[int]) -> st.SearchStrategy[DocumentCase]:
    """Ordinary documents of any lengths."""
    return st.sampled_from(list(capacities)).flatmap(
        lambda capacity: st.builds(
            DocumentCase,
            st.lists(st.integers(1, capacity), min_size=1, max_size=40).map(tuple),
            st.just(capacity),
            st.booleans(),
        )
    )


def _if_ordinary(lengths: tuple[int, ...], capacity: int) -> Iterator[DocumentCase]:
    documents = DocumentCase(lengths, capacity)
    if documents.are_ordinary:
        yield documents
        if len(lengths) < _MANY:
            yield DocumentCase(lengths, capacity, labelled=True)
