"""An entry's layout is one that shows its bug: some case of exactly these lengths detects it.

One entry in 48 here, for time; `make proof` takes the others.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from packproof.harness.process.worker import Worker
from packproof.museum import Entry, entries
from packproof.proof.museum.detect import SHORT_LIMITS, detect_with
from packproof.properties.cases.case import Case
from packproof.properties.cases.random_cases import random_cases
from packproof.properties.cases.space import Space, golden_cases

ENTRIES = entries()
NAMES = [name for name, entry in ENTRIES.items() if not entry.needs_gpu]
TAKEN = [pytest.param(n, marks=[pytest.mark.proof] if place % 48 else []) for place, n in enumerate(NAMES)]


def of_its_lengths(entry: Entry, _: Any, space: Space, profile: str, seed: int) -> Iterator[Case]:
    if entry.when.startswith("after"):
        yield next(golden_cases(space, seed))
    for case in [*golden_cases(space, seed), *random_cases(space, 30, seed)]:
        n = len(entry.lengths)
        keys = [None] if case.key_lengths is None else [(*case.key_lengths, *entry.lengths)[:n], (0,) * n]
        yield from (case.replace(lengths=entry.lengths, key_lengths=key_lengths) for key_lengths in keys)


@pytest.mark.parametrize("name", TAKEN)
def test_an_entry_shows_at_its_lengths(name: str) -> None:
    entry = ENTRIES[name]
    with Worker(entry.kernel, time_limit=SHORT_LIMITS["cpu"]) as worker:
        done = detect_with(worker, entry, worker.describe(), profile="quick", draw_cases=of_its_lengths)
    assert not done.missed, f"{entry.title}: {entry.lengths}"
