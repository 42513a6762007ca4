"""Plain convolutions that are incorrect past N tokens, sequences or tokens of one sequence, and a correct one."""

# mypy: allow-untyped-defs

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch

from packproof.refs import causal_conv1d_update

_SPEC = importlib.util.spec_from_file_location("threshold_limits", Path(__file__).with_name("threshold_limits.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
threshold_limits = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(threshold_limits)
BLOCK = 64


@dataclass(frozen=True)
class Config:
    max_position_embeddings: int = 4096


CONFIG = Config()


def _convolve(x, weight, cu_seqlens):
    """The outputs, and the row, the sequence and the position of each token."""
    rows, width = torch.arange(len(x)), weight.shape[1]
    ends = torch.cat([cu_seqlens.long(), torch.tensor([len(x)])])
    sequences = torch.searchsorted(ends, rows, right=True) - 1
    positions = rows - ends[sequences]
    exact = torch.promote_types(x.dtype, torch.float32)
    padded = torch.cat([x, x.new_zeros(1, x.shape[1])]).to(exact)
    y = torch.zeros_like(padded[:-1])
    for tap in range(width):
        distance = width - 1 - tap
        source = torch.where((positions >= distance) & (rows < cu_seqlens[-1]), rows - distance, len(x))
        y = y + padded[source] * weight[:, tap].to(exact)
    y = torch.where((rows < cu_seqlens[-1])[:, None], y, torch.zeros_like(y)).to(x.dtype)
    return y, rows, sequences, positions


def _past(condition, y):
    """Outputs twice as large where a condition holds."""
    return torch.where(condition[:, None], 2 * y, y)


def tokens_past_a_literal(x, weight, *, cu_seqlens):
    y, rows, _, _ = _convolve(x, weight, cu_seqlens)
    return _past(rows >= 300, y)


def tokens_past_a_large_literal(x, weight, *, cu_seqlens):
    y, rows, _, _ = _convolve(x, weight, cu_seqlens)
    return _past(rows >= 65_536, y)


def tokens_past_a_shift(x, weight, *, cu_seqlens):
    y, rows, _, _ = _convolve(x, weight, cu_seqlens)
    return _past(rows >= 1 << 12, y)


def length_past_a_product(x, weight, *, cu_seqlens):
    y, _, _, positions = _convolve(x, weight, cu_seqlens)
    return _past(positions >= 64 * BLOCK, y)


def sequences_past_a_default(x, weight, *, cu_seqlens, table=5_000):
    y, _, sequences, _ = _convolve(x, weight, cu_seqlens)
    return _past(sequences >= table, y)


def length_past_a_default(x, weight, *, cu_seqlens, table=5_000):
    y, _, _, positions = _convolve(x, weight, cu_seqlens)
    return _past(positions >= table, y)


def length_past_a_config(x, weight, *, cu_seqlens):
    y, _, _, positions = _convolve(x, weight, cu_seqlens)
    return _past(positions >= CONFIG.max_position_embeddings, y)


def sequences_past_a_module(x, weight, *, cu_seqlens):
    y, _, sequences, _ = _convolve(x, weight, cu_seqlens)
    return _past(sequences >= threshold_limits.SEQUENCES, y)


def channels_past_a_literal(x, weight, *, cu_seqlens):
    y, _, _, _ = _convolve(x, weight, cu_seqlens)
    return torch.cat([y[:, :300], 2 * y[:, 300:]], 1)


def raises_past_channels(x, weight, *, cu_seqlens):
    """No launch for so many channels."""
    y, _, _, _ = _convolve(x, weight, cu_seqlens)
    if x.shape[1] > 300:
        raise IndexError("tile 2")
    return y


def requests_past_a_literal(x, weight, *, states, state_indices, cu_seqlens):
    """A step of a server without the requests past a number."""
    y, new_states = causal_conv1d_update(x, weight, states=states, state_indices=state_indices, cu_seqlens=cu_seqlens)
    slots = state_indices[300:].long()
    new_states[slots[slots >= 0]] = 0
    return y, new_states


def _with_limit(limit):
    def tokens_past_a_closure(x, weight, *, cu_seqlens):
        y, rows, _, _ = _convolve(x, weight, cu_seqlens)
        return _past(rows >= limit, y)

    return tokens_past_a_closure


tokens_past_a_closure = _with_limit(1_000)


def tokens_at_a_literal(x, weight, *, cu_seqlens):
    """Incorrect at exactly so many tokens, as a kernel without the last one of whole tiles."""
    y, _, _, _ = _convolve(x, weight, cu_seqlens)
    return 2 * y if len(x) == 1_024 else y


class _GradientPastALiteral(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dx):
        return torch.cat([dx[:1_000], 2 * dx[1_000:]])


def gradient_past_a_literal(x, weight, *, cu_seqlens):
    return _convolve(_GradientPastALiteral.apply(x), weight, cu_seqlens)[0]


def _hidden(axis, limit):
    """Incorrect past a limit that is no integer of the source."""

    def convolution(x, weight, *, cu_seqlens):
        y, *places = _convolve(x, weight, cu_seqlens)
        return _past(places[axis] >= limit, y)

    return convolution


hidden_tokens = _hidden(0, float("1000"))
hidden_tokens_300 = _hidden(0, float("300"))
hidden_tokens_4096 = _hidden(0, float("4096"))
hidden_tokens_65536 = _hidden(0, float("65536"))
hidden_sequences = _hidden(1, float("5000"))
hidden_sequences_300 = _hidden(1, float("300"))
hidden_length = _hidden(2, float("1000"))
hidden_length_5000 = _hidden(2, float("5000"))
hidden_length_300 = _hidden(2, float("300"))


def correct(x, weight, *, cu_seqlens, table=5_000):
    """With all constants of the others, where they change nothing."""
    y, rows, _, positions = _convolve(x, weight, cu_seqlens)
    limits = 300, 1_000, 1_024, 1 << 12, 64 * BLOCK, 65_536, table, CONFIG.max_position_embeddings
    for limit in limits:
        y = torch.where((rows >= limit)[:, None], 1 * y, y)
        y = torch.where((positions >= limit)[:, None], 1 * y, y)
    return y
