"""What is put in the place of another package's function has that function's convention."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from packproof import refs
from tests.adapters import stand_ins
from tests.integration import in_their_place
from tests.integration.in_their_place import causal_conv1d, causal_conv1d_fn, rotary_embedding, selective_scan_fn


@pytest.fixture(autouse=True)
def by_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """The references instead of kernels, which need a GPU."""
    ops = {name: getattr(refs, name) for name in ("causal_conv1d", "selective_scan", "rope")}
    monkeypatch.setattr(in_their_place, "ours", SimpleNamespace(**ops))


def test_each_row_of_a_batch_is_convolved_alone_from_its_own_state() -> None:
    x, weight, states = torch.randn(2, 3, 5), torch.randn(3, 4), torch.randn(2, 3, 3)
    y, last = causal_conv1d_fn(x, weight, initial_states=states, return_final_states=True)
    for row in range(2):
        want = torch.nn.functional.conv1d(torch.cat([states[row], x[row]], 1)[None], weight[:, None], groups=3)
        torch.testing.assert_close(y[row], want[0])
        torch.testing.assert_close(last[row], x[row, :, -3:])


def test_sequences_begin_where_seq_idx_changes_and_padding_is_zero() -> None:
    x, weight, bias = torch.randn(2, 3, 5), torch.randn(3, 2), torch.ones(3)
    seq_idx = torch.tensor([[0, 0, 1, 1, -1], [2, 3, 3, -1, -1]])
    y = causal_conv1d_fn(x, weight, bias, seq_idx=seq_idx, activation="swish")
    for row, (start, end) in ((0, (0, 2)), (0, (2, 4)), (1, (0, 1)), (1, (1, 3))):
        alone = causal_conv1d_fn(x[row : row + 1, :, start:end], weight, bias, activation="silu")
        torch.testing.assert_close(y[row : row + 1, :, start:end], alone)
    assert not y.mT[seq_idx < 0].any()


@pytest.mark.parametrize(("b", "c"), [((2, 4, 5), (2, 4, 5)), ((2, 3, 4, 5), (2, 3, 4, 5)), ((6, 4), (2, 4, 5))])
def test_a_scan_takes_its_matrices_per_token_per_group_and_constant(b: tuple[int, ...], c: tuple[int, ...]) -> None:
    u, delta, A, B, C = torch.randn(2, 6, 5), torch.rand(2, 6, 5), -torch.rand(6, 4), torch.randn(b), torch.randn(c)
    y, state = selective_scan_fn(u, delta, A, B, C, return_last_state=True)
    h = torch.zeros(2, 6, 4)
    for t in range(5):
        step = delta[..., t, None]
        h = torch.exp(step * A) * h + step * u[..., t, None] * for_channels(B, t)
        torch.testing.assert_close(y[..., t], (h * for_channels(C, t)).sum(-1))
    torch.testing.assert_close(state, h)


def test_the_exact_scan_rounds_values_and_gradients_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = ((1, 6, 40), (1, 6, 40), (6, 4), (1, 4, 40), (1, 4, 40))
    u, delta, A, B, C = (torch.rand(shape, dtype=torch.float64).bfloat16().requires_grad_() for shape in shapes)
    A = -A.detach().float()
    wide = [x.detach().double().requires_grad_() for x in (u, delta, A, B, C)]
    u64, delta64, A64, B64, C64 = wide
    want, want_state = selective_scan_fn(u64, delta64, A64, B64, C64, return_last_state=True)
    monkeypatch.setattr(in_their_place, "ours", SimpleNamespace(selective_scan=in_their_place.exact_selective_scan))
    y, state = selective_scan_fn(u, delta, A, B, C, return_last_state=True)
    assert y.equal(want.to(torch.bfloat16))
    assert state.equal(want_state.float())
    g = torch.rand_like(y)
    (got,), (exact,) = torch.autograd.grad(y, [B], g), torch.autograd.grad(want, [B64], g.double())
    assert got.equal(exact.to(torch.bfloat16))


def for_channels(x: Tensor, t: int) -> Tensor:
    """(b or 1, 6, n) of what token t has."""
    if x.ndim == 2:
        return x[None]
    return x[..., t][:, None].expand(-1, 6, -1) if x.ndim == 3 else x[..., t].repeat_interleave(6 // x.shape[1], 1)


def test_rotary_takes_a_batch_or_a_pack_with_start_positions() -> None:
    x, table, starts = torch.randn(2, 5, 1, 4), torch.randn(9, 2), torch.tensor([3, 0])
    rows = torch.tensor([0, 5, 10])
    want = stand_ins.rotary_embedding(x.flatten(0, 1)[None], table, table, seqlen_offsets=starts, cu_seqlens=rows)
    batch = rotary_embedding(x, table, table, seqlen_offsets=starts)
    pack = rotary_embedding(x.flatten(0, 1)[None], table, table, seqlen_offsets=starts, cu_seqlens=rows)
    assert batch.equal(want.view_as(x))
    assert pack.equal(want)
    later = rotary_embedding(x, table, table, seqlen_offsets=2)
    assert later.equal(rotary_embedding(x, table[2:], table[2:]))


def test_a_residual_is_added_after_the_convolution() -> None:
    x, weight = torch.randn(1, 5, 3), torch.randn(3, 4)
    rows = torch.tensor([0, 2, 5])
    y, _ = causal_conv1d(x, weight, residual=x, activation="swish", cu_seqlens=rows)
    want = refs.causal_conv1d(x[0], weight, cu_seqlens=rows, activation="silu")
    torch.testing.assert_close(y[0], want + x[0])
