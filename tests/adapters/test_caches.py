"""Writing keys and values into the pages of a cache by slots of tokens: correct writers pass, bugs are detected."""

import re
from pathlib import Path

import pytest
import torch

from packproof.adapters import PagedSlots, adapt
from packproof.base.errors import ArgumentError, UsageError
from tests.adapters.cache_kernels import BUGS, cache_writer
from tests.adapters.test_drafts import violations
from tests.in_process import packproof_in

LAWS = ("reference", "packing", "isolation", "permutation", "pool", "metadata", "memory", "partition")


@pytest.mark.parametrize("size", [*(pytest.param(n, marks=pytest.mark.proof) for n in (1, 192)), 4])
def test_a_writer_passes(size: int) -> None:
    assert violations(cache_writer(size=size), LAWS) == []


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_a_writer_is_detected(bug: str) -> None:
    assert violations(cache_writer(bug), ("reference",))
    assert violations(cache_writer(bug), ("pool",))


def test_a_cache_in_pages_ends_with_its_last_slot() -> None:
    cache, layout = torch.arange(10.0).view(5, 2), PagedSlots(4)
    paged = layout.to(cache)
    slots = layout.indices(torch.arange(5), cache.shape)
    assert torch.equal(paged.flatten(0, 1)[slots], cache)
    assert torch.equal(paged[-1, -1], cache[-1])
    assert int(paged.isnan().sum()) == 6
    assert torch.equal(layout.back(paged, cache.shape), cache)
    assert layout.to(cache[:0]).shape == (0, 1, 2)


def test_a_cache_of_another_shape_is_refused() -> None:
    with pytest.raises(ArgumentError, match="expected the shape of its cache"):
        PagedSlots(4).back(torch.ones(3, 4), (5,))


@pytest.mark.parametrize("size", [0, 1.5, True])
def test_a_page_has_rows(size: object) -> None:
    with pytest.raises(UsageError, match="PagedSlots: size is"):
        PagedSlots(size)


def test_pages_of_a_pool_are_of_an_op_with_one() -> None:
    with pytest.raises(UsageError, match=r"slots is PagedSlots\(size=16\), expected SlotPerDraft\(\)"):
        adapt(lambda x: x, op="attention", slots=PagedSlots())


def test_a_report_names_the_page(tmp_path: Path) -> None:
    (tmp_path / "writer.py").write_text(
        "from tests.adapters.cache_kernels import cache_writer\n"
        "kernel = cache_writer('padding is written to the last slot')\n"
    )
    options = ("--property", "reference", "--profile", "quick", "--device", "cpu", "--dtype", "fp32")
    done = packproof_in(tmp_path, "check", "writer.py:kernel", *options)
    assert done.returncode == 1, done.stdout
    assert re.search(r"slot \d is row 3 of page \d, of 4 rows each \(slot \d there\)", done.stdout), done.stdout
