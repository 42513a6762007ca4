"""The adapters of peers that update a pool in place, with stand-ins of those kernels."""

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from packproof.adapters.peers.registry import PEERS
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.process.naming.location import Location
from packproof.properties.calling.call import OutsideDomain
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.declaration import describe_kernel, parse_declaration
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.comparison import record_comparisons
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, judge_case
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import OPS
from tests.in_process import installed
from tests.sweeps import sweep


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """x: (batch, d). conv_state: (slots, d, w-1), updated in place. conv_state_indices: int32, below 0 for padding."""
    assert cache_seqlens is None
    assert conv_state_indices is not None
    assert conv_state_indices.dtype == torch.int32
    y = torch.zeros_like(x)
    for j, slot in enumerate(conv_state_indices.tolist()):
        if slot >= 0:
            window = torch.cat([conv_state[slot], x[j][:, None]], 1)
            row = (window * weight).sum(1) + (0 if bias is None else bias)
            y[j] = silu(row) if activation else row
            conv_state[slot] = window[:, 1:]
    return y


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> Tensor:
    """state: (slots, h, p, n), updated in place. x, dt, z: (batch, h, p). A: (h, p, n). D, dt_bias: (h, p); all of them
    without heads in Mamba. state_batch_indices: below 0 for padding. Without D or dt_bias it raises, as theirs does."""
    assert D is not None
    assert dt_bias is not None
    assert state_batch_indices is not None
    if state.ndim == 3:
        D, dt_bias, A = D[None], dt_bias[None], A[None]
        state, x, dt = state[:, None], x[:, None], dt[:, None]
        z = None if z is None else z[:, None]
        return selective_state_update(
            state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, state_batch_indices=state_batch_indices
        )[:, 0]
    assert dt.shape == x.shape
    assert A.shape == state.shape[1:]
    assert D.shape == dt_bias.shape == x.shape[1:]
    B, C = (group if group.ndim == 3 else group[:, None] for group in (B, C))
    B, C = (group.repeat_interleave(x.shape[1] // group.shape[1], 1)[:, :, None] for group in (B, C))
    dt = softplus(dt + dt_bias) if dt_softplus else dt + dt_bias
    rows = state_batch_indices >= 0
    slots, y = state_batch_indices[rows].long(), torch.zeros_like(x)
    h = torch.exp(dt[rows][..., None] * A) * state[slots] + (dt * x)[rows][..., None] * B[rows]
    state[slots] = h
    y[rows] = (h * C[rows]).sum(-1) + D * x[rows]
    return y if z is None else y * silu(z)


STAND_INS: dict[str, Callable[..., Tensor]] = {
    "causal_conv1d": causal_conv1d_update,
    "mamba_ssm.ops.triton.selective_state_update": selective_state_update,
}


PEERS_WITH_A_POOL = [
    name for name, peer in PEERS.items() if OPS[peer.op].pool and peer.required_module in ("causal_conv1d", "mamba_ssm")
]


@pytest.fixture
def adapter() -> Iterator[Callable[[str], Any]]:
    """The adapter of a peer, imported again with stand-ins for the packages."""
    modules: dict[str, ModuleType] = {}
    for name, function in STAND_INS.items():
        parts = name.split(".")
        for n in range(1, len(parts)):
            modules[".".join(parts[:n])] = ModuleType(parts[n - 1])
        modules[name] = ModuleType(name)
        setattr(modules[name], function.__name__, function)
    with installed(modules, reimported="packproof.adapters.peers."):
        yield lambda name: Location(PEERS[name].module, "", PEERS[name].function).load()


@pytest.mark.parametrize("name", PEERS_WITH_A_POOL)
@sweep("law", ["pool"], ["reference", "memory"])
def test_a_kernel_that_updates_a_pool_is_a_step_of_a_server(law: str, name: str, adapter: Callable[[str], Any]) -> None:
    function, op = adapter(name), PEERS[name].op
    declared = parse_declaration(describe_kernel(function), name)
    kernel = KernelUnderTest(OPS[op], InProcess(function), declared.promises, domain=declared.domain)
    space = Space(OPS[op], "float32", declared.promises, declared.parameters, domain=declared.domain)
    compared = 0
    for case in golden_cases(space):
        with record_comparisons() as made:
            violation, stopped = judge_case(kernel, PROPERTIES[law], case)
        assert violation is None, f"{case}: {violation}"
        assert stopped is None or isinstance(stopped, OutsideDomain), f"{case}: {stopped}"
        compared += len(made)
    assert compared
    assert Domain.of("length == 1") == declared.domain.within({"length"})


def test_a_step_without_what_the_kernel_needs_is_outside_of_its_domain(adapter: Callable[[str], Any]) -> None:
    assert len(PEERS_WITH_A_POOL) == 3
    domain = parse_declaration(describe_kernel(adapter("mamba_ssm:ssd_update")), "").domain
    space = Space(OPS["ssd_update"], "float32", Promises(), None)
    without = [case for case in golden_cases(space) if "D" not in case.present]
    assert without
    assert not any(domain.allows(OPS["ssd_update"], case) for case in without)
