"""Steps of drafts with the signatures of engines: a window for all drafts of a slot, and a slot for each draft."""

from collections.abc import Callable

import pytest
import torch

from packproof.adapters import DraftBuffer, SlotPerDraft, adapt
from packproof.adapters.adapter import Adapter
from packproof.base.errors import UsageError
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.calling import OutsideDomain
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.declaration import describe_kernel, parse_declaration
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, judge_case
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import OPS
from tests.adapters import window_kernels
from tests.adapters.draft_kernels import BUGS, BUGS_BESIDE, beside_a_pool, convolution, mamba

LAWS = ("reference", "packing", "pool", "memory")


def violations(adapter: Adapter, laws: tuple[str, ...], dtype: str = "float32") -> list[str]:
    declared = parse_declaration(describe_kernel(adapter), "drafts")
    kernel = KernelUnderTest(adapter.op, InProcess(adapter), declared.promises, domain=declared.domain)
    space = Space(adapter.op, dtype, declared.promises, declared.parameters, domain=declared.domain)
    found = []
    for law in laws:
        for case in PROPERTIES[law].suited(space, list(golden_cases(space))):
            violation, stopped = judge_case(kernel, PROPERTIES[law], case)
            assert stopped is None or isinstance(stopped, OutsideDomain), f"{case}: {stopped}"
            found += [] if violation is None else [f"{law} at {case}: {violation.lines()}"]
    return found


CORRECT = [convolution, pytest.param(mamba, marks=pytest.mark.proof), beside_a_pool]


@pytest.mark.parametrize("make", [*CORRECT, window_kernels.chain, window_kernels.tree])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.proof)])
def test_a_step_of_an_engine_passes(make: Callable[[], Adapter], dtype: str) -> None:
    assert violations(make(), LAWS, dtype) == []


WINDOW_BUGS = [bug for bug in BUGS if bug != "one slot for all drafts"]  # a window is one slot


@pytest.mark.parametrize(
    ("make", "bug"), [*((convolution, bug) for bug in WINDOW_BUGS), *((mamba, bug) for bug in BUGS)]
)
def test_a_bug_of_an_engine_is_detected(make: Callable[[str], Adapter], bug: str) -> None:
    assert violations(make(bug), ("reference", "pool"))


@pytest.mark.parametrize("bug", BUGS_BESIDE)
def test_a_bug_beside_a_pool_is_detected(bug: str) -> None:
    found = violations(beside_a_pool(bug), ("reference",))
    assert found
    assert ("wrote to state, expected that it stays as it is" in found[0]) == (bug == "the pool is updated"), found[0]


@pytest.mark.parametrize(
    ("make", "bug"),
    [
        *((window_kernels.chain, bug) for bug in (*window_kernels.BUGS, *window_kernels.BUGS_OF_CHAINS)),
        *((window_kernels.tree, bug) for bug in (*window_kernels.BUGS, *window_kernels.BUGS_OF_TREES)),
    ],
)
def test_a_bug_of_windows_beside_a_pool_is_detected(make: Callable[[str], Adapter], bug: str) -> None:
    assert violations(make(bug), ("reference",))


def test_a_pool_beside_the_buffer_holds_the_states_to_begin_from() -> None:
    states, slots, accepted = torch.arange(12.0).view(3, 2, 2), torch.tensor([2, -1, 0]), torch.tensor([2, 1, 1])
    layout = DraftBuffer("pool", "slots", "drafts")
    more = layout.more_arguments(states, slots, accepted)
    assert torch.equal(more["pool"][more["slots"][[0, 2]]], states[[2, 0], [1, 0]])
    assert (int(more["slots"][1]), more["drafts"]) == (-1, 2)
    assert int(more["pool"].isnan().sum()) == 8
    buffer, rows = layout.to(states), layout.indices(slots, states.shape)
    assert torch.equal(buffer[rows[[0, 2]]], states[[2, 0]])
    assert rows[0] != more["slots"][0]
    assert torch.equal(layout.back(buffer, states.shape), states)


def test_each_draft_has_a_slot_of_its_own_between_slots_of_nan() -> None:
    states = torch.arange(12.0).view(3, 2, 2)
    pool = SlotPerDraft().to(states)
    indices = SlotPerDraft().indices(torch.tensor([2, -1, 0]), (3, 2, 2))
    assert torch.equal(pool[indices[0]], states[2])
    assert torch.equal(pool[indices[2]], states[0])
    assert indices[1].tolist() == [-1, -1]
    assert int(pool.isnan().sum()) == 6
    assert torch.equal(SlotPerDraft().back(pool, (3, 2, 2)), states)


def test_slots_of_drafts_are_those_of_an_op_with_drafts() -> None:
    with pytest.raises(
        UsageError, match=r"slots is SlotPerDraft\(null=-1\), expected SlotPerDraft\(\) of an op whose pool"
    ):
        adapt(lambda x: x, op=OPS["ssd_update"], slots=SlotPerDraft())
