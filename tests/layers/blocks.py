"""Blocks small enough for references, and the calls by which they are compared with them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from packproof import refs
from packproof.layers import (
    AttentionBlock,
    Mamba2Block,
    MambaBlock,
    attention_reference,
    mamba2_reference,
    mamba_reference,
)
from tests.layers import published

LENGTHS = (1, 0, 7, 3, 2)
SLACK = 2
WIDTH = 6
SAFETY = 32  # as in check_module: one sample of rounding has a largest element within a few times that of another


@dataclass(frozen=True)
class Form:
    """A block, its reference, and the state dict of mamba-ssm's with the same arguments."""

    make: Callable[..., nn.Module]
    reference: Callable[..., Tensor]
    shapes: published.Shapes

    def block(self, ops: Any = refs, **options: Any) -> nn.Module:
        """With the parameters of the state dict."""
        block = self.make(ops=ops, **options)
        block.load_state_dict(published.state_dict(self.shapes))
        return block


_MAMBA: dict[str, Any] = {"d_model": WIDTH, "d_state": 3, "d_conv": 3, "dt_rank": 2}
_MAMBA2: dict[str, Any] = {"d_model": WIDTH, "d_state": 3, "d_conv": 3, "headdim": 3, "ngroups": 2}
_ONE_GROUP = _MAMBA2 | {"ngroups": 1}
_HEADS: dict[str, Any] = {"num_heads": 4, "num_heads_kv": 2}
_TURNED: dict[str, Any] = {"rotary_emb_dim": 4, "rotary_emb_base": 7.0, "sliding_window": 3}
_OTHER_PAIRS: dict[str, Any] = {"rotary_emb_dim": 2, "rotary_emb_interleaved": True}


def _attention(shape: dict[str, Any], **options: Any) -> Form:
    heads = {name: shape[name] for name in _HEADS}
    return Form(
        partial(AttentionBlock, WIDTH, **shape, **options),
        partial(attention_reference, **heads, **options),
        published.attention(WIDTH, **shape),
    )


FORMS = {
    "mamba": Form(partial(MambaBlock, **_MAMBA), mamba_reference, published.mamba(**_MAMBA)),
    "mamba2": Form(partial(Mamba2Block, **_MAMBA2), partial(mamba2_reference, ngroups=2), published.mamba2(**_MAMBA2)),
    "mamba2, one group": Form(partial(Mamba2Block, **_ONE_GROUP), mamba2_reference, published.mamba2(**_ONE_GROUP)),
    "attention": _attention(_HEADS | {"head_dim": 6, "d_conv": 3}, **_TURNED),
    "attention, other pairs": _attention({"num_heads": 2, "num_heads_kv": 1}, **_OTHER_PAIRS),
}


@dataclass(frozen=True)
class Run:
    """An output and the gradients of a random sum of it: of u, and of each parameter by name."""

    values: Mapping[str, Tensor]

    def off_from(self, other: "Run") -> dict[str, float]:
        """The largest difference by name, over the largest value."""
        assert self.values.keys() == other.values.keys()
        pairs = {name: (value.double(), other.values[name].double()) for name, value in self.values.items()}
        return {name: float((a - b).abs().max() / b.abs().max()) for name, (a, b) in pairs.items()}


def run(call: Callable[..., Tensor], parameters: Mapping[str, Tensor], dtype: torch.dtype) -> Run:
    """call(u, cu_seqlens=...) on a pack with an empty sequence and slack; parameters: those that it reads, where it
    runs."""
    device = next(iter(parameters.values())).device
    generator = torch.Generator().manual_seed(1)
    tokens = sum(LENGTHS) + SLACK
    u, weight = (torch.randn(tokens, WIDTH, generator=generator).bfloat16() for _ in range(2))  # the same in each dtype
    u = u.to(device, dtype).requires_grad_()
    out = call(u, cu_seqlens=torch.tensor([0, *LENGTHS]).cumsum(0).to(device))
    given = {"u": u, **{name: value for name, value in parameters.items() if value.requires_grad}}
    gradients = torch.autograd.grad((out * weight.to(out)).sum(), list(given.values()))
    return Run({"output": out.detach().cpu(), **{n: g.cpu() for n, g in zip(given, gradients, strict=True)}})


def beyond_rounding(form: Form, found: Run) -> dict[str, float]:
    """The errors of an fp32 run that are larger than those of the references at fp32, by more than two samples of
    rounding differ."""
    exact = run_reference(form, form.block())
    rough = run_block(form.block(), torch.float32).off_from(exact)
    allowed = {name: SAFETY * max(error, torch.finfo(torch.float32).eps) for name, error in rough.items()}
    return {name: error for name, error in found.off_from(exact).items() if error > allowed[name]}


def run_block(block: nn.Module, dtype: torch.dtype) -> Run:
    return run(block, dict(block.named_parameters()), dtype)


def run_reference(form: Form, block: nn.Module) -> Run:
    """On the very parameters of the block."""
    parameters = {name: p.detach().double().requires_grad_() for name, p in block.named_parameters()}
    return run(partial(form.reference, parameters), parameters, torch.float64)
