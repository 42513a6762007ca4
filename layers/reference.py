"""References of the blocks, from the equations of the papers, in float64, one sequence at a time.

They share names of parameters and checks of arguments with the blocks, but no mathematics.
"""

# mypy: allow-untyped-calls

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad, silu

from packproof.base.arguments import check_offsets, check_offsets_form, whole_number
from packproof.base.errors import ArgumentError, checked_call
from packproof.base.wording import kind

Parameters = Mapping[str, Tensor]
_EPS = 1e-5
_ATTENTION_PARAMETERS = ("in_proj.weight", "out_proj.weight")
_SHARED_PARAMETERS = ("in_proj.weight", "conv1d.weight", "conv1d.bias", "A_log", "D", "out_proj.weight")
_MAMBA_PARAMETERS = (*_SHARED_PARAMETERS, "x_proj.weight", "dt_proj.weight", "dt_proj.bias")
_MAMBA2_PARAMETERS = (*_SHARED_PARAMETERS, "dt_bias", "norm.weight")


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
    p = _checked_parameters("mamba_reference", parameters, _MAMBA_PARAMETERS, u, cu_seqlens)
    return _apply_per_sequence(lambda sequence: _mamba(p, sequence), u, cu_seqlens)


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
    p = _checked_parameters("mamba2_reference", parameters, _MAMBA2_PARAMETERS, u, cu_seqlens)
    heads = len(p["A_log"])
    if heads % whole_number("mamba2_reference", "ngroups", ngroups, 1, ArgumentError):
        raise ArgumentError(f"mamba2_reference: ngroups is {ngroups}, which does not divide the {heads} heads")
    return _apply_per_sequence(lambda sequence: _mamba2(p, sequence, ngroups), u, cu_seqlens)


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
    required_names = (
        *_ATTENTION_PARAMETERS,
        *(convolution if isinstance(parameters, Mapping) and convolution[0] in parameters else ()),
    )
    p = _checked_parameters(name, parameters, required_names, u, cu_seqlens)
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

    def rotate(x: Tensor) -> Tensor:
        return _rotate(x, rotary_emb_dim, rotary_emb_base, rotary_emb_interleaved) if rotary_emb_dim else x

    return _apply_per_sequence(lambda sequence: _attention(p, sequence, heads, rotate, sliding_window), u, cu_seqlens)


def _checked_parameters(
    name: str, parameters: Parameters, required_names: Sequence[str], u: Tensor, cu_seqlens: Tensor
) -> Parameters:
    """The parameters in float64. Raises ArgumentError and LayoutError."""
    if not isinstance(parameters, Mapping):
        raise ArgumentError(f"{name}: parameters is {kind(parameters)} but a state dict was expected")
    if missing := [key for key in required_names if not isinstance(parameters.get(key), Tensor)]:
        raise ArgumentError(f"{name}: parameters has no {', '.join(missing)}; the state dict of its block was expected")
    d_model = parameters["in_proj.weight"].shape[-1]
    if not isinstance(u, Tensor) or u.ndim != 2 or u.shape[1] != d_model:
        actual = tuple(u.shape) if isinstance(u, Tensor) else kind(u)
        raise ArgumentError(f"{name}: u is {actual} but a tensor (t, {d_model}) was expected")
    check_offsets_form(name, cu_seqlens)
    check_offsets(name, cu_seqlens, len(u), "u has")
    return {key: parameters[key].double() for key in required_names}


