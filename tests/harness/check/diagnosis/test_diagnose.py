"""What a report says that a wrong element follows: what other sequences hold, how long they are, or neither."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.harness.check.diagnosis.conventions import suggestions
from packproof.harness.check.diagnosis.diagnose import diagnose
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.calling.tensor_key import TensorKey
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.invariance import REFERENCE
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.catalogue import OPS

CONV = Case((3, 2, 4), "float32", (("d", 3), ("w", 4)))


def conv(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)
    assert isinstance(y, Tensor)
    return y


def by_the_longest(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return conv(x, weight, cu_seqlens) * (1 + 0.1 * cu_seqlens.diff().max())


def by_the_last(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return conv(x, weight, cu_seqlens) * torch.where(torch.arange(len(x)) < 3, cu_seqlens.diff()[-1], 1)[:, None]


def by_values(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return conv(x, weight, cu_seqlens) + x[-1]


def by_itself(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return conv(x, weight, cu_seqlens) * 1.1


def by_roundings_of_the_layout(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Its fault is its own; roundings differ with the length of the pack, as where tiles count over the whole of it."""
    return conv(x, weight, cu_seqlens) * 1.1 * (1 + len(x) * 2.0**-24)


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (by_the_longest, "does not follow what other sequences hold, but the length of sequence"),
        (by_the_last, "y in sequence 0 does not follow what other sequences hold, but the length of sequence 2"),
        (by_values, "contains sequence"),
        (by_itself, "does not follow what other sequences hold: the fault lies in its own computation"),
        (by_roundings_of_the_layout, "hold: the fault lies in its own computation"),
    ],
)
def test_a_wrong_element_is_said_to_follow_values_lengths_or_neither(kernel: Callable[..., Tensor], says: str) -> None:
    judged = KernelUnderTest(OPS["causal_conv1d"], InProcess(kernel), Promises(), gradients=False)
    violation = first_violation(judged, REFERENCE, CONV)
    assert violation is not None
    assert says in diagnose(judged, CONV, violation)


def by_the_next_row(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """In the only sequence of a pack, the next row of its last token is its own first row."""
    return conv(x, weight, cu_seqlens) + x.roll(-1, 0)


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (by_the_next_row, "in a pack of [4, 4], y in sequence 0 contains sequence 1"),
        (by_itself, "y follows no sequence beside its own, either: the fault lies in its own computation"),
    ],
)
def test_the_only_sequence_of_a_pack_is_tried_beside_another(kernel: Callable[..., Tensor], says: str) -> None:
    case = CONV.replace(lengths=(4,))
    judged = KernelUnderTest(OPS["causal_conv1d"], InProcess(kernel), Promises(), gradients=False)
    violation = Violation(TensorKey("y"), 0, 3, (0,), got=0.0, wanted=1.0)
    assert says in diagnose(judged, case, violation)


def test_keys_of_another_sequence_are_named_apart_from_its_queries() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, cu_seqlens_k: Tensor, causal: bool) -> Any:
        y = refs.attention(q, k, v, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, causal=causal)
        assert isinstance(y, Tensor)
        return y * cu_seqlens_k.diff()[-1]

    sizes = (("hq", 2), ("hk", 1), ("k", 4), ("v", 3))
    case = Case((2, 2), "float32", sizes, key_lengths=(2, 3), options=(("causal", False),))
    judged = KernelUnderTest(OPS["attention"], InProcess(attend), Promises(), gradients=False)
    violation = first_violation(judged, REFERENCE, case)
    assert violation is not None
    said = diagnose(judged, case, replace(violation, sequence=0, position=0))
    assert said == "y in sequence 0 does not follow what other sequences hold, but the number of keys of sequence 1"


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("n", [0, 1, 3, 7])
def test_a_pack_with_another_length_holds_the_same_elsewhere(keys: bool, n: int) -> None:
    sizes = (("hq", 2), ("hk", 1), ("k", 4), ("v", 3))
    case = Case((2, 3, 2), "float32", sizes, key_lengths=(1, 2, 4))
    judged = KernelUnderTest(OPS["attention"], InProcess(refs.attention), Promises())
    sample, others = judged.sample(case), judged.sample(case.replace(seed=1))
    resized = sample.resized(1, n, others, keys=keys)
    assert (resized.key_lengths if keys else resized.lengths)[1] == n  # type: ignore[index]
    assert all(resized.shape(name) == tuple(x.shape) for name, x in resized.inputs.items())
    for j in (0, 2):
        for name, x in resized.alone(j).inputs.items():
            assert x.equal(sample.alone(j).inputs[name])


def test_an_empty_sequence_beside_the_cause_is_not_called_the_cause() -> None:
    """A kernel that ignores the drawn positions, and one that breaks at empty sequences: the hint is for the second."""

    def without_positions(x: Tensor, cos: Tensor, sin: Tensor, offsets: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        return refs.rope(x, cos, sin, cu_seqlens=cu_seqlens)

    def broken_by_empty_ones(x: Tensor, cos: Tensor, sin: Tensor, offsets: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        y = refs.rope(x, cos, sin, offsets=offsets, cu_seqlens=cu_seqlens)
        return y * 2 if (cu_seqlens.diff() == 0).any() else y

    op = OPS["rope"]
    space = Space(op, "float32", Promises(), frozenset({"x", "cos", "sin", "offsets"}))
    for kernel, hinted in ((without_positions, False), (broken_by_empty_ones, True)):
        judged = KernelUnderTest(op, InProcess(kernel), Promises(), gradients=False, conventions=("reversed",))
        vars(kernel)["other_conventions"] = {"reversed": kernel}
        sizes = tuple(op.sizes[0].items())
        runs = [space.fit(Case((0, 2), "float32", sizes, present=("offsets",), seed=seed)) for seed in range(5)]
        case = next(c for c in runs if c and first_violation(judged, REFERENCE, c))
        found = suggestions(judged, REFERENCE, case, space)
        assert any("declare domain='length > 0'" in line for line in found) == hinted, (kernel, found)
