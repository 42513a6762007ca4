"""packproof's kernels under the names and conventions of other packages, so that their own test files judge them.

As a plugin of pytest it replaces the functions of the packages that are installed, before their tests import them:

    python -m pytest -p tests.integration.in_their_place CAUSAL_CONV1D/tests/test_causal_conv1d.py

With `--exact` selective scans are computed in float64: a test that fails then too fails by its own reference.
"""

import importlib.util
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import kernels as ours
from packproof import refs


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Any:
    """causal-conv1d. x: (b, d, l); seq_idx: (b, l), -1 in padding; states (b, d, w-1), the initial ones for the first
    sequence of a row."""
    assert final_states_out is None
    batch, _, length = x.shape
    starts = torch.zeros(batch, length, dtype=torch.bool, device=x.device)
    starts[:, :1] = True
    if seq_idx is not None:
        starts[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    first = starts.flatten().nonzero().flatten()
    given = None
    if initial_states is not None:
        rows = (first % length == 0).nonzero().flatten()
        given = initial_states.new_zeros(len(first), *initial_states.shape[1:]).index_copy(0, rows, initial_states)
    returned: Any = ours.causal_conv1d(
        _tokens(x.mT),
        weight,
        bias,
        cu_seqlens=torch.cat([first, first.new_tensor([batch * length])]),
        initial_states=given,
        activation=_activation(activation),
        return_final_states=return_final_states,
    )
    y, states = returned if return_final_states else (returned, None)
    y = y.unflatten(0, (batch, length)).mT
    y = y.clone() if seq_idx is None else y.masked_fill((seq_idx < 0)[:, None], 0)
    return (y, states) if return_final_states else y


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:
    """mamba-ssm. u, delta, z: (b, d, l); B, C: (b, n, l), (b, g, n, l), or (d, n) in fp32, the same for every token."""
    batch, channels, length = u.shape
    dtype = u.dtype
    if B.ndim == 2 or C.ndim == 2:  # packproof's tokens have one dtype
        u, delta, B, C = (x.float() for x in (u, delta, B, C))
        z = None if z is None else z.float()

    def per_token(x: Tensor) -> Tensor:
        if x.ndim == 2:
            return x.expand(batch * length, *x.shape)
        x = x.movedim(-1, 1).flatten(0, 1)
        return x if x.ndim == 3 else x[:, None]

    groups = max(x.shape[1] if x.ndim == 4 else channels if x.ndim == 2 else 1 for x in (B, C))
    b, c = (x.repeat_interleave(groups // x.shape[1], 1) for x in map(per_token, (B, C)))
    returned: Any = ours.selective_scan(
        *(_tokens(u.mT), _tokens(delta.mT), A, b, c, D),
        None if z is None else _tokens(z.mT),
        delta_bias,
        delta_softplus=delta_softplus,
        cu_seqlens=_rows(u, batch, length),
        return_final_states=return_last_state,
    )
    y, states = returned if return_last_state else (returned, None)
    y = y.unflatten(0, (batch, length)).mT.to(dtype)
    return (y, states) if return_last_state else y


def exact_selective_scan(*tensors: Any, delta_softplus: bool, cu_seqlens: Tensor, return_final_states: bool) -> Any:
    """The scan of these very values in float64, rounded at last to the dtypes that the kernel returns."""
    wide: list[Any] = [x if x is None else x.double() for x in tensors]
    found: Any = refs.selective_scan_associative(
        *wide,
        delta_softplus=delta_softplus,
        cu_seqlens=cu_seqlens,
        return_final_states=return_final_states,
    )
    low = tensors[0].dtype
    return (found[0].to(low), found[1].float()) if return_final_states else found.to(low)


def rotary_embedding(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    chunk_indices: Tensor | None = None,
) -> Tensor:
    """flash-linear-attention. x: (b, l, h, k); with cu_seqlens b is 1."""
    assert not inplace
    offsets = _rows(x, *x.shape[:2]) if cu_seqlens is None else cu_seqlens
    starts = seqlen_offsets if isinstance(seqlen_offsets, Tensor) else torch.full_like(offsets[1:], seqlen_offsets)
    y = ours.rope(_tokens(x), cos, sin, cu_seqlens=offsets, offsets=starts, interleaved=interleaved)
    return y.view(x.shape)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    activation: str | None = None,
    backend: str = "triton",
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, None]:
    """flash-linear-attention. x, residual: (b, l, d); with cu_seqlens b is 1."""
    offsets = _rows(x, *x.shape[:2]) if cu_seqlens is None else cu_seqlens
    y: Any = ours.causal_conv1d(_tokens(x), weight, bias, cu_seqlens=offsets, activation=_activation(activation))
    y = y.view(x.shape)
    return (y if residual is None else y + residual), None


def _tokens(x: Tensor) -> Tensor:
    """(b l, ...) of (b, l, ...)."""
    return x.flatten(0, 1).contiguous()


def _rows(x: Tensor, batch: int, length: int) -> Tensor:
    """cu_seqlens of a batch of equal lengths."""
    return torch.arange(batch + 1, device=x.device, dtype=torch.int32) * length


def _activation(name: str | None) -> Any:
    return "silu" if name == "swish" else name


REPLACED: dict[str, Callable[..., Any]] = {
    "causal_conv1d.causal_conv1d_interface:causal_conv1d_fn": causal_conv1d_fn,
    "mamba_ssm.ops.selective_scan_interface:selective_scan_fn": selective_scan_fn,
    "fla.modules.rotary.ops:rotary_embedding": rotary_embedding,
    "fla.modules.convolution:causal_conv1d": causal_conv1d,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exact", action="store_true", help="scans in float64 instead of packproof's kernels")


def pytest_configure(config: pytest.Config) -> None:
    """Put the functions in place of theirs, until the run ends."""
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    if config.getoption("--exact"):
        patch.setattr(ours, "selective_scan", exact_selective_scan)
    for place, function in REPLACED.items():
        module, _, name = place.partition(":")
        if importlib.util.find_spec(module.partition(".")[0]):
            patch.setattr(import_module(module), name, function)
