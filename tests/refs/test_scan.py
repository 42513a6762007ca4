"""The scan reference against 50-digit arithmetic, and at length."""

import time

import mpmath
import pytest
import torch

from packproof.refs import selective_scan, selective_scan_step


def normal(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scan_in_50_digits(u, delta, A, B, C, D, z, delta_bias, h):
    """One sequence, from the equations: y (t, d) and the final state (d, n)."""

    def exact(x):
        return mpmath.mpf(x.item())

    def softplus(x):
        return mpmath.log1p(mpmath.exp(x))

    (t, d), (_, g, n) = u.shape, B.shape
    y = torch.empty(t, d, dtype=torch.float64)
    state = [[exact(h[i, k]) for k in range(n)] for i in range(d)]
    for s in range(t):
        for i in range(d):
            group = i // (d // g)
            step = softplus(exact(delta[s, i]) + exact(delta_bias[i]))
            for k in range(n):
                decay = mpmath.exp(step * exact(A[i, k]))
                state[i][k] = decay * state[i][k] + step * exact(B[s, group, k]) * exact(u[s, i])
            out = sum(exact(C[s, group, k]) * state[i][k] for k in range(n)) + exact(D[i]) * exact(u[s, i])
            y[s, i] = float(out * exact(z[s, i]) / (1 + mpmath.exp(-exact(z[s, i]))))
    return y, torch.tensor([[float(v) for v in row] for row in state], dtype=torch.float64)


def test_the_recurrence_is_exact_to_float64():
    t, d, g, n = 24, 4, 2, 3
    u, z = normal(t, d, seed=0), normal(t, d, seed=1)
    delta = 8 * normal(t, d, seed=2)  # steps from 1e-8 to 21: softplus in its exponential and its linear part
    delta[0] = 21  # where torch's softplus is already linear, with an error in the tenth digit
    A, B, C = -normal(d, n, seed=3).exp(), normal(t, g, n, seed=4), normal(t, g, n, seed=5)
    D, bias, h = normal(d, seed=6), normal(d, seed=7), normal(1, d, n, seed=8)
    with mpmath.workdps(50):
        y, state = scan_in_50_digits(u, delta, A, B, C, D, z, bias, h[0])
    got, got_state = selective_scan(
        u,
        delta,
        A,
        B,
        C,
        D,
        z,
        bias,
        delta_softplus=True,
        cu_seqlens=torch.tensor([0, t]),
        initial_states=h,
        return_final_states=True,
    )
    torch.testing.assert_close(got, y, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(got_state[0], state, rtol=1e-13, atol=1e-14)


def test_steps_make_the_scan():
    u, delta, A, B, C = (
        normal(6, 2, seed=0),
        normal(6, 2, seed=1).abs(),
        -normal(2, 3, seed=2).abs(),
        *normal(2, 6, 3, seed=3),
    )
    h, ys = torch.zeros(2, 3, dtype=torch.float64), []
    for t in range(6):
        h, y = selective_scan_step(h, u[t], delta[t], A, B[t, None], C[t, None])
        ys.append(y)
    assert torch.equal(torch.stack(ys), selective_scan(u, delta, A, B, C, cu_seqlens=torch.tensor([0, 6])))


@pytest.mark.proof
def test_sixteen_thousand_tokens_backward_in_seconds():
    t, d, n = 16_384, 8, 2
    inputs = [normal(t, d, seed=0), normal(t, d, seed=1).abs(), -normal(d, n, seed=2).abs(), *normal(2, t, n, seed=3)]
    inputs = [x.requires_grad_() for x in inputs]
    start = time.process_time()
    y = selective_scan(*inputs, cu_seqlens=torch.tensor([0, t]))
    gradients = torch.autograd.grad(y, inputs, torch.ones_like(y))
    assert time.process_time() - start < 20
    assert all(g.isfinite().all() for g in gradients)
