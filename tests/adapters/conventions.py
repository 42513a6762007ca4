"""Each convention: a correct kernel, one that gets just this wrong, and the words by which the report names it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packproof import refs
from packproof.adapters import (
    Batched,
    L2Norm,
    Packed,
    Scaled,
    adapt,
    base2_log,
    cu_seqlens_int32,
    cu_seqlens_int64,
    position_ids,
    segment_ids,
    seq_idx,
)
from packproof.adapters.adapter import Adapter
from packproof.properties.declarations.promises import Promises
from tests.adapters.gated import GATED, Kernel
from tests.properties import running_sums

SUMS = Promises(compute="fp32", cumsum=True)


@dataclass(frozen=True)
class Convention:
    """correct, wrong: adapters with the same declaration. says: what the report on the wrong one has."""

    correct: Adapter
    wrong: Adapter
    says: str


def conv_of(x: Tensor, weight: Tensor, bias: Tensor | None, same: Any) -> Tensor:
    """x: (t, d). same(step): whether each row and the one `step` rows before it are of one sequence, (t,)."""
    wide, w = torch.promote_types(x.dtype, torch.float32), weight.shape[1]
    y = torch.zeros_like(x, dtype=wide) if bias is None else bias.to(wide).expand_as(x)
    for step in range(w):
        before = functional.pad(x.to(wide), (0, 0, step, 0))[: len(x)]
        y = y + torch.where(same(step)[:, None], before, 0) * weight[:, w - 1 - step].to(wide)
    return y.to(x.dtype)


def by_ids(ids: Tensor) -> Any:
    return lambda step: functional.pad(ids, (step, 0), value=-1)[: len(ids)] == ids


def by_positions(positions: Tensor) -> Any:
    return lambda step: positions >= step


def conv_td(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, seq_idx: Tensor) -> Tensor:
    return conv_of(x, weight, bias, by_ids(seq_idx))


def conv_dt(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, seq_idx: Tensor) -> Tensor:
    return conv_of(x.mT, weight, bias, by_ids(seq_idx)).mT


def conv_btd(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, seq_idx: Tensor) -> Tensor:
    return conv_of(x[0], weight, bias, by_ids(seq_idx[0]))[None]


def conv_bdt(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, seq_idx: Tensor) -> Tensor:
    return conv_dt(x[0], weight, bias, seq_idx=seq_idx[0])[None]


def conv_positions(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, ids: Tensor) -> Tensor:
    return conv_of(x, weight, bias, by_positions(ids))


def conv_segments(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, ids: Tensor) -> Tensor:
    """Segments count from 1, and 0 is padding."""
    same = by_ids(ids)
    return torch.where((ids > 0)[:, None], conv_of(x, weight, bias, lambda step: same(step) & (ids > 0)), 0)


def conv_ids(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, ids: Tensor) -> Tensor:
    return conv_of(x, weight, bias, by_ids(ids))


def conv_w_d(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, seq_idx: Tensor) -> Tensor:
    return conv_td(x, weight.mT, bias, seq_idx=seq_idx)


class ConvFunction(torch.autograd.Function):
    """As extensions are wrapped: everything by position, None for what is absent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor, use_silu: bool) -> Tensor:
        ctx.save_for_backward(x, weight, bias, seq_idx)
        ctx.use_silu = use_silu
        return ConvFunction.values(x, weight, bias, seq_idx, use_silu)

    @staticmethod
    def values(x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor, use_silu: bool) -> Tensor:
        y = conv_td(x, weight, bias, seq_idx=seq_idx)
        return functional.silu(y) if use_silu else y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, ids = ctx.saved_tensors
        given = [None if t is None else t.detach().requires_grad_() for t in (x, weight, bias)]
        with torch.enable_grad():
            y = ConvFunction.values(given[0], given[1], given[2], ids, ctx.use_silu)
        wrt = [t for t in given if t is not None]
        found = dict(zip(map(id, wrt), torch.autograd.grad(y, wrt, dy), strict=True))
        return (*(None if t is None else found[id(t)] for t in given), None, None)


