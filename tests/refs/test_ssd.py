"""SSD against the scan that it specialises, and the bounds of its chunked form."""

import pytest
import torch
from einops import rearrange, repeat

from packproof.base.errors import ArgumentError
from packproof.refs import selective_scan, ssd, ssd_chunked, ssd_step


def normal(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_ssd_is_a_scan_whose_channels_share_the_decay_of_their_head():
    t, h, p, g, n = 11, 4, 3, 2, 5
    x, z, dt = normal(t, h, p, seed=0), normal(t, h, p, seed=1), normal(t, h, seed=2)
    A, B, C = -normal(h, seed=3).abs(), normal(t, g, n, seed=4), normal(t, g, n, seed=5)
    D, bias, state = normal(h, p, seed=6), normal(h, seed=7), normal(2, h, p, n, seed=8)
    pack = {"cu_seqlens": torch.tensor([0, 7, 11]), "return_final_states": True}
    y, final = ssd(x, dt, A, B, C, D, z, bias, dt_softplus=True, initial_states=state, **pack)
    y_scan, final_scan = selective_scan(
        rearrange(x, "t h p -> t (h p)"),
        repeat(dt, "t h -> t (h p)", p=p),
        repeat(A, "h -> (h p) n", p=p, n=n),
        B,
        C,
        rearrange(D, "h p -> (h p)"),
        rearrange(z, "t h p -> t (h p)"),
        repeat(bias, "h -> (h p)", p=p),
        delta_softplus=True,
        initial_states=rearrange(state, "s h p n -> s (h p) n"),
        **pack,
    )
    torch.testing.assert_close(rearrange(y, "t h p -> t (h p)"), y_scan, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(rearrange(final, "s h p n -> s (h p) n"), final_scan, rtol=1e-13, atol=1e-13)


def test_steps_make_ssd():
    t, h, p, n = 6, 2, 3, 4
    x, dt, A = normal(t, h, p, seed=0), normal(t, h, seed=1).abs(), -normal(h, seed=2).abs()
    B, C = normal(2, t, h, n, seed=3)
    state, ys = torch.zeros(h, p, n, dtype=torch.float64), []
    for i in range(t):
        state, y = ssd_step(state, x[i], dt[i], A, B[i], C[i])
        ys.append(y)
    assert torch.equal(torch.stack(ys), ssd(x, dt, A, B, C, cu_seqlens=torch.tensor([0, t])))


def test_one_d_per_head_is_that_d_for_each_of_its_channels():
    t, h, p, n = 4, 2, 3, 2
    x, dt, A, (B, C) = (
        normal(t, h, p, seed=0),
        normal(t, h, seed=1),
        -normal(h, seed=2).abs(),
        normal(2, t, 1, n, seed=3),
    )
    D, cu_seqlens = normal(h, seed=4), torch.tensor([0, t])
    wide = repeat(D, "h -> h p", p=p)
    assert torch.equal(ssd(x, dt, A, B, C, D, cu_seqlens=cu_seqlens), ssd(x, dt, A, B, C, wide, cu_seqlens=cu_seqlens))


def test_chunks_have_tokens():
    x, A, B = normal(4, 1, 2, seed=0), normal(1, seed=1), normal(4, 1, 2, seed=2)
    with pytest.raises(ArgumentError, match="ssd_chunked: chunk is 0; 1 or more was expected"):
        ssd_chunked(x, x[..., 0], A, B, B, cu_seqlens=torch.tensor([0, 4]), chunk=0)