def _apply_per_sequence(block: Callable[[Tensor], Tensor], u: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The block over each non-empty sequence, one after another, then zeros for slack."""
    offsets = cu_seqlens.tolist()
    outputs = [block(u[start:end].double()) for start, end in pairwise(offsets) if start < end]
    return torch.cat([*outputs, torch.zeros_like(u[offsets[-1] :], dtype=torch.float64)])


def _mamba(p: Parameters, u: Tensor) -> Tensor:
    channels, states = p["A_log"].shape
    x, z = (u @ p["in_proj.weight"].T).chunk(2, dim=1)
    x = silu(_convolution(p, x))
    dt_low_rank, B, C = (x @ p["x_proj.weight"].T).split((p["dt_proj.weight"].shape[1], states, states), dim=1)
    step = _softplus(dt_low_rank @ p["dt_proj.weight"].T + p["dt_proj.bias"])
    A, h, y = -p["A_log"].exp(), u.new_zeros(channels, states), []
    for t in range(len(u)):
        h = (step[t, :, None] * A).exp() * h + step[t, :, None] * B[t] * x[t, :, None]
        y.append(h @ C[t] + p["D"] * x[t])
    return (torch.stack(y) * silu(z)) @ p["out_proj.weight"].T


def _mamba2(p: Parameters, u: Tensor, groups: int) -> Tensor:
    heads, channels = len(p["A_log"]), len(p["norm.weight"])
    bc_channels = (len(p["conv1d.weight"]) - channels) // 2
    z, xBC, step = (u @ p["in_proj.weight"].T).split((channels, channels + 2 * bc_channels, heads), dim=1)
    x, B, C = silu(_convolution(p, xBC)).split((channels, bc_channels, bc_channels), dim=1)
    x, step = x.unflatten(1, (heads, -1)), _softplus(step + p["dt_bias"])
    B, C = (tensor.unflatten(1, (groups, -1)).repeat_interleave(heads // groups, dim=1) for tensor in (B, C))
    log_decay = (step * -p["A_log"].exp()).cumsum(0).T  # [h, i]: the logarithm of all decay up to token i
    causal = torch.ones(len(u), len(u), dtype=torch.bool, device=u.device).tril()
    L = (log_decay[:, :, None] - log_decay[:, None, :]).masked_fill(~causal, -torch.inf).exp()
    M = L * torch.einsum("ihn, jhn -> hij", C, B)
    y = torch.einsum("hij, jh, jhp -> ihp", M, step, x) + p["D"][:, None] * x
    y = (y.flatten(1) * silu(z)).unflatten(1, (groups, -1))
    y = y / (y.square().mean(-1, keepdim=True) + _EPS).sqrt()
    out: Tensor = (y.flatten(1) * p["norm.weight"]) @ p["out_proj.weight"].T
    return out


def _attention(
    p: Parameters, u: Tensor, heads: Sequence[int], rotate: Callable[[Tensor], Tensor], window: int | None
) -> Tensor:
    """Attention head by head: query head i reads key and value head i // (heads / heads of keys)."""
    qkv = u @ p["in_proj.weight"].T
    qkv = _convolution(p, qkv) if "conv1d.weight" in p else qkv
    q, k, v = qkv.unflatten(1, (heads[0] + 2 * heads[1], -1)).transpose(0, 1).split((heads[0], heads[1], heads[1]))
    distance = torch.arange(len(u), device=u.device)[:, None] - torch.arange(len(u), device=u.device)
    masked_out = (distance < 0) | (distance >= (len(u) if window is None else window))
    y = []
    for i, query in enumerate(q):
        kv_head = i // (heads[0] // heads[1])
        scores = rotate(query) @ rotate(k[kv_head]).T / query.shape[1] ** 0.5
        y.append(scores.masked_fill(masked_out, -torch.inf).softmax(1) @ v[kv_head])
    return torch.cat(y, 1) @ p["out_proj.weight"].T


def _rotate(x: Tensor, channels: int, base: float, interleaved: bool) -> Tensor:
    """Multiply pairs of channels of x (t, k), as complex numbers, by e^(i t θ)."""
    pairs = x[:, :channels].unflatten(1, (-1, 2) if interleaved else (2, -1))
    real, imaginary = pairs.unbind(2 if interleaved else 1)
    theta = base ** (-2 * torch.arange(channels // 2, device=x.device, dtype=x.dtype) / channels)
    angle = torch.arange(len(x), device=x.device, dtype=x.dtype)[:, None] * theta
    rotated = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angle), angle)
    rotated_channels = torch.stack([rotated.real, rotated.imag], 2 if interleaved else 1).flatten(1)
    return torch.cat([rotated_channels, x[:, channels:]], 1)


def _convolution(p: Parameters, x: Tensor) -> Tensor:
    """bias + Σ_j weight[:, j] x[t - (w - 1) + j], with zeros before the first token."""
    weight = p["conv1d.weight"].squeeze(1)
    windows = pad(x, (0, 0, weight.shape[1] - 1, 0)).unfold(0, weight.shape[1], 1)  # (t, d, w)
    convolved: Tensor = (windows * weight).sum(-1) + p["conv1d.bias"]
    return convolved


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))