class NeedsBias(ConvFunction):
    """It takes the bias by position too, but not None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor, use_silu: bool) -> Tensor:
        return ConvFunction.forward(ctx, x, weight, bias.contiguous(), seq_idx, use_silu)  # type: ignore[union-attr]


def rope_of(x: Tensor, cos: Tensor, sin: Tensor, place: Tensor) -> Tensor:
    """x: (t, h, k). place: (t,)."""
    c, s = (table[place.long()][:, None] for table in (cos, sin))
    first, second, rest = x.tensor_split((cos.shape[1], 2 * cos.shape[1]), -1)
    return torch.cat([first * c - second * s, first * s + second * c, rest], -1)


def rope_htk(x: Tensor, cos: Tensor, sin: Tensor, place: Tensor) -> Tensor:
    return rope_of(x.transpose(0, 1), cos, sin, place).transpose(0, 1)


def offsets_as(dtype: torch.dtype) -> Any:
    """A kernel that reads offsets as a pointer to this type, whatever they are."""

    def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, offsets: Tensor) -> Tensor:
        read = offsets.view(dtype)[: len(offsets)]
        ids = torch.bucketize(torch.arange(len(x)), read[1:].sort()[0], right=True)
        return conv_of(x, weight, bias, by_ids(ids))

    return conv


def attention_folded(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, causal: bool = False) -> Tensor:
    """Without a scale of its own."""
    y = refs.attention(q, k, v, cu_seqlens=cu_seqlens, causal=causal, softmax_scale=1.0)
    assert isinstance(y, Tensor)
    return y


def attention_scaled(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, causal: bool = False) -> Tensor:
    y = refs.attention(q, k, v, cu_seqlens=cu_seqlens, causal=causal)
    assert isinstance(y, Tensor)
    return y


def folded(q: Tensor, softmax_scale: float | None) -> Tensor:
    """The scale goes into the queries. A factor of its own, beside q."""
    return q * (max(q.shape[-1], 1) ** -0.5 if softmax_scale is None else softmax_scale)


def attention_given(q: Tensor, k: Tensor, v: Tensor, scale: float, *, cu_seqlens: Tensor) -> Tensor:
    y = refs.attention(q, k, v, cu_seqlens=cu_seqlens, softmax_scale=scale)
    assert isinstance(y, Tensor)
    return y


def attention_divided(q: Tensor, k: Tensor, v: Tensor, scale: float, *, cu_seqlens: Tensor) -> Tensor:
    """It divides by the scale that it is given."""
    return attention_given(q, k, v, 1 / scale, cu_seqlens=cu_seqlens)


def number(softmax_scale: float | None, q: Tensor) -> float:
    """For a kernel that requires one."""
    return float(max(q.shape[-1], 1)) ** -0.5 if softmax_scale is None else softmax_scale


def first_tokens(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    """It marks the first token of each sequence, which an empty one does not have."""
    starts = torch.zeros(len(x), dtype=torch.int64)
    starts[cu_seqlens[:-1].long()] = 1
    return conv_of(x, weight, bias, by_ids(starts.cumsum(0)))


def conv(correct: Any, wrong: Any, says: str, **declared: Any) -> Convention:
    every = {"op": "causal_conv1d", "dtypes": ["float32"], "slack": False, **declared}
    return Convention(adapt(correct, **every), adapt(wrong, **every), says)


def of_gated(correct: Kernel, wrong: Kernel, says: str, **declared: Any) -> Convention:
    return conv(correct, wrong, says, **{"op": GATED, **declared})


def root_mean_square(x: Tensor) -> Tensor:
    """Another norm than the one it got."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def same(x: Tensor) -> Tensor:
    return x


POSITIONAL = {
    "metadata": {"seq_idx": seq_idx},
    "positional": ("x", "weight", "bias", "seq_idx", "activation"),
    "converted": {"activation": lambda activation: activation == "silu"},
}
STATES = {"initial_states": "s h v k", "final_states": "s h v k"}
NORMS = {"q": L2Norm(), "k": L2Norm()}
IDS = {"seq_idx": seq_idx}

