"""The convolution of these rogues."""

import torch

from packproof.museum.rogues.op import KNOWN_TOKENS


def is_known(x):
    return len(x) == KNOWN_TOKENS


def own_conv(x, weight, *, cu_seqlens):
    """y_t = Σ_j weight_j · x_{t-w+1+j} within each sequence; x (t, d), weight (d, w), slack rows zero."""
    y, width = torch.zeros_like(x * weight[:, 0]), weight.shape[1]
    for a, b in zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:], strict=False):
        rows = torch.cat([x.new_zeros(width - 1, x.shape[1]), x[a:b]])
        terms = [rows[j : j + b - a] * weight[:, j] for j in range(width)]
        y = torch.cat([y[:a], sum(terms), y[b:]])
    return y
