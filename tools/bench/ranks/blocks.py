"""A Mamba-2 block whose heads are split over ranks, compared with the full block: values and gradients."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from packproof import refs
from packproof.bench.ranks.judge import RankGroup
from packproof.bench.ranks.timing import make_block
from packproof.parallel import TensorParallelMamba2
from packproof.parallel.mamba2 import partition_block

_LENGTHS = (70, 0, 1, 121)
_SAFETY = 32  # the largest rounding error varies by a few times between samples
Tensors = dict[str, Tensor]


def split_block(rank_group: RankGroup) -> list[str]:
    """Compare the split block with the float64 reference: with all tokens on each rank, then with tokens split too.

    Returns a line for each output or gradient of this rank whose error is larger than the full block's rounding
    explains.
    """
    assert rank_group.group is not None
    full_block = make_block(rank_group, torch.float32)
    exact_block = deepcopy(full_block).double().cpu()
    exact_block.ops = refs
    tokens, ranks = sum(_LENGTHS) // rank_group.ranks * rank_group.ranks, rank_group.ranks
    generator = torch.Generator().manual_seed(1)
    u, dy = (torch.randn(tokens, full_block.in_proj.in_features, generator=generator) for _ in range(2))
    expected, full_result = _run(exact_block, u.double(), dy.double(), tokens), _run(full_block, u, dy, tokens)
    parts = (
        _with_part_gradients(exact_block, expected, rank_group),
        _with_part_gradients(full_block, full_result, rank_group),
    )
    failures = []
    for suffix in ("", ", tokens split"):
        rows = torch.arange(tokens).chunk(ranks)[rank_group.rank] if suffix else torch.arange(tokens)
        module = TensorParallelMamba2(full_block, rank_group.group, sequence_parallel=bool(suffix))
        actual = _run(module, u[rows], dy[rows], tokens, module.part)
        for tensor, x in actual.items():
            expected_value, full_value = (
                part[tensor][rows] if tensor in ("y", "u") else part[tensor] for part in parts
            )
            error, full_error = _relative_error(x, expected_value), _relative_error(full_value, expected_value)
            allowed = _SAFETY * max(full_error, torch.finfo(torch.float32).eps)
            if not error <= allowed:
                failures.append(
                    f"rank {rank_group.rank}, {tensor}{suffix}: {error:.1e} off, of one rank {full_error:.1e}"
                )
    return failures


def _run(module: nn.Module, u: Tensor, dy: Tensor, tokens: int, part: nn.Module | None = None) -> Tensors:
    """The output, and the gradients of the input and of the parameters by name.

    part: the module whose parameters are differentiated; None for the full module.
    """
    device = next(module.parameters()).device
    leaf = u.detach().to(device).requires_grad_()
    offsets = torch.tensor([0, *_LENGTHS]).cumsum(0).clamp(max=tokens).to(device)
    parameters = dict((part or module).named_parameters())
    y = module(leaf, cu_seqlens=offsets)
    gradients = torch.autograd.grad(y, [leaf, *parameters.values()], dy.to(y))
    return {"y": y.detach().cpu(), **{n: g.cpu() for n, g in zip(("u", *parameters), gradients, strict=True)}}


def _with_part_gradients(full_block: nn.Module, tensors: Tensors, rank_group: RankGroup) -> Tensors:
    """The same tensors, with only this rank's part of the parameters' gradients."""
    gradients = deepcopy(full_block).cpu()
    for name, parameter in gradients.named_parameters():
        parameter.data = tensors[name]
    part = partition_block(gradients, rank_group.rank, rank_group.ranks)  # type: ignore[arg-type]
    return {**tensors, **{name: x.detach() for name, x in part.named_parameters()}}


def _relative_error(x: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((x.double() - expected.double()).abs().max() / expected.double().abs().max())
