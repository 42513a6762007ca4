"""The adapters of servers' kernels, with stand-ins: pools with a slot of no request, drafts, and pages of a cache."""

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from packproof.adapters import NullSlot, SlotPerDraft
from packproof.adapters.peers.registry import PEERS
from packproof.base.errors import ArgumentError, UsageError
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.process.naming.location import Location
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.declaration import describe_kernel, parse_declaration
from packproof.properties.judgement.comparison import record_comparisons
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, judge_case
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import OPS
from tests.adapters.server_stand_ins import STAND_INS
from tests.in_process import installed
from tests.sweeps import sweep

PACKAGES = {module.partition(".")[0] for module in STAND_INS}
NAMES = [
    name
    for name, peer in PEERS.items()
    if peer.required_module in PACKAGES and (OPS[peer.op].pool or peer.op == "attention")
]
SAMPLE = ["vllm:causal_conv1d_verify", "sglang:gated_delta_rule_verify", "fla:kda_verify", "sglang:attention_decode"]


@pytest.fixture
def _stand_ins() -> Iterator[None]:
    modules: dict[str, ModuleType] = {}
    for name, functions in STAND_INS.items():
        parts = name.split(".")
        for n in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:n]), ModuleType(parts[n - 1]))
        for function in functions:
            setattr(modules[name], function.__name__, function)
    with installed(modules, reimported="packproof.adapters.peers."):
        yield


@pytest.mark.usefixtures("_stand_ins")
@sweep("name", SAMPLE, [name for name in NAMES if name not in SAMPLE])
@pytest.mark.parametrize(
    "law", ["reference", *(pytest.param(name, marks=pytest.mark.proof) for name in ("pool", "metadata"))]
)
def test_a_kernel_of_a_server_is_called_as_the_server_calls_it(law: str, name: str) -> None:
    function, op = Location(PEERS[name].module, "", PEERS[name].function).load(), OPS[PEERS[name].op]
    declared = parse_declaration(describe_kernel(function), name)
    dtype = "float32" if op.pool else "bfloat16"
    space = Space(op, dtype, declared.promises, declared.parameters, domain=declared.domain)
    kernel = KernelUnderTest(op, InProcess(function), declared.promises, domain=declared.domain)
    compared = 0
    for case in PROPERTIES[law].suited(space, list(golden_cases(space))[:12]):
        with record_comparisons() as made:
            violation, stopped = judge_case(kernel, PROPERTIES[law], case)
        assert stopped is None, f"{case}: {stopped}"
        assert violation is None, f"{case}: {violation.lines()}"
        compared += len(made)
    assert compared or (law == "pool" and not op.pool)


def test_the_first_slot_belongs_to_no_request() -> None:
    states = torch.arange(12.0).view(3, 2, 2)
    pool, slots = NullSlot().to(states), NullSlot().indices(torch.tensor([2, -1, 0]), states.shape)
    assert pool[0].isnan().all()
    assert slots.tolist() == [3, 0, 1]
    assert torch.equal(pool[slots[[0, 2]]], states[[2, 0]])
    assert torch.equal(NullSlot().back(pool, states.shape), states)
    with pytest.raises(ArgumentError, match=r"a kernel with slots=NullSlot\(\) returned \(3, 2, 2\)"):
        NullSlot().back(states, states.shape)


def test_no_draft_is_in_the_first_slot() -> None:
    states, layout = torch.arange(12.0).view(3, 2, 2), SlotPerDraft(null=0)
    pool, slots = layout.to(states), layout.indices(torch.tensor([2, -1, 0]), states.shape)
    assert pool[0].isnan().all()
    assert slots[1].tolist() == [0, 0]
    assert torch.equal(pool[slots[0]], states[2])
    assert torch.equal(layout.back(pool, states.shape), states)
    with pytest.raises(UsageError, match="SlotPerDraft: null is 1, expected -1, or 0 if no request has the first slot"):
        SlotPerDraft(null=1)
