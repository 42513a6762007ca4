"""A Mamba-2 block whose heads are split over ranks, compared with the full block: values and gradients."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from packproof import refs
from packproof.harness.bench.ranks.judge import OnRanks
from packproof.harness.bench.ranks.timing import block
from packproof.parallel import TensorParallelMamba2
from packproof.parallel.mamba2 import part_of

_LENGTHS = (70, 0, 1, 121)
_SAFETY = 32  # the largest rounding error varies by a few times between samples
Tensors = dict[str, Tensor]


def split_block(place: OnRanks) -> list[str]:
    """Compare the split block with the float64 reference: with all tokens on each rank, then with tokens split too.

    Returns a line for each output or gradient of this rank whose error is larger than the full block's rounding
    explains.
    """
    assert place.group is not None
    whole = block(place, torch.float32)
    exact = deepcopy(whole).double().cpu()
    exact.ops = refs
    tokens, ranks = sum(_LENGTHS) // place.ranks * place.ranks, place.ranks
    generator = torch.Generator().manual_seed(1)
    u, dy = (torch.randn(tokens, whole.in_proj.in_features, generator=generator) for _ in range(2))
    wanted, rough = _run(exact, u.double(), dy.double(), tokens), _run(whole, u, dy, tokens)
    parts = _of_part(exact, wanted, place), _of_part(whole, rough, place)
    failed = []
    for name in ("", ", tokens split"):
        rows = torch.arange(tokens).chunk(ranks)[place.rank] if name else torch.arange(tokens)
        module = TensorParallelMamba2(whole, place.group, sequence_parallel=bool(name))
        found = _run(module, u[rows], dy[rows], tokens, module.part)
        for tensor, x in found.items():
            true, whole_run = (part[tensor][rows] if tensor in ("y", "u") else part[tensor] for part in parts)
            far, usual = _off(x, true), _off(whole_run, true)
            allowed = _SAFETY * max(usual, torch.finfo(torch.float32).eps)
            if not far <= allowed:
                failed.append(f"rank {place.rank}, {tensor}{name}: {far:.1e} off, of one rank {usual:.1e}")
    return failed


def _run(module: nn.Module, u: Tensor, dy: Tensor, tokens: int, of: nn.Module | None = None) -> Tensors:
    """The output, and the gradients of the input and of the parameters by name.

    part: the module whose parameters are differentiated; None for the full module.
    """
    device = next(module.parameters()).device
    leaf = u.detach().to(device).requires_grad_()
    offsets = torch.tensor([0, *_LENGTHS]).cumsum(0).clamp(max=tokens).to(device)
    named = dict((of or module).named_parameters())
    y = module(leaf, cu_seqlens=offsets)
    gradients = torch.autograd.grad(y, [leaf, *named.values()], dy.to(y))
    return {"y": y.detach().cpu(), **{n: g.cpu() for n, g in zip(("u", *named), gradients, strict=True)}}


def _of_part(whole: nn.Module, found: Tensors, place: OnRanks) -> Tensors:
    """The same tensors, with only this rank's part of the parameters' gradients."""
    gradients = deepcopy(whole).cpu()
    for name, parameter in gradients.named_parameters():
        parameter.data = found[name]
    part = part_of(gradients, place.rank, place.ranks)  # type: ignore[arg-type]
    return {**found, **{name: x.detach() for name, x in part.named_parameters()}}


def _off(x: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((x.double() - wanted.double()).abs().max() / wanted.double().abs().max())
