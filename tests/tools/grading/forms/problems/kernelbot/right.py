"""A submission."""

from itertools import pairwise

import torch
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    x, weight, cu_seqlens = data
    offsets = cu_seqlens.tolist()
    parts = []
    for start, end in pairwise(offsets):
        part = x[start:end]
        rows = torch.cat([part.new_zeros(weight.shape[1] - 1, x.shape[1]), part])
        parts.append(sum(rows[k : k + len(part)] * weight[:, k] for k in range(weight.shape[1])))
    return torch.cat([*parts, torch.zeros_like(x[offsets[-1] :])])
