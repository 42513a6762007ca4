"""segsum against its definition, and where the cumsum-difference form loses digits."""

import math

import pytest
import torch

from packproof.refs.segsum import segsum, segsum_unstable


@pytest.mark.parametrize("form", [segsum, segsum_unstable])
@pytest.mark.parametrize("t", [0, 1, 2, 7])
def test_segsum_is_the_sum_after_j_up_to_i(form, t):
    x = torch.randn(2, t, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = form(x)
    assert out.shape == (2, t, t)
    for i in range(t):
        for j in range(t):
            want = x[:, j + 1 : i + 1].sum(-1) if j <= i else torch.full((2,), -math.inf, dtype=torch.float64)
            torch.testing.assert_close(out[:, i, j], want, rtol=1e-14, atol=1e-14)


def test_gradient_of_exp_segsum_is_finite_and_correct():
    x = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: segsum(v).exp(), x)


def test_one_large_decay_costs_the_unstable_form_its_digits():
    log_decay = torch.full((64,), -1e-3)
    log_decay[10] = -1e4  # a hard reset: nothing before it reaches past it, and nothing after it may change
    exact = segsum(log_decay.double()).exp()
    after = (slice(11, None), slice(11, None))
    stable_error = (segsum(log_decay).exp() - exact)[after].abs().max()
    unstable_error = (segsum_unstable(log_decay).exp() - exact)[after].abs().max()
    assert stable_error < 1e-6
    assert unstable_error > 1e-4


def test_an_infinite_decay_is_a_reset_for_segsum_and_nan_for_the_unstable_form():
    log_decay = torch.tensor([-1.0, -math.inf, -2.0, -3.0])
    decay = segsum(log_decay).exp()
    assert decay[3, 0] == 0
    torch.testing.assert_close(decay[3, 1], torch.tensor(math.exp(-5.0)))
    assert segsum_unstable(log_decay).exp()[3, 1].isnan()
