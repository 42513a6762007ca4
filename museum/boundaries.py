"""Bugs between the offsets and the kernel: the meaning of ids, positions and offsets, and their way to the kernel."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packproof import refs
from packproof.base.errors import copy_signature_of
from packproof.museum.custom_backward import Outputs, graft, single_sequence_offsets


def conv_by_ids(x: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, activation: str | None) -> Tensor:
    """A convolution by `seq_idx`: a tap counts if its id equals the token's; -1 is padding."""
    w, acc = weight.shape[1], torch.promote_types(x.dtype, torch.float32)
    taps, offset = weight.to(acc), None if bias is None else bias.to(acc)
    padded, padded_ids = functional.pad(x.to(acc), (0, 0, w - 1, 0)), functional.pad(ids, (w - 1, 0), value=-2)
    y = torch.zeros_like(x, dtype=acc)
    for j in range(w):
        same_sequence = (padded_ids[j : j + len(x)] == ids) & (ids >= 0)
        y = y + torch.where(same_sequence[:, None], padded[j : j + len(x)], 0) * taps[:, j]
    y = y if offset is None else y + offset
    y = functional.silu(y) if activation == "silu" else y
    return torch.where((ids >= 0)[:, None], y, 0).to(x)


def _ids(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return refs.seq_idx_from_cu_seqlens(cu_seqlens, len(x))


def by_sequence_ids(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: str | None = None
) -> Tensor:
    """The correct kernel at the base of the bugs below."""
    return conv_by_ids(x, weight, bias, _ids(x, cu_seqlens), activation)


def position_ids_as_ids(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: str | None = None
) -> Tensor:
    """No two neighbours have one position, so every tap but the last is cut: the convolution is pointwise."""
    positions = refs.position_ids_from_cu_seqlens(cu_seqlens, len(x))
    return conv_by_ids(x, weight, bias, torch.where(_ids(x, cu_seqlens) < 0, -1, positions), activation)


def ids_that_recur(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: str | None = None
) -> Tensor:
    """Ids alternate between 0 and 1: equal ones two sequences apart are taken for one sequence."""
    ids = _ids(x, cu_seqlens)
    return conv_by_ids(x, weight, bias, torch.where(ids < 0, -1, ids % 2), activation)


def ids_of_two_byte_tokens(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: str | None = None
) -> Tensor:
    """Ids are loaded in vectors counted in tokens of two bytes each: half of a vector of 8 is never loaded."""
    ids, row = _ids(x, cu_seqlens), torch.arange(len(x), device=x.device)
    not_loaded = (row % 8 >= 4) & (ids >= 0) if x.element_size() == 2 else ids < -1
    return conv_by_ids(x, weight, bias, torch.where(not_loaded, 0, ids), activation)


def boundaries_where_position_is_zero(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: str | None = None
) -> Tensor:
    """Boundaries are inferred from positions equal to 0, but the positions of this model begin at 2."""
    positions = refs.position_ids_from_cu_seqlens(cu_seqlens, len(x)) + 2
    inferred_ids = (positions == 0).cumsum(0)
    return conv_by_ids(x, weight, bias, torch.where(_ids(x, cu_seqlens) < 0, -1, inferred_ids), activation)


def slack_as_sequences(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: str | None = None
) -> Tensor:
    """The positions of padding are all 0, so that every padding row becomes a sequence of one token."""
    positions = refs.position_ids_from_cu_seqlens(cu_seqlens, len(x))
    return conv_by_ids(x, weight, bias, (positions == 0).cumsum(0), activation)


def padding_in_forward_only(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: str | None = None
) -> Outputs:
    """Forward zeroes padding rows; backward has no such rule, and their incoming gradient flows on."""
    ids = _ids(x, cu_seqlens)
    args = (x, weight, bias)
    forward = conv_by_ids(*args, ids, activation)
    return graft(forward, conv_by_ids(*args, torch.where(ids < 0, len(cu_seqlens), ids), activation))


def tail_of_the_padded_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: str | None = None
) -> Tensor:
    """The fallback pads on both sides and keeps the last of the results instead of the first: w-1 tokens ahead."""
    d, w = weight.shape
    rows = [x[:0]]
    for start, end in zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:], strict=False):
        if start < end:
            y = functional.conv1d(x[start:end].T[None], weight[:, None], bias, padding=w - 1, groups=d)[0].T
            rows.append(y[-(end - start) :])
    y = torch.cat(rows)
    y = functional.silu(y) if activation == "silu" else y
    return torch.cat([y, x.new_zeros(len(x) - len(y), d)])


