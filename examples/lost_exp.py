# %% [markdown]
# # A lost exponential
#
# Mamba-2 cuts a pack into chunks. Each chunk adds to a state, and each token's contribution has decayed by the end of
# the chunk, by the factor `exp(log_decay[-1] - log_decay[j])` for token j. The same factor appears in the backward pass
# for B, and for some months the branch for packed sequences had the exponent there instead of the exponential
# ([introduced](https://github.com/state-spaces/mamba/commit/a6a1dae6efbf804c9944a0c2282b437deb4886d8),
# [fixed](https://github.com/state-spaces/mamba/commit/2e16fc3062cdcd4ebef27a9aa4442676e1c7edf4)). The loss
# still goes down. Here is the same bug in a new kernel, how packproof finds it, and the fix.
#
# ## The kernel

# %%
import torch
from torch import einsum

import packproof
from packproof import refs
from packproof.refs import seq_idx_from_cu_seqlens

CHUNK = 16


class ChunkState(torch.autograd.Function):
    """What a chunk adds to the state of its last token's sequence, with its own backward pass."""

    @staticmethod
    def forward(ctx, x, B, log_decay, seq_idx, packed):
        left = log_decay[-1] - log_decay
        scale = torch.where((seq_idx == seq_idx[-1])[:, None], left.exp(), 0)
        ctx.save_for_backward(x, B, left, scale, seq_idx)
        ctx.packed = packed
        return einsum("jh,jhp,jhn->hpn", scale, x, B)

    @staticmethod
    def backward(ctx, d_state):
        x, B, left, scale, seq_idx = ctx.saved_tensors
        d_x = einsum("jh,jhn,hpn->jhp", scale, B, d_state)
        d_b = einsum("jh,jhp,hpn->jhn", share_in_b(left, seq_idx, ctx.packed), x, d_state)
        d_left = (d_x * x).sum(-1)
        d_log_decay = -d_left
        d_log_decay[-1] += d_left.sum(0)
        return d_x, d_b, d_log_decay, None, None


def share_in_b(left, seq_idx, packed):
    if packed:
        return torch.where((seq_idx == seq_idx[-1])[:, None], left, 0)
    return left.exp()


def one_chunk(h, h_seq, x, log_decay, B, C, seq_idx, packed):
    """The outputs of a chunk and the state after it. h is the state of the sequence h_seq."""
    n = len(x)
    same = (seq_idx[:, None] == seq_idx) & torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
    between = (log_decay[:, None] - log_decay).masked_fill(~same[..., None], -torch.inf).exp()
    y = einsum("ihn,jhn,ijh,jhp->ihp", C, B, between, x)
    from_h = torch.where((seq_idx == h_seq)[:, None], log_decay.exp(), 0)
    y = y + einsum("ih,ihn,hpn->ihp", from_h, C, h)
    return y, from_h[-1, :, None, None] * h + ChunkState.apply(x, B, log_decay, seq_idx, packed)


# decays are differences of a running sum, in which a strong gate takes the digits of later ones: none is promised
@packproof.kernel(op="ssd", promises=packproof.Promises(grid="pack", chunk=CHUNK, cumsum=True), domain="gate > -1e4")
def ssd(x, dt, A, B, C, *, cu_seqlens):
    seq_idx = seq_idx_from_cu_seqlens(cu_seqlens, len(x))
    inside = (seq_idx >= 0)[:, None]
    repeat = A.shape[0] // B.shape[1]
    dt = torch.where(inside, dt, 0).to(A.dtype)
    rows = torch.where(inside[..., None], x, 0).to(A.dtype) * dt[..., None]
    B, C = (torch.where(inside[..., None], M, 0).to(A.dtype).repeat_interleave(repeat, 1) for M in (B, C))
    h, h_seq = torch.zeros(*x.shape[1:], B.shape[-1], dtype=A.dtype, device=x.device), -1
    ys = [torch.zeros_like(rows[:0])]
    for first in range(0, len(x), CHUNK):
        chunk = slice(first, first + CHUNK)
        log_decay = (dt[chunk] * A).cumsum(0)
        y, h = one_chunk(
            h, h_seq, rows[chunk], log_decay, B[chunk], C[chunk], seq_idx[chunk], packed=len(cu_seqlens) > 2
        )
        h_seq = seq_idx[chunk][-1]
        ys.append(y)
    return torch.where(inside[..., None], torch.cat(ys), 0).to(x.dtype)


# %% [markdown]
# ## What a typical test sees
#
# The outputs of a pack are correct, and so are the gradients of a single sequence: it does not take the wrong branch.

# %%
torch.manual_seed(0)
T = 40
inputs = {
    "x": torch.randn(T, 2, 4),
    "dt": torch.rand(T, 2),
    "A": -torch.rand(2) - 0.5,
    "B": torch.randn(T, 1, 8),
    "C": torch.randn(T, 1, 8),
}
pack, single = torch.tensor([0, 13, 40]), torch.tensor([0, 40])
torch.testing.assert_close(ssd(**inputs, cu_seqlens=pack), refs.ssd(**inputs, cu_seqlens=pack), atol=1e-4, rtol=1e-4)
packproof.gradcheck(ssd, inputs, cu_seqlens=single, op="ssd")
print("outputs of a pack and gradients of one sequence: correct")

# %% [markdown]
# ## What packproof sees
#
# A dozen layouts are enough. The report names the tensor, the smallest layout and the first wrong token.

# %%
try:
    packproof.check(ssd, op="ssd", device="cpu", dtypes=["fp32"], properties=["packing"], profile="quick")
except packproof.CheckFailed as failed:
    print(failed)
else:
    raise SystemExit("the bug was not detected")

# %% [markdown]
# Only the gradient of B is wrong, and no value leaks, so the bug is in the computation of that gradient. Lengths 1
# and 16 are the smallest pack in which a state matters: tokens 0 to 14 of sequence 1 end a chunk of 16, and token 15
# reads their state in the next chunk. At the end of its chunk, token 14 has decayed by `exp(0)`, which is 1. The branch
# for packed sequences has 0 there.
#
# ## The fix


# %%
def share_in_b(left, seq_idx, packed):  # noqa: F811
    return torch.where((seq_idx == seq_idx[-1])[:, None], left.exp(), 0)


verdicts = packproof.check(ssd, op="ssd", device="cpu", dtypes=["fp32"], properties=["packing"], profile="quick")
print(*(f"{verdict.cell.property}: {verdict.status}, {verdict.examples} examples" for verdict in verdicts), sep="\n")
