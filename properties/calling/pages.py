"""Where the keys of a pack lie in the pages of a cache: a function of their offsets, so that a report can name it.

The pages of a sequence lie anywhere in the cache, never in order, between pages of no sequence.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

_FREE_PAGES = 3
_SHOWN_PAGES = 8


@dataclass(frozen=True)
class PagePlacement:
    """The pages of each sequence of a pack."""

    size: int
    """Rows of a page."""
    pages: tuple[tuple[int, ...], ...]
    """The pages of each sequence, in the order of its keys."""
    free_page: int
    """A page of no sequence."""
    count: int
    """Pages of the cache."""
    lengths: tuple[int, ...]
    """The keys of each sequence."""

    @classmethod
    def of(cls, offsets: Sequence[int], sizes: Sequence[int]) -> "PagePlacement":
        """The placement of keys with these offsets.

        sizes: the rows of a page. Of several sizes a pack has one; packs with other offsets have others.
        """
        shuffled = random.Random(repr(list(offsets)))
        size = shuffled.choice(sizes)
        lengths = tuple(end - start for start, end in pairwise(offsets))
        counts = [-(-length // size) for length in lengths]
        order = list(range(sum(counts) + _FREE_PAGES))
        shuffled.shuffle(order)
        ends = [0, *accumulate(counts)]
        pages = tuple(tuple(order[start:end]) for start, end in pairwise(ends))
        return cls(size, pages, free_page=order[-1], count=len(order), lengths=lengths)

    @property
    def slots(self) -> list[int]:
        """The slot of each key: its page times the rows of a page, plus its row."""
        return [
            pages[position // self.size] * self.size + position % self.size
            for pages, length in zip(self.pages, self.lengths, strict=True)
            for position in range(length)
        ]

    def describe(self, sequence: int) -> str:
        """Where the keys of a sequence lie, in one line."""
        pages, count = self.pages[sequence], self.lengths[sequence]
        if not count:
            return f"sequence {sequence} has no keys, hence no page"
        row, page = (count - 1) % self.size, pages[-1]
        shown = ", ".join(map(str, pages[:_SHOWN_PAGES])) + (", ..." if len(pages) > _SHOWN_PAGES else "")
        keys, page_word = "1 key" if count == 1 else f"{count} keys", "page" if len(pages) == 1 else "pages"
        last = f"the last in row {row} of page {page} (slot {page * self.size + row})"
        return f"sequence {sequence} has {keys} in {page_word} {shown} of {self.size} rows each, {last}"

    @staticmethod
    def row_of_slot(slot: int, count: int, size: int) -> int:
        """The row of a pool in pages, counted through all pages, for one of its slots: the last slot is the last row.

        count: slots of the pool.
        size: rows of a page.
        """
        return slot + -count % size
