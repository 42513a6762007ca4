"""Where the keys of a pack lie in the pages of a cache: a function of their offsets, so that a report can name it.

The pages of a sequence lie anywhere in the cache, never in order, between pages of no sequence. Where sequences share
pages, the full ones of a common prefix are those of the longest sequence, as in a server that keeps the cache of a
prompt.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar

_FREE_PAGES = 3
_SHOWN_PAGES = 8


def common_prefixes(lengths: Sequence[int]) -> tuple[int, list[int]]:
    """The longest sequence, and how many first keys each sequence has in common with it: all, or three quarters."""
    longest = max(range(len(lengths)), key=lengths.__getitem__, default=0)
    return longest, [0 if j == longest else n - (j % 2) * (n // 4) for j, n in enumerate(lengths)]


@dataclass(frozen=True)
class PagePlacement:
    """The pages of each sequence of a pack."""

    SHARED: ClassVar[str] = "the pages of a common prefix are shared"
    """The convention of calls in which they are."""

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
    def of(cls, offsets: Sequence[int], sizes: Sequence[int], *, shared: bool = False) -> "PagePlacement":
        """The placement of keys with these offsets.

        sizes: the rows of a page. Of several sizes a pack has one; packs with other offsets have others.
        shared: the full pages of `common_prefixes` are shared. The keys have to agree there.
        """
        shuffled = random.Random(repr(list(offsets)))
        size = shuffled.choice(sizes)
        lengths = tuple(end - start for start, end in pairwise(offsets))
        longest, prefixes = common_prefixes(lengths)
        common = [prefix // size if shared else 0 for prefix in prefixes]
        counts = [-(-length // size) - n for length, n in zip(lengths, common, strict=True)]
        order = list(range(sum(counts) + _FREE_PAGES))
        shuffled.shuffle(order)
        ends = [0, *accumulate(counts)]
        own_pages = [tuple(order[start:end]) for start, end in pairwise(ends)]
        pages = tuple(own_pages[longest][:n] + further for n, further in zip(common, own_pages, strict=True))
        return cls(size, pages, free_page=order[-1], count=len(order), lengths=lengths)

    @property
    def shares(self) -> bool:
        """Whether two sequences have a page in common."""
        return len(set().union(*self.pages)) < sum(map(len, self.pages))

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
