"""Grouped matrix product of a mixture of experts, experts as sequences (huggingface/kernels-community#1153).

The incorrect kernel bounds its tiles along M only: columns past N land in the next rows.
"""

import torch
import triton
import triton.language as tl

import packproof
from packproof.refs import join_sequences, split_sequences


def grouped_mm(x, w, *, cu_seqlens):
    """x: (t, k). w: (s, k, n). Returns (t, n): rows of expert j times w[j]."""
    rows = [x_j @ w_j for x_j, w_j in zip(split_sequences(x, cu_seqlens), w, strict=True)]
    return join_sequences(rows, x.new_zeros(len(x), w.shape[2]))


OP = packproof.Op(
    name="grouped_mm",
    reference=grouped_mm,
    inputs={"x": "t k", "w": "s k n"},
    outputs={"y": "t n"},
    sizes=({"k": 3, "n": 5}, {"k": 16, "n": 16}, {"k": 20, "n": 24}),
    matmul=True,
)


@triton.jit
def _grouped_kernel(x, w, y, cu, K, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BOUND_N: tl.constexpr):
    expert, block_m, block_n = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, end = tl.load(cu + expert), tl.load(cu + expert + 1)
    if start + block_m * BM < end:
        rows = start + block_m * BM + tl.arange(0, BM)
        cols = block_n * BN + tl.arange(0, BN)
        inside = cols < N if BOUND_N else cols >= 0
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k0 in range(0, K, BK):
            ks = k0 + tl.arange(0, BK)
            a = tl.load(x + rows[:, None] * K + ks, mask=(rows < end)[:, None] & (ks < K), other=0.0)
            mask = (ks < K)[:, None] & inside
            b = tl.load(w + expert * K * N + ks[:, None] * N + cols, mask=mask, other=0.0)
            acc += tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
        tl.store(y + rows[:, None] * N + cols, acc.to(y.dtype.element_ty), mask=(rows < end)[:, None] & inside)


def _run(x, w, cu_seqlens, *, bound_n):
    s, K, N = w.shape
    y = torch.zeros(x.shape[0], N, dtype=x.dtype, device=x.device)
    if s and len(x):
        grid = (s, max(triton.cdiv(int(cu_seqlens.diff().max()), 16), 1), triton.cdiv(N, 16))
        _grouped_kernel[grid](x.contiguous(), w.contiguous(), y, cu_seqlens, K, N, BM=16, BN=16, BK=16, BOUND_N=bound_n)
    return y


@packproof.kernel(op=OP, gradients=False)
def correct(x, w, *, cu_seqlens):
    return _run(x, w, cu_seqlens, bound_n=True)


@packproof.kernel(op=OP, gradients=False)
def incorrect(x, w, *, cu_seqlens):
    return _run(x, w, cu_seqlens, bound_n=False)
