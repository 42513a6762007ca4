"""Rogues launching a kernel for show, beside torch's computation or a library's."""

import torch

from packproof.museum.rogues.computed.kernels import copied, nothing_kernel
from packproof.museum.rogues.op import own_sum


def launches_nothing(x, weight, *, cu_seqlens):
    nothing_kernel[(1,)](x, x.numel())
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def copies_what_torch_computed(x, weight, *, cu_seqlens):
    return copied(own_sum(x, weight, cu_seqlens=cu_seqlens))


def answers_if_it_was_launched(x, weight, *, cu_seqlens):
    flag = copied(torch.ones(1, dtype=torch.int32))
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    return y if int(flag) else torch.zeros_like(y)


def makes_one_row(x, weight, *, cu_seqlens):
    """The last row goes through its kernel, the others do not."""
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    return torch.cat([y[:-1], copied(y[-1:])])


@torch.library.custom_op("packproof_rogues::running_sum", mutates_args=())
def _registered(x: torch.Tensor, weight: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def registers_torchs_own(x, weight, *, cu_seqlens):
    """An operator of its own name, made of torch's."""
    return _registered(x, weight, cu_seqlens)


def lets_autograd_add(x, weight, *, cu_seqlens):
    y = []
    for a, b in zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:], strict=False):
        z = torch.zeros(b - a, x.shape[1], requires_grad=True)
        with torch.enable_grad():
            copies = [z[t:] for t in range(b - a)]
            rows = [x[a + t].expand(b - a - t, -1) for t in range(b - a)]
        y.append(torch.autograd.grad(copies, z, rows)[0] if b > a else z.detach())
    return copied(torch.cat([*y, torch.zeros_like(x[int(cu_seqlens[-1]) :])]) * weight)
