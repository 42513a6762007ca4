"""References of the blocks, from the equations of the papers, in float64, one sequence at a time.

They share names of parameters and checks of arguments with the blocks, but no mathematics.
"""

# mypy: allow-untyped-calls

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad, silu

from packproof.refs.arguments import check_offsets, check_offsets_form, whole_number
from packproof.refs.errors import ArgumentError, checked_call
from packproof.refs.wording import kind

Parameters = Mapping[str, Tensor]
_EPS = 1e-5
_ATTENTION = ("in_proj.weight", "out_proj.weight")
_SHARED = ("in_proj.weight", "conv1d.weight", "conv1d.bias", "A_log", "D", "out_proj.weight")
_MAMBA = (*_SHARED, "x_proj.weight", "dt_proj.weight", "dt_proj.bias")
_MAMBA2 = (*_SHARED, "dt_bias", "norm.weight")


@checked_call
def mamba_reference(parameters: Parameters, u: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The reference of MambaBlock (Gu & Dao 2023, algorithm 2 and figure 3), slow, in float64.

    parameters: by the names of a state dict, of any float dtype; gradients reach them.
    u: (t, d_model).
    cu_seqlens: (s + 1,); rows past its end give zeros.
    Returns (t, d_model) in float64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof import layers, refs
    >>> block, u = layers.MambaBlock(8, ops=refs).double(), torch.randn(5, 8, dtype=torch.float64)
    >>> exact = layers.mamba_reference(block.state_dict(), u, cu_seqlens=torch.tensor([0, 2, 5]))
    >>> torch.allclose(block(u, cu_seqlens=torch.tensor([0, 2, 5])), exact)
    True
    """
    p = _checked("mamba_reference", parameters, _MAMBA, u, cu_seqlens)
    return _each(lambda sequence: _mamba(p, sequence), u, cu_seqlens)


@checked_call
def mamba2_reference(parameters: Parameters, u: Tensor, *, cu_seqlens: Tensor, ngroups: int = 1) -> Tensor:
    """The reference of Mamba2Block (Dao & Gu 2024, equation 16 and figure 6), slow, in float64.

    parameters: by the names of a state dict, of any float dtype; gradients reach them.
    u: (t, d_model).
    cu_seqlens: (s + 1,); rows past its end give zeros.
    ngroups: as in the block. All other sizes follow from the shapes of the parameters.
    Returns (t, d_model) in float64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof import layers, refs
    >>> block, u = layers.Mamba2Block(8, headdim=4, ops=refs).double(), torch.randn(5, 8, dtype=torch.float64)
    >>> exact = layers.mamba2_reference(block.state_dict(), u, cu_seqlens=torch.tensor([0, 2, 5]))
    >>> torch.allclose(block(u, cu_seqlens=torch.tensor([0, 2, 5])), exact)
    True
    """
    p = _checked("mamba2_reference", parameters, _MAMBA2, u, cu_seqlens)
    heads = len(p["A_log"])
    if heads % whole_number("mamba2_reference", "ngroups", ngroups, 1, ArgumentError):
        raise ArgumentError(f"mamba2_reference: ngroups is {ngroups}, which does not divide the {heads} heads")
    return _each(lambda sequence: _mamba2(p, sequence, ngroups), u, cu_seqlens)


@checked_call
def attention_reference(
    parameters: Parameters,
    u: Tensor,
    *,
    cu_seqlens: Tensor,
    num_heads: int,
    num_heads_kv: int | None = None,
    rotary_emb_dim: int = 0,
    rotary_emb_base: float = 10000.0,
    rotary_emb_interleaved: bool = False,
    sliding_window: int | None = None,
) -> Tensor:
    """The reference of AttentionBlock (Vaswani et al. 2017, equation 1; Su et al. 2021, equation 34), in float64.

    parameters: by the names of a state dict, of any float dtype; gradients reach them. With conv1d.weight and
    conv1d.bias there is a convolution.
    u: (t, embed_dim).
    cu_seqlens: (s + 1,); rows past its end give zeros.
    num_heads, num_heads_kv, rotary_emb_dim, rotary_emb_base, rotary_emb_interleaved, sliding_window: as in the block.
    Returns (t, embed_dim) in float64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof import layers, refs
    >>> block, u = layers.AttentionBlock(8, 4, 2, ops=refs).double(), torch.randn(5, 8, dtype=torch.float64)
    >>> heads, offsets = {"num_heads": 4, "num_heads_kv": 2}, torch.tensor([0, 2, 5])
    >>> exact = layers.attention_reference(block.state_dict(), u, cu_seqlens=offsets, **heads)
    >>> torch.allclose(block(u, cu_seqlens=offsets), exact)
    True
    """
    name, convolution = "attention_reference", ("conv1d.weight", "conv1d.bias")
    needed = (*_ATTENTION, *(convolution if isinstance(parameters, Mapping) and convolution[0] in parameters else ()))
    p = _checked(name, parameters, needed, u, cu_seqlens)
    num_heads_kv = num_heads if num_heads_kv is None else num_heads_kv
    heads = [
        whole_number(name, n, value, 1, ArgumentError)
        for n, value in (("num_heads", num_heads), ("num_heads_kv", num_heads_kv))
    ]
    if len(p["in_proj.weight"]) * heads[0] != p["out_proj.weight"].shape[1] * (heads[0] + 2 * heads[1]):
        raise ArgumentError(
            f"{name}: num_heads is {heads[0]} and num_heads_kv {heads[1]}, but the projections of parameters, "
            f"{tuple(p['in_proj.weight'].shape)} and {tuple(p['out_proj.weight'].shape)}, are of other heads"
        )

    def turned(x: Tensor) -> Tensor:
        return _turned(x, rotary_emb_dim, rotary_emb_base, rotary_emb_interleaved) if rotary_emb_dim else x

    return _each(lambda sequence: _attention(p, sequence, heads, turned, sliding_window), u, cu_seqlens)


def _checked(name: str, parameters: Parameters, needed: Sequence[str], u: Tensor, cu_seqlens: Tensor) -> Parameters:
    """The parameters in float64. Raises ArgumentError and LayoutError."""
    if not isinstance(parameters, Mapping):
        raise ArgumentError(f"{name}: parameters is {kind(parameters)} but a state dict was expected")
    if missing := [key for key in needed if not isinstance(parameters.get(key), Tensor)]:
        raise ArgumentError(f"{name}: parameters has no {', '.join(missing)}; the state dict of its block was expected")
    d_model = parameters["in_proj.weight"].shape[-1]
    if not isinstance(u, Tensor) or u.ndim != 2 or u.shape[1] != d_model:
        came = tuple(u.shape) if isinstance(u, Tensor) else kind(u)
        raise ArgumentError(f"{name}: u is {came} but a tensor (t, {d_model}) was expected")
    check_offsets_form(name, cu_seqlens)
    check_offsets(name, cu_seqlens, len(u), "u has")
    return {key: parameters[key].double() for key in needed}


def _each(block: Callable[[Tensor], Tensor], u: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The block over each non-empty sequence, one after another, then zeros for slack."""
    offsets = cu_seqlens.tolist()
    found = [block(u[start:end].double()) for start, end in pairwise(offsets) if start < end]
    return torch.cat([*found, torch.zeros_like(u[offsets[-1] :], dtype=torch.float64)])


def _mamba(p: Parameters, u: Tensor) -> Tensor:
    channels, states = p["A_log"].shape
    x, z = (u @ p["in_proj.weight"].T).chunk(2, dim=1)
    x = silu(_convolution(p, x))
    low, B, C = (x @ p["x_proj.weight"].T).split((p["dt_proj.weight"].shape[1], states, states), dim=1)
    step = _softplus(low @ p["dt_proj.weight"].T + p["dt_proj.bias"])
    A, h, y = -p["A_log"].exp(), u.new_zeros(channels, states), []
    for t in range(len(u)):
        h = (step[t, :, None] * A).exp() * h + step[t, :, None] * B[t] * x[t, :, None]
        y.append(h @ C[t] + p["D"] * x[t])
    return (torch.stack(y) * silu(z)) @ p["out_proj.weight"].T


def _mamba2(p: Parameters, u: Tensor, groups: int) -> Tensor:
    heads, channels = len(p["A_log"]), len(p["norm.weight"])
    shared = (len(p["conv1d.weight"]) - channels) // 2
    z, xBC, step = (u @ p["in_proj.weight"].T).split((channels, channels + 2 * shared, heads), dim=1)
    x, B, C = silu(_convolution(p, xBC)).split((channels, shared, shared), dim=1)
    x, step = x.unflatten(1, (heads, -1)), _softplus(step + p["dt_bias"])
    B, C = (each.unflatten(1, (groups, -1)).repeat_interleave(heads // groups, dim=1) for each in (B, C))
    past = (step * -p["A_log"].exp()).cumsum(0).T  # [h, i]: the logarithm of all decay up to token i
    causal = torch.ones(len(u), len(u), dtype=torch.bool, device=u.device).tril()
    L = (past[:, :, None] - past[:, None, :]).masked_fill(~causal, -torch.inf).exp()
    M = L * torch.einsum("ihn, jhn -> hij", C, B)
    y = torch.einsum("hij, jh, jhp -> ihp", M, step, x) + p["D"][:, None] * x
    y = (y.flatten(1) * silu(z)).unflatten(1, (groups, -1))
    y = y / (y.square().mean(-1, keepdim=True) + _EPS).sqrt()
    out: Tensor = (y.flatten(1) * p["norm.weight"]) @ p["out_proj.weight"].T
    return out


def _attention(
    p: Parameters, u: Tensor, heads: Sequence[int], turned: Callable[[Tensor], Tensor], window: int | None
) -> Tensor:
    """Attention head by head: query head i reads key and value head i // (heads / heads of keys)."""
    qkv = u @ p["in_proj.weight"].T
    qkv = _convolution(p, qkv) if "conv1d.weight" in p else qkv
    q, k, v = qkv.unflatten(1, (heads[0] + 2 * heads[1], -1)).transpose(0, 1).split((heads[0], heads[1], heads[1]))
    past = torch.arange(len(u), device=u.device)[:, None] - torch.arange(len(u), device=u.device)
    unseen = (past < 0) | (past >= (len(u) if window is None else window))
    y = []
    for i, query in enumerate(q):
        shared = i // (heads[0] // heads[1])
        scores = turned(query) @ turned(k[shared]).T / query.shape[1] ** 0.5
        y.append(scores.masked_fill(unseen, -torch.inf).softmax(1) @ v[shared])
    return torch.cat(y, 1) @ p["out_proj.weight"].T


def _turned(x: Tensor, channels: int, base: float, interleaved: bool) -> Tensor:
    """Multiply pairs of channels of x (t, k), as complex numbers, by e^(i t θ)."""
    pairs = x[:, :channels].unflatten(1, (-1, 2) if interleaved else (2, -1))
    one, two = pairs.unbind(2 if interleaved else 1)
    theta = base ** (-2 * torch.arange(channels // 2, device=x.device, dtype=x.dtype) / channels)
    angle = torch.arange(len(x), device=x.device, dtype=x.dtype)[:, None] * theta
    turned = torch.complex(one, two) * torch.polar(torch.ones_like(angle), angle)
    joined = torch.stack([turned.real, turned.imag], 2 if interleaved else 1).flatten(1)
    return torch.cat([joined, x[:, channels:]], 1)


def _convolution(p: Parameters, x: Tensor) -> Tensor:
    """bias + Σ_j weight[:, j] x[t - (w - 1) + j], with zeros before the first token."""
    weight = p["conv1d.weight"].squeeze(1)
    windows = pad(x, (0, 0, weight.shape[1] - 1, 0)).unfold(0, weight.shape[1], 1)  # (t, d, w)
    convolved: Tensor = (windows * weight).sum(-1) + p["conv1d.bias"]
    return convolved


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))
