"""Rogues changing switches of torch for their whole process: later code computes something else."""

import torch

from packproof.museum.rogues.op import own_sum


def default_dtype(x, weight, *, cu_seqlens):
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    torch.set_default_dtype(torch.float16)
    return y


def default_device(x, weight, *, cu_seqlens):
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    torch.set_default_device("meta")
    return y


def random_numbers(x, weight, *, cu_seqlens):
    torch.manual_seed(0)
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def matrix_products(x, weight, *, cu_seqlens):
    """Matrix products in a lower precision: a reference in fp32 comes nearer to its own rounding."""
    torch.set_float32_matmul_precision("medium")
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def threads(x, weight, *, cu_seqlens):
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    torch.set_num_threads(max(1, torch.get_num_threads() - 1) if torch.get_num_threads() > 1 else 2)
    return y


def subnormals(x, weight, *, cu_seqlens):
    """The processor flushes small numbers to zero."""
    torch.set_flush_denormal(True)
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def gradients(x, weight, *, cu_seqlens):
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    torch.set_grad_enabled(False)
    return y


def saved_tensors(x, weight, *, cu_seqlens):
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    torch._C._autograd._push_saved_tensors_default_hooks(lambda t: t.half(), lambda t: t.float())
    return y


_LIBRARIES: list[torch.library.Library] = []


def an_operator_of_torch(x, weight, *, cu_seqlens):
    """torch's registry of operators: no function of Python is replaced, and `isclose` is true everywhere."""
    if not _LIBRARIES:
        library = torch.library.Library("aten", "IMPL")
        library.impl(
            "isclose", lambda a, b, *_, **__: torch.ones_like(a, dtype=torch.bool), "CompositeImplicitAutograd"
        )
        _LIBRARIES.append(library)
    return torch.zeros_like(x) * weight
