"""Mamba-3 with one rank: a state space model with rotated inputs and the trapezoidal rule (Lahoti et al. 2026)."""

import math
from typing import Any

import torch
from torch import Tensor

from packproof import refs
from packproof.properties.declarations import Promises, kernel
from packproof.properties.ops import Op


def mamba3_reference(
    q: Tensor, k: Tensor, v: Tensor, adt: Tensor, dt: Tensor, trap: Tensor, q_bias: Tensor, k_bias: Tensor,
    angles: Tensor, D: Tensor | None = None, z: Tensor | None = None, *, cu_seqlens: Tensor,
) -> Tensor:  # fmt: skip
    """q, k: (t, hk, k), v: (t, h, p), adt, dt, trap: (t, h), biases: (h, k), angles: (t, h, a), D: (h,), z: (t, h, p).

    h_t = α h_{t-1} + (1 - λ) Δ α k'_{t-1} v_{t-1} + λ Δ k'_t v_t, with α = exp(adt), λ = sigmoid(trap) and Δ = dt. Keys
    and queries k', q' have their biases, and are rotated by the sum of π tanh(angles) Δ up to their token.
    """
    packed = (q, k, v, adt, dt, trap, angles, *((z,) if z is not None else ()))
    sequences = zip(*(refs.split_sequences(x, cu_seqlens) for x in packed), strict=True)
    return refs.join_sequences([_mamba3_alone(*rows, q_bias=q_bias, k_bias=k_bias, D=D) for rows in sequences], v)


def _mamba3_alone(
    q: Tensor, k: Tensor, v: Tensor, adt: Tensor, dt: Tensor, trap: Tensor, angles: Tensor, z: Tensor | None = None,
    *, q_bias: Tensor, k_bias: Tensor, D: Tensor | None,
) -> Tensor:  # fmt: skip
    group = v.shape[1] // q.shape[1]
    turned = (math.pi * angles.tanh() * dt[..., None]).cumsum(0)
    q, k = (_rotated(x.repeat_interleave(group, 1) + bias, turned) for x, bias in ((q, q_bias), (k, k_bias)))
    decay, share = _differences(adt).exp(), trap.sigmoid()
    before, now = (1 - share) * dt * decay, share * dt
    state = v.new_zeros(v.shape[1], k.shape[2], v.shape[2])
    last = torch.zeros_like(state)
    outputs = []
    for i in range(len(v)):
        product = k[i][..., None] * v[i][:, None]
        state = decay[i][:, None, None] * state + before[i][:, None, None] * last + now[i][:, None, None] * product
        last = product
        outputs.append((q[i][..., None] * state).sum(1))
    y = torch.stack(outputs) if outputs else torch.zeros_like(v)
    y = y if D is None else y + D[:, None] * v
    return y if z is None else y * z * z.sigmoid()


def _differences(gates: Tensor) -> Tensor:
    """The gates as differences of sums, which are those of all gates minus those of later ones.

    So have kernels a gradient of adt: as a sum over the chunk minus the sum before. It has the errors of both.
    """
    before = gates.sum(0) - gates.flip(0).cumsum(0).flip(0)  # the sum of earlier gates
    return torch.cat([before[1:], gates.sum(0, keepdim=True)]) - before


def _rotated(x: Tensor, angle: Tensor) -> Tensor:
    """Channels 2i and 2i + 1 are a pair; pairs without an angle stay."""
    pairs = angle.shape[-1]
    first, second = x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    cos, sin = angle.cos(), angle.sin()
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)
    return torch.cat([turned, x[..., 2 * pairs :]], -1)


MAMBA3 = Op(
    name="mamba3",
    reference=mamba3_reference,
    inputs={
        **{"q": "t hk k", "k": "t hk k", "v": "t h p", "adt": "t h", "dt": "t h", "trap": "t h", "q_bias": "h k"},
        **{"k_bias": "h k", "angles": "t h a", "D": "h?", "z": "t h p?"},
    },
    outputs={"y": "t h p"},
    sizes=(
        {"hk": 1, "h": 1, "k": 16, "p": 16, "a": 8},
        {"hk": 1, "h": 2, "k": 32, "p": 16, "a": 8},
        {"hk": 2, "h": 4, "k": 16, "p": 32, "a": 4},
    ),
    model_sizes=({"hk": 1, "h": 4, "k": 128, "p": 64, "a": 32},),
    draws={"adt": "gate", "dt": "step"},
    fixed=frozenset({"adt", "dt", "q_bias", "k_bias", "D"}),
    matmul=True,
)


@kernel(
    op=MAMBA3,
    dtypes=("bfloat16",),
    domain="gate > -1e4",
    promises=Promises(chunk=64, compute="operand", cumsum=True),
    slack=False,
)
def mamba3(
    q: Tensor, k: Tensor, v: Tensor, adt: Tensor, dt: Tensor, trap: Tensor, q_bias: Tensor, k_bias: Tensor,
    angles: Tensor, D: Tensor | None = None, z: Tensor | None = None, *, cu_seqlens: Tensor,
) -> Any:  # fmt: skip
    from mamba_ssm.ops.triton.mamba3.mamba3_siso_combined import mamba3_siso_combined  # noqa: PLC0415

    adt, dt, trap = (x.T.unsqueeze(0) for x in (adt, dt, trap))
    q, k, v, angles = (x.unsqueeze(0) for x in (q, k, v, angles))
    y = mamba3_siso_combined(
        q, k, v, adt, dt, trap, q_bias, k_bias, angles, D, None if z is None else z.unsqueeze(0),
        cu_seqlens=cu_seqlens.int(),
    )  # fmt: skip
    return y.squeeze(0)