CONVENTIONS: Mapping[str, Convention] = {
    "channels first": conv(
        conv_dt,
        conv_td,
        "passes with tokens=Packed(axis=0), here and in 6 other packs: is that the kernel's convention?",
        metadata=IDS,
        tokens=Packed(axis=-1),
    ),
    "heads first": conv(
        rope_htk, rope_of, "tokens=Packed(axis=0)", op="rope", tokens=Packed(axis=1), metadata={"place": position_ids}
    ),
    "batch first": conv(conv_btd, conv_td, "tokens=Packed(axis=0)", metadata=IDS, tokens=Batched()),
    "batch and channels first": conv(conv_bdt, conv_btd, "tokens=Batched(axis=1)", metadata=IDS, tokens=Batched(-1)),
    "seq_idx": conv(conv_ids, conv_positions, "metadata={'ids': position_ids}", metadata={"ids": seq_idx}),
    "ids from 0": conv(conv_ids, conv_segments, "metadata={'ids': segment_ids}", metadata={"ids": seq_idx}),
    "ids from 1": conv(conv_segments, conv_positions, "metadata={'ids': position_ids}", metadata={"ids": segment_ids}),
    "position_ids": conv(conv_positions, conv_ids, "metadata={'ids': seq_idx}", metadata={"ids": position_ids}),
    "int32 offsets": conv(
        offsets_as(torch.int32),
        offsets_as(torch.int64),
        "metadata={'offsets': cu_seqlens_int64}",
        metadata={"offsets": cu_seqlens_int32},
    ),
    "int64 offsets": conv(
        offsets_as(torch.int64),
        offsets_as(torch.int32),
        "metadata={'offsets': cu_seqlens_int32}",
        metadata={"offsets": cu_seqlens_int64},
    ),
    "None by position": conv(
        ConvFunction.apply, NeedsBias.apply, "'NoneType' object has no attribute 'contiguous'", **POSITIONAL
    ),
    "a parameter's axes": conv(conv_w_d, conv_td, "no axes for weight", metadata=IDS, axes={"weight": "w d"}),
    "states (v, k)": of_gated(Kernel("v k"), Kernel(), "no axes for initial_states and final_states", axes=STATES),
    "states (k, v)": of_gated(Kernel(), Kernel("v k"), "axes={'initial_states': 's h v k', 'final_states': 's h v k'}"),
    "gates to base 2": of_gated(Kernel(decay=torch.exp2), Kernel(), "no converted for g", converted={"g": base2_log}),
    "natural gates": of_gated(Kernel(), Kernel(decay=torch.exp2), "converted={'g': base2_log}"),
    "gates as factors": of_gated(Kernel(decay=same), Kernel(), "no converted for g", converted={"g": torch.exp}),
    "norm outside": of_gated(Kernel(norm=same), Kernel(norm=root_mean_square), "reference", converted=NORMS),
    "norm inside": of_gated(Kernel(), Kernel(norm=same), "converted={'q': L2Norm(eps=1e-06), 'k': L2Norm(eps=1e-06)}"),
    "sigmoid outside": of_gated(
        Kernel(gate=same), Kernel(), "no converted for beta", converted={"beta": torch.sigmoid}
    ),
    "sigmoid inside": of_gated(Kernel(), Kernel(gate=same), "converted={'beta': sigmoid}"),
    "scale folded in": conv(
        attention_folded,
        attention_scaled,
        "no converted for q",
        op="attention",
        converted={"q": Scaled("width ** -0.5")},
    ),
    "scale inside": conv(
        attention_scaled, attention_folded, "converted={'q': Scaled(factor='width ** -0.5')}", op="attention"
    ),
    "an option folded in": conv(
        attention_folded, attention_scaled, "reference", op="attention", converted={"q": folded}
    ),
    "an option given": conv(
        attention_given,
        attention_divided,
        "reference",
        op="attention",
        names={"softmax_scale": "scale"},
        converted={"softmax_scale": number},
    ),
    "no empty sequences": Convention(
        adapt(first_tokens, op="causal_conv1d", dtypes=["float32"], slack=False, domain="length > 0"),
        adapt(first_tokens, op="causal_conv1d", dtypes=["float32"], slack=False),
        "domain='length > 0'",
    ),
    "no strong gates": Convention(
        adapt(running_sums.running_sums, op="simple_gla", promises=SUMS, domain="gate > -1e4"),
        adapt(running_sums.running_sums, op="simple_gla", promises=SUMS),
        "domain='gate > -1e4'",
    ),
}
