"""The adapters of docs/serving.md to kernels that update a pool in place, with stand-ins of those kernels."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from packproof.harness.engine.violations import evaluated
from packproof.harness.execution.execute import InProcess
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.comparison import comparisons
from packproof.properties.declaration import declaration, describe
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops import OPS

PAGE = Path(__file__).parents[2] / "docs/serving.md"


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
    """state: (slots, h, p, n), updated in place. x, dt, z: (batch, h, p). A: (h, p, n). D, dt_bias: (h, p)."""
    assert dt.shape == x.shape
    assert A.shape == state.shape[1:]
    assert all(given is None or given.shape == x.shape[1:] for given in (D, dt_bias))
    assert state_batch_indices is not None
    B, C = (group.repeat_interleave(x.shape[1] // group.shape[1], 1)[:, :, None] for group in (B, C))
    dt = dt if dt_bias is None else dt + dt_bias
    dt = softplus(dt) if dt_softplus else dt
    slots = state_batch_indices.long()
    state[slots] = h = torch.exp(dt[..., None] * A) * state[slots] + (dt * x)[..., None] * B
    y = (h * C).sum(-1) + (0 if D is None else D * x)
    return y if z is None else y * silu(z)


STAND_INS: dict[str, Callable[..., Tensor]] = {
    "causal_conv1d": causal_conv1d_update,
    "mamba_ssm.ops.triton.selective_state_update": selective_state_update,
}


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page declares, with stand-ins for the packages."""
    for name, function in STAND_INS.items():
        parts = name.split(".")
        for n in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:n]), ModuleType(parts[n - 1]))
        module = ModuleType(name)
        setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, name, module)
    [source] = re.findall(r"`peers_update.py`:\n\n```python\n(.*?)```", PAGE.read_text(), re.S)
    found: dict[str, Any] = {"__name__": "peers_update"}
    exec(source, found)
    return found


@pytest.mark.parametrize("op", ["causal_conv1d_update", "ssd_update"])
@pytest.mark.parametrize("law", ["reference", "pool", "memory"])
def test_an_adapter_of_the_page_makes_a_kernel_a_step_of_a_server(op: str, law: str, page: dict[str, Any]) -> None:
    declared = declaration(describe(page[op]), op)
    kernel = KernelUnderTest(OPS[op], InProcess(page[op]), declared.promises, domain=declared.domain)
    space = Space(OPS[op], "float32", declared.promises, declared.parameters, domain=declared.domain)
    compared = 0
    for case in golden_cases(space):
        with comparisons() as made:
            violation, _ = evaluated(kernel, PROPERTIES[law], case)
        assert violation is None, f"{case}: {violation}"
        compared += len(made)
    assert compared
    assert Domain.of("length == 1") == declared.domain.within({"length"})