def weight_gradient_for_every_row(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: Any = None
) -> Outputs:
    """The programs for the gradient of the weights are launched once per sequence although each covers the pack."""
    n_launches = max(len(cu_seqlens) - 1, 1)
    repeated_weight = weight * n_launches - weight.detach() * (n_launches - 1)
    options = {"cu_seqlens": cu_seqlens, "activation": activation}
    return graft(
        refs.causal_conv1d(x, weight, bias, **options), refs.causal_conv1d(x, repeated_weight, bias, **options)
    )


def base_rounded_to_the_tile(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: Any = None
) -> Outputs:
    """The compiler was promised that sequences start at multiples of 4 rows: the base pointer loses its last bits."""
    if len(x) == 0:
        return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, activation=activation)
    ids, local = _ids(x, cu_seqlens).long(), refs.position_ids_from_cu_seqlens(cu_seqlens, len(x)).long()
    base = torch.where(ids < 0, 0, cu_seqlens.long()[ids.clamp(min=0)] // 4 * 4)
    return refs.causal_conv1d(x[base + local], weight, bias, cu_seqlens=cu_seqlens, activation=activation)


@copy_signature_of(refs.selective_scan)
def scan_without_the_optional_field(
    u: Tensor, cu_seqlens: Tensor, initial_states: Tensor | None = None, **others: Any
) -> Outputs:
    """Boundaries are derived only if an optional field is present, here the initial states; otherwise they are lost."""
    if initial_states is None and not others.get("return_final_states"):
        cu_seqlens = single_sequence_offsets(cu_seqlens)
    return refs.selective_scan(u, cu_seqlens=cu_seqlens, initial_states=initial_states, **others)


@copy_signature_of(refs.selective_scan)
def scan_of_reinterpreted_offsets(u: Tensor, cu_seqlens: Tensor, **others: Any) -> Outputs:
    """The kernel reads 64-bit offsets and their dtype is not checked: it reads two 32-bit ones as one."""
    if cu_seqlens.dtype == torch.int32:
        pairs = functional.pad(cu_seqlens, (0, len(cu_seqlens))).view(torch.int64)
        cu_seqlens = functional.pad(pairs[1:].clamp(0, len(u)).cummax(0).values, (1, 0))
    return refs.selective_scan(u, cu_seqlens=cu_seqlens, **others)


@copy_signature_of(refs.selective_scan)
def scan_that_searches_for_ever(u: Tensor, cu_seqlens: Tensor, **others: Any) -> Outputs:
    """The binary search for a token's sequence never ends at a token equal to an offset: no bound moves."""
    offsets = cu_seqlens.tolist()
    for token in range(1, len(u)):
        low, high = 0, len(offsets) - 1
        while low <= high:
            middle = (low + high) // 2
            if offsets[middle] < token:
                low = middle + 1
            elif offsets[middle] > token:
                high = middle - 1
    return refs.selective_scan(u, cu_seqlens=cu_seqlens, **others)


@copy_signature_of(refs.attention)
def attention_with_offsets_of_a_warp(*, cu_seqlens: Tensor, **others: Any) -> Outputs:
    """A warp loads 32 offsets. The end of its last sequence belongs to the next warp: it is never loaded."""
    if len(cu_seqlens) > 32:
        cu_seqlens = torch.cat([cu_seqlens[:32], cu_seqlens[31:32], cu_seqlens[33:]])
    return refs.attention(cu_seqlens=cu_seqlens, **others)


@copy_signature_of(refs.attention)
def attention_mask_lost_in_conversion(*, cu_seqlens: Tensor, causal: bool = False, **others: Any) -> Outputs:
    """Converting the mask returns an object of its parent class: it is no longer causal."""
    return refs.attention(cu_seqlens=cu_seqlens, causal=causal and cu_seqlens.dtype == torch.int32, **others)
