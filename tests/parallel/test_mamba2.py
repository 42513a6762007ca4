"""A Mamba-2 block whose heads are split over ranks computes what the whole block computes."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from packproof import layers, refs
from packproof.base.errors import ArgumentError
from packproof.parallel import TensorParallelMamba2, run_ranks
from packproof.parallel.mamba2 import partition_block

OFFSETS = torch.tensor([0, 3, 3, 8])


def block(**given: Any) -> layers.Mamba2Block:
    torch.manual_seed(0)
    return layers.Mamba2Block(8, d_state=3, headdim=2, ngroups=4, ops=refs, **given).double()


def trained(module: torch.nn.Module, u: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    u = u.clone().requires_grad_()
    y = module(u, cu_seqlens=OFFSETS)
    y.backward(dy)
    assert u.grad is not None
    return y.detach(), u.grad


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_have_the_values_and_gradients_of_the_block(ranks: int, sequence_parallel: bool) -> None:
    whole = block()
    u, dy = torch.randn(8, 8, dtype=torch.float64), torch.randn(8, 8, dtype=torch.float64)
    y, du = trained(whole, u, dy)
    gradients = deepcopy(whole)
    for gradient, parameter in zip(gradients.parameters(), whole.parameters(), strict=True):
        assert parameter.grad is not None
        gradient.data = parameter.grad

    def program(group: ProcessGroup) -> tuple[Tensor, Tensor, TensorParallelMamba2]:
        module = TensorParallelMamba2(whole, group, sequence_parallel=sequence_parallel)
        rows = torch.arange(8).chunk(ranks)[group.rank()] if sequence_parallel else slice(None)
        return *trained(module, u[rows], dy[rows]), module

    found = run_ranks(ranks, program)
    join = torch.cat if sequence_parallel else lambda parts: parts[0]
    torch.testing.assert_close(join([one for one, _, _ in found]), y)
    torch.testing.assert_close(join([one for _, one, _ in found]), du)
    for rank, (_, _, module) in enumerate(found):
        wanted = partition_block(gradients, rank, ranks)
        for (name, parameter), gradient in zip(module.part.named_parameters(), wanted.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, gradient.detach(), msg=f"rank {rank}: {name}")


def test_ranks_that_do_not_divide_the_groups_are_refused() -> None:
    with pytest.raises(ArgumentError, match="block has 4 groups, which 3 ranks do not divide"):
        run_ranks(3, lambda group: TensorParallelMamba2(block(), group))
