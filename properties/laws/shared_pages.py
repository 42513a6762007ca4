"""Requests whose keys begin alike: it does not matter whether they share the pages of that prefix."""

import dataclasses
from collections.abc import Iterator

from packproof.properties.calling.pages import PagePlacement
from packproof.properties.cases.case import Case
from packproof.properties.judgement.comparison import Origin
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.violation import Violation

_NOTE = f"where {PagePlacement.SHARED}"


def compare_shared_pages(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """The keys of all sequences begin as those of the longest one, in pages that they share and in pages of their own.

    A kernel that asks whose a page is finds one owner for it; one that writes to a page writes to those of others.
    """
    sample = kernel.sample(case).with_common_prefixes()
    if not PagePlacement.of(sample.key_offsets, kernel.page_sizes, shared=True).shares:
        return
    own_pages, cache = kernel.values_only, kernel.cache.without_results()
    shared_pages = dataclasses.replace(own_pages, convention=PagePlacement.SHARED, cache=cache)
    baseline = own_pages.run(sample, note="where the keys of sequences begin alike")
    for key, x in shared_pages.run(sample, note=_NOTE).items():
        yield from own_pages.agree(key, x, baseline[key], Origin(sample), other="in pages of its own", note=_NOTE)
