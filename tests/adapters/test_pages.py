"""Keys in the pages of a cache: where they lie, kernels that read them, and what a report says of a wrong one."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from packproof.adapters import Pages, adapt
from packproof.adapters.adapter import Adapter
from packproof.adapters.pages import sharing_pages
from packproof.base.errors import ArgumentError, OutsideConvention, UsageError
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.calling.pages import PagePlacement
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.declaration import describe_kernel, parse_declaration
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, judge_case
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.catalogue import OPS
from tests.adapters.paged_kernels import BUGS, BUGS_OF_SHARED_PAGES, listed, paged
from tests.in_process import packproof_in

OFFSETS = torch.tensor([0, 5, 5, 9])
LAWS = ("reference", "packing", "permutation", "memory")


@pytest.mark.parametrize("size", [1, 2, 4, 7, 256])
def test_every_key_has_a_slot_of_its_own_and_all_else_is_nan(size: int) -> None:
    cache, keys = Pages(size=size), torch.arange(9.0)
    paged_keys, tables = cache.to(keys, OFFSETS), cache.block_tables(OFFSETS, 9).long()
    assert int(paged_keys.isnan().sum()) == paged_keys.numel() - 9
    for j, (start, end) in enumerate([(0, 5), (5, 5), (5, 9)]):
        n = end - start
        assert paged_keys[tables[j]].flatten()[:n].tolist() == keys[start:end].tolist()
        assert paged_keys[tables[j]].flatten()[n:].isnan().all()
    assert torch.equal(cache.back(paged_keys, OFFSETS, 9), keys)
    assert torch.equal(paged_keys.flatten()[cache.slot_mapping(OFFSETS, 9)], keys)


def test_pages_are_never_in_order_and_other_packs_have_others() -> None:
    orders = {PagePlacement.of([0, n], (1,)).pages[0] for n in range(8, 40)}
    assert all(list(order) != sorted(order) for order in orders)
    assert {PagePlacement.of([0, n], (16, 64)).size for n in range(8)} == {16, 64}


def test_lists_of_pages_are_the_rows_of_the_table() -> None:
    cache = Pages(size=2)
    tables, starts = cache.block_tables(OFFSETS, 9), cache.kv_indptr(OFFSETS, 9).tolist()
    assert starts == [0, 3, 3, 5]
    listed_pages = cache.kv_indices(OFFSETS, 9)
    assert all(torch.equal(listed_pages[a:b], tables[j, : b - a]) for j, (a, b) in enumerate(pairwise(starts)))
    assert cache.last_page_len(OFFSETS, 9).tolist() == [1, 0, 2]
    assert cache.slot_mapping(OFFSETS, 11)[9:].tolist() == [-1, -1]
    assert cache.page_size(OFFSETS, 9) == 2


def test_heads_may_come_before_the_rows_of_a_page() -> None:
    keys = torch.arange(18.0).view(9, 2)
    by_rows, by_heads = Pages(size=2).to(keys, OFFSETS), Pages(size=2, axis=2).to(keys, OFFSETS)
    assert torch.equal(by_heads.transpose(1, 2).nan_to_num(-1), by_rows.nan_to_num(-1))
    assert torch.equal(Pages(size=2, axis=2).back(by_heads, OFFSETS, 9), keys)


def test_gradients_reach_the_keys() -> None:
    keys = torch.arange(9.0, requires_grad=True)
    Pages(size=4).to(keys, OFFSETS).nan_to_num(0).square().sum().backward()
    assert keys.grad is not None
    assert torch.equal(keys.grad, 2 * keys.detach())


def violations(adapter: Adapter, laws: tuple[str, ...] = LAWS) -> Iterator[tuple[Case, Violation]]:
    declared = parse_declaration(describe_kernel(adapter), "paged")
    runner, op = InProcess(adapter), OPS["attention"]
    kernel = KernelUnderTest(
        op, runner, declared.promises, gradients=False, domain=declared.domain, page_sizes=declared.page_sizes
    )
    space = Space(op, "float32", declared.promises, declared.parameters, domain=declared.domain)
    for law in laws:
        for case in golden_cases(space):
            violation, stopped = judge_case(kernel, PROPERTIES[law], case)
            assert stopped is None, f"{case}: {stopped}"
            if violation is not None:
                yield case, violation


@pytest.mark.parametrize("make", [paged, listed])
def test_a_kernel_that_reads_pages_passes(make: Callable[[], Adapter]) -> None:
    assert list(violations(make())) == []


@pytest.mark.parametrize("bug", BUGS)
def test_a_kernel_that_reads_the_wrong_rows_is_detected(bug: str) -> None:
    make = listed if bug == "a full last page counts as empty" else paged
    assert next(violations(make(bug), ("reference",)), None) is not None


@pytest.mark.parametrize("bug", BUGS_OF_SHARED_PAGES)
def test_a_kernel_that_does_not_share_pages_is_detected_where_they_are_shared(bug: str) -> None:
    assert list(violations(paged(bug), ("reference", "permutation"))) == []
    found = [violation for _, violation in violations(paged(bug), ("packing",))]
    assert found
    assert all("where the pages of a common prefix are shared" in "\n".join(v.lines()) for v in found)


def test_the_full_pages_of_a_common_prefix_are_shared() -> None:
    placement = PagePlacement.of([0, 5, 12, 16, 19], (2,), shared=True)
    first, longest, third, last = placement.pages
    assert first[:2] == longest[:2]  # of the 5 keys that it has in common, 4 are in full pages
    assert first[2] not in longest
    assert third == longest[:2]
    assert last[0] == longest[0]
    assert last[1] not in longest
    assert placement.shares
    assert placement.free_page not in set().union(*placement.pages)
    assert not PagePlacement.of([0, 5, 12], (2,)).shares
    assert not PagePlacement.of([0, 1, 3], (2,), shared=True).shares
    assert PagePlacement.of([0], (2,), shared=True).pages == ()


def test_keys_that_agree_lie_in_shared_pages() -> None:
    cache, offsets = Pages(size=2), torch.tensor([0, 4, 9])
    keys = torch.tensor([5.0, 6.0, 7.0, 8.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    own_pages = cache.to(keys, offsets)
    with sharing_pages():
        shared_pages, tables = cache.to(keys, offsets), cache.block_tables(offsets, 9).long()
        assert torch.equal(cache.back(shared_pages, offsets, 9), keys)
    assert torch.equal(tables[0, :2], tables[1, :2])
    assert shared_pages[tables[1]].flatten()[:5].tolist() == keys[4:].tolist()
    assert len(shared_pages) == len(own_pages) - 2
    assert torch.equal(cache.to(keys, offsets).nan_to_num(), own_pages.nan_to_num())


def test_a_report_names_the_page_and_the_slot(tmp_path: Path) -> None:
    (tmp_path / "paged.py").write_text(
        "from packproof.adapters import Pages\n"
        "from tests.adapters.paged_kernels import paged\n"
        "kernel = paged('a partial last page is left out', Pages(size=16))\n"
    )
    options = ("--property", "reference", "--profile", "quick", "--device", "cpu", "--dtype", "fp32")
    done = packproof_in(tmp_path, "check", "paged.py:kernel", *options)
    assert done.returncode == 1, done.stdout
    assert "of 16 rows each, the last in row " in done.stdout


@pytest.mark.proof
def test_a_replay_shares_pages_too(tmp_path: Path) -> None:
    (tmp_path / "paged.py").write_text(
        "from packproof.adapters import Pages\n"
        "from tests.adapters.paged_kernels import paged\n"
        "kernel = paged('a page has one owner', Pages(size=2))\n"
    )
    options = ("--property", "packing", "--profile", "quick", "--device", "cpu", "--dtype", "fp32")
    done = packproof_in(tmp_path, "check", "paged.py:kernel", *options)
    assert "where the pages of a common prefix are shared" in done.stdout, done.stdout
    [replay] = (tmp_path / ".packproof").glob("*.json")
    again = packproof_in(tmp_path, "replay", str(replay))
    assert "where the pages of a common prefix are shared" in again.stdout, again.stdout


def test_the_words_of_a_report() -> None:
    assert PagePlacement.of([0, 1], (4,)).describe(0) == (
        "sequence 0 has 1 key in page 2 of 4 rows each, the last in row 0 of page 2 (slot 8)"
    )
    assert PagePlacement.of([0, 1, 1], (4,)).describe(1) == "sequence 1 has no keys, hence no page"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"size": 0}, "Pages: size is 0, expected a number of rows, at least 1"),
        ({"size": ()}, "Pages: size is ()"),
        ({"size": (16, True)}, "Pages: size is (16, True)"),
        ({"axis": 0}, "Pages: axis is 0"),
        ({"fill": None}, "Pages: fill is None"),
    ],
)
def test_pages_that_no_cache_has_are_refused(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError) as refused:
        Pages(**arguments)
    assert text in str(refused.value)


def test_keys_are_those_of_an_op_with_keys() -> None:
    with pytest.raises(UsageError, match=r"keys is Pages.*whose keys have offsets of their own"):
        adapt(lambda x: x, op="causal_conv1d", keys=Pages())


def test_a_cache_that_is_too_large_is_outside_of_the_convention() -> None:
    with pytest.raises(OutsideConvention, match="a cache of 4 pages of 2147483647 rows"):
        Pages(size=2**31 - 1).to(torch.ones(1, 1), torch.tensor([0, 1]))


def test_a_cache_of_another_shape_is_refused() -> None:
    with pytest.raises(ArgumentError, match="expected 4 pages of 2 rows"):
        Pages(size=2).back(torch.ones(3, 2), torch.tensor([0, 1]), 1)
