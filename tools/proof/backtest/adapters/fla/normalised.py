"""flash-linear-attention: linear attention over the sum of its weights, in its forms, orders and states."""

from typing import Any, get_type_hints

import torch
from torch import Tensor

from packproof import refs
from packproof.properties.declarations import Promises, kernel
from packproof.properties.ops import Op


def _normalised(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Linear attention over the sum of its weights: y = Σ (q·k_j) v_j / Σ q·k_j, over the tokens up to its own."""
    return refs.join_sequences(
        [
            _normalised_alone(*rows)
            for rows in zip(*(refs.split_sequences(x, cu_seqlens) for x in (q, k, v)), strict=True)
        ],
        v,
    )


def _normalised_alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q[:, None] * k[None]).sum(-1).permute(2, 0, 1).tril()
    return (weights @ v.transpose(0, 1) / weights.sum(-1, keepdim=True)).transpose(0, 1)


def _normalised_from_the_end(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The same over the tokens from its own on, to the end of its sequence."""
    return refs.join_sequences(
        [
            _normalised_alone(*(x.flip(0) for x in rows)).flip(0)
            for rows in zip(*(refs.split_sequences(x, cu_seqlens) for x in (q, k, v)), strict=True)
        ],
        v,
    )


def _normalised_with_states(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_states: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The same as a recurrence: S += k (v, 1)ᵀ; y is the part of q S from v over that from 1. S is (h, k, v + 1)."""
    with_one = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    y, states = refs.linear_attention(
        q, k, with_one, initial_states=initial_states, cu_seqlens=cu_seqlens, scale=1.0, return_final_states=True
    )
    y = y[..., :-1] / y[..., -1:]
    return (y, states) if return_final_states else y


_DECLARATION: dict[str, Any] = {"draws": {"q": "step", "k": "step"}, "matmul": True}
_SIZES = ({"h": 2, "k": 16, "v": 16}, {"h": 1, "k": 32, "v": 16})
NORMALISED = Op(
    name="normalised_linear_attention",
    reference=_normalised,
    inputs={"q": "t h k", "k": "t h k", "v": "t h v"},
    outputs={"y": "t h v"},
    sizes=_SIZES,
    **_DECLARATION,
)
NORMALISED_FROM_THE_END = Op(
    name="normalised_linear_attention_from_the_end",
    reference=_normalised_from_the_end,
    inputs={"q": "t h k", "k": "t h k", "v": "t h v"},
    outputs={"y": "t h v"},
    sizes=_SIZES,
    causal=False,
    **_DECLARATION,
)
NORMALISED_WITH_STATES = Op(
    name="normalised_linear_attention_with_states",
    reference=_normalised_with_states,
    inputs={"q": "t h k", "k": "t h k", "v": "t h v-1", "initial_states": "s h k v?"},
    outputs={"y": "t h v-1", "final_states": "s h k v?"},
    options={"return_final_states": (False, True)},
    sizes=({"h": 2, "k": 16, "v": 17}, {"h": 1, "k": 32, "v": 17}),
    carry=("initial_states", "final_states", "return_final_states"),
    fixed=frozenset({"initial_states", "final_states"}),
    **{**_DECLARATION, "draws": {"q": "step", "k": "step", "initial_states": "step"}},
)
_PROMISES = Promises(compute="operand")


@kernel(op=NORMALISED, promises=_PROMISES, slack=False)
def fused_recurrent_linear_attention(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """With a scale, as its chunked form needs one; the normaliser divides it out."""
    return _recurrent(q, k, v, cu_seqlens, scale=1.0)


@kernel(op=NORMALISED_FROM_THE_END, promises=_PROMISES, slack=False)
def reversed_linear_attention(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return _recurrent(q, k, v, cu_seqlens, scale=1.0, reverse=True)


@kernel(op=NORMALISED, promises=_PROMISES, slack=False)
def linear_attention_of_default_scale(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return _recurrent(q, k, v, cu_seqlens)


def _recurrent(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, **options: Any) -> Tensor:
    from fla.ops.linear_attn import fused_recurrent_linear_attn  # noqa: PLC0415

    y: Tensor = fused_recurrent_linear_attn(
        *(x.unsqueeze(0) for x in (q, k, v)), normalize=True, cu_seqlens=cu_seqlens, **options
    )[0]
    return y.squeeze(0)


@kernel(op=NORMALISED_WITH_STATES, promises=_PROMISES, slack=False)
def linear_attention_with_states(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_states: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """States in the form that the function documents. One that has no sum of keys is given, and returns, none."""
    from fla.ops.linear_attn import fused_recurrent_linear_attn  # noqa: PLC0415

    takes_pairs = "tuple" in str(get_type_hints(fused_recurrent_linear_attn)["initial_state"])
    state: Any = None
    if initial_states is not None:
        state, sums = initial_states[..., :-1].contiguous(), initial_states[..., -1].unsqueeze(1)
        state = (state, sums) if takes_pairs else state
    y, final = fused_recurrent_linear_attn(
        *(x.unsqueeze(0) for x in (q, k, v)),
        scale=1.0,
        initial_state=state,
        output_final_state=return_final_states,
        normalize=True,
        cu_seqlens=cu_seqlens,
    )
    result: Tensor = y.squeeze(0)
    if not return_final_states:
        return result
    states, sums = final if takes_pairs else (final, torch.zeros_like(final[:, None, :, :, 0]))
    return result, torch.cat([states, sums.squeeze(1).unsqueeze(-1)], -1)
