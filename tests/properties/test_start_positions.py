"""Kernels that get the start position of a sequence wrong, in every way but one correct, fail `reference`."""

from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import ROPE, ROPE_QK


def ignored(x: Tensor, cos: Tensor, sin: Tensor, *, offsets: Tensor | None = None, **call: Any) -> Tensor:
    return refs.rope(x, cos, sin, **call)


def next_one(x: Tensor, cos: Tensor, sin: Tensor, *, offsets: Tensor | None = None, **call: Any) -> Tensor:
    """The start of the sequence after this one, as far as the tables have rows for it."""
    if offsets is not None:
        latest = len(cos) - call["cu_seqlens"].diff()
        offsets = torch.minimum(offsets.roll(-1), latest.to(offsets.dtype))
    return refs.rope(x, cos, sin, offsets=offsets, **call)


def padding_at_zero(x: Tensor, cos: Tensor, sin: Tensor, *, offsets: Tensor | None = None, **call: Any) -> Tensor:
    """Padding is rotated like the first token."""
    if offsets is None:
        return refs.rope(x, cos, sin, **call)
    most = max(int(-offsets.min()), 0) if len(offsets) else 0
    cos, sin = (torch.cat([table[:1].expand(most, -1), table]) for table in (cos, sin))
    return refs.rope(x, cos, sin, offsets=offsets + most, **call)


def padding_from_the_end(x: Tensor, cos: Tensor, sin: Tensor, *, offsets: Tensor | None = None, **call: Any) -> Tensor:
    """A negative position counts from the end of the tables."""
    if offsets is None:
        return refs.rope(x, cos, sin, **call)
    most = max(int(-offsets.min()), 0) if len(offsets) else 0
    wrapped = torch.arange(-most, len(cos)) % max(len(cos), 1)
    return refs.rope(x, cos[wrapped], sin[wrapped], offsets=offsets + most, **call)


@pytest.mark.parametrize("kernel", [ignored, next_one, padding_at_zero, padding_from_the_end])
def test_a_wrong_position_is_detected(kernel: Any) -> None:
    promises = Promises()
    under_test = KernelUnderTest(ROPE, InProcess(kernel), promises)
    cases = golden_cases(Space(ROPE, "float32", promises))
    assert any(first_violation(under_test, PROPERTIES["reference"], case) for case in cases)


@pytest.mark.parametrize("op", [ROPE, ROPE_QK])
def test_cases_begin_at_every_kind_of_position(op: Any) -> None:
    kinds, dtypes = set(), set()
    for case in golden_cases(Space(op, "float32", Promises())):
        sample = draw(op, case)
        if "offsets" in sample.inputs:
            dtypes.add(sample.inputs["offsets"].dtype)
            for start, n in zip(sample.inputs["offsets"].tolist(), case.lengths, strict=True):
                assert start + n <= sample.sizes["m"]
                kinds |= {"zero"} if start == 0 else {"later"} if start > 0 else {"padding"} if -start < n else {"all"}
                kinds |= {"end"} if start > 0 and start + n == sample.sizes["m"] else set()
    assert kinds == {"zero", "later", "end", "padding", "all"}
    assert dtypes == {torch.int32, torch.int64}
