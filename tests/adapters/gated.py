"""A gated linear attention as a user declares it, and one kernel of it in any convention, correct by construction."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import packproof
from packproof.refs import join_sequences, over_time, split_sequences


def normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def gated(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_states: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    return_final_states: bool = False,
) -> Any:
    """S = e^g S + sigmoid(beta) k v^T, y = S^T q / sqrt(width of q), with q and k normalised.

    q, k: (t, h, k). v: (t, h, v). g, beta: (t, h). initial_states: (s, h, k, v). Returns (t, h, v), and (s, h, k, v) if
    asked.
    """
    q, k, scale = normalised(q), normalised(k), max(q.shape[-1], 1) ** -0.5

    def step(S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        S = g.exp()[:, None, None] * S + k[:, :, None] * (beta.sigmoid()[:, None] * v)[:, None]
        return S, (S * (scale * q)[:, :, None]).sum(1)

    sequences = list(zip(*(split_sequences(x, cu_seqlens) for x in (q, k, v, g, beta)), strict=True))
    zeros = v.new_zeros(k.shape[1], k.shape[2], v.shape[2])
    starts = [zeros] * len(sequences) if initial_states is None else list(initial_states.unbind(0))
    ys, ends = [], []
    for start, (q_j, k_j, v_j, g_j, beta_j) in zip(starts, sequences, strict=True):
        end = start
        if len(q_j):
            y, end = over_time(step, start, q_j, k_j, v_j, g_j, beta_j)
            ys.append(y)
        ends.append(end)
    y = join_sequences(ys, v)
    if not return_final_states:
        return y
    return y, torch.stack(ends) if ends else zeros.new_zeros(0, *zeros.shape)


GATED = packproof.Op(
    name="gated",
    reference=gated,
    inputs={"q": "t h k", "k": "t h k", "v": "t h v", "g": "t h", "beta": "t h", "initial_states": "s h k v?"},
    outputs={"y": "t h v", "final_states": "s h k v?"},
    options={"return_final_states": (False, True)},
    sizes=({"h": 2, "k": 3, "v": 4}, {"h": 1, "k": 2, "v": 2}),
    draws={"g": "decay"},
    fixed=frozenset({"g", "initial_states", "final_states"}),
    carry=("initial_states", "final_states", "return_final_states"),
    matmul=True,
)


@dataclass(frozen=True)
class Kernel:
    """A kernel of `GATED` and what is inside of it. states: "k v" or "v k". decay: what it makes of a gate."""

    states: str = "k v"
    decay: Callable[[Tensor], Tensor] = torch.exp
    norm: Callable[[Tensor], Tensor] = normalised
    gate: Callable[[Tensor], Tensor] = torch.sigmoid

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        initial_states: Tensor | None = None,
        return_final_states: bool = False,
        *,
        cu_seqlens: Tensor,
    ) -> Any:
        rows, dtype, wide = len(v), v.dtype, torch.promote_types(v.dtype, torch.float32)
        turned = self.states == "v k"
        q, k, v, g, beta = (x[: int(cu_seqlens[-1])] for x in (q, k, v, g, beta))
        q, k = (self.norm(x.to(wide)) for x in (q, k))
        q, v = q * max(q.shape[-1], 1) ** -0.5, v * self.gate(beta.to(wide))[..., None]
        decay, out, ends = self.decay(g), [], []
        states = v.new_zeros(len(cu_seqlens) - 1, k.shape[1], k.shape[2], v.shape[2], dtype=wide)
        if initial_states is not None:
            states = initial_states.mT if turned else initial_states
        for state, (start, end) in zip(states, pairwise(cu_seqlens.tolist()), strict=True):
            S = state
            for i in range(start, end):
                S = decay[i][:, None, None] * S + torch.einsum("hk,hv->hkv", k[i], v[i])
                out.append(torch.einsum("hk,hkv->hv", q[i], S))
            ends.append(S.mT if turned else S)
        y = torch.stack(out) if out else v[:0]
        y = torch.cat([y, y.new_zeros(rows - len(y), *y.shape[1:])]).to(dtype)
        if not return_final_states:
            return y
        return y, torch.stack(ends) if ends else (states.mT if turned else states)
