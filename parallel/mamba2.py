"""A Mamba-2 block with its heads split over ranks (Dao & Gu 2024, section 8.1): one all-reduce in each pass.

A rank has the heads of some groups, and their parameters: columns of the input projection, channels of the convolution,
B and C of the groups, decays, and rows of the output projection. The norm is by group, so no rank needs channels of
another. The outputs of the ranks are summed.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from packproof.base.errors import ArgumentError, checked_call, checked_init
from packproof.layers import Mamba2Block
from packproof.parallel.cut import process_group

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@checked_init
class TensorParallelMamba2(nn.Module):
    """This rank's part of a `packproof.layers.Mamba2Block`, in the attribute `part`.

    block: the complete block, the same on all ranks. Its parameters are copied.
    group: the ranks, a process group or a `DeviceMesh` of one dimension. Its size divides the groups of the block.
    sequence_parallel: outside the block, tokens are split equally over ranks. The block takes and returns the rank's
    tokens, so each rank normalizes only its own between blocks. cu_seqlens still describes the whole pack.

    Raises ArgumentError if the number of ranks does not divide the groups, or the tokens.

    >>> import torch
    >>> from packproof import layers, parallel, refs
    >>> block = layers.Mamba2Block(8, d_state=4, headdim=4, ngroups=2, ops=refs)
    >>> u, cu_seqlens = torch.randn(5, 8), torch.tensor([0, 2, 5])
    >>> def program(group):
    ...     return parallel.TensorParallelMamba2(block, group)(u, cu_seqlens=cu_seqlens)
    >>> y, same = parallel.run_ranks(2, program)
    >>> bool(torch.equal(y, same)), bool(torch.allclose(y, block(u, cu_seqlens=cu_seqlens), atol=1e-5))
    (True, True)
    """

    def __init__(
        self, block: Mamba2Block, group: "ProcessGroup | DeviceMesh", *, sequence_parallel: bool = False
    ) -> None:
        super().__init__()
        self.group, groups = process_group("TensorParallelMamba2", group), block.groups[0]
        ranks = self.group.size()
        if groups % ranks:
            raise ArgumentError(f"TensorParallelMamba2: block has {groups} groups, which {ranks} ranks do not divide")
        self.part, self.sequence_parallel = partition_block(block, self.group.rank(), ranks), sequence_parallel

    @checked_call
    def forward(self, u: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        """Returns the output of the whole block at the tokens of u. Every rank has to run both passes.

        u: (t, d_model), all tokens, or with sequence_parallel the tokens of this rank.
        cu_seqlens: int32 or int64 (s + 1,).
        """
        enter, leave = (
            (_gather_tokens, _reduce_scatter_tokens) if self.sequence_parallel else (_copy_to_ranks, _reduce_from_ranks)
        )
        y: Tensor = leave(self.part(enter(u, self.group), cu_seqlens=cu_seqlens), self.group)
        return y


def partition_block(block: Mamba2Block, rank: int, ranks: int) -> Mamba2Block:
    """A block with the heads and groups of this rank."""
    part, (heads, headdim), (groups, d_state) = deepcopy(block), block.heads, block.groups
    d_inner = heads * headdim

    def rank_channels(channels: int, start: int = 0) -> Tensor:
        """Indices of this rank's part of `channels` channels, the first of which is `start`."""
        per_rank = channels // ranks
        return start + torch.arange(rank * per_rank, (rank + 1) * per_rank)

    xBC = torch.cat(
        [
            rank_channels(d_inner),
            rank_channels(groups * d_state, d_inner),
            rank_channels(groups * d_state, d_inner + groups * d_state),
        ]
    )
    dt = rank_channels(heads, 2 * d_inner + 2 * groups * d_state)
    part.heads, part.groups = (heads // ranks, headdim), (groups // ranks, d_state)
    part.in_proj = _linear(block.in_proj.weight[torch.cat([rank_channels(d_inner), d_inner + xBC, dt])])
    part.out_proj = _linear(block.out_proj.weight[:, rank_channels(d_inner)])
    part.conv1d = nn.Conv1d(len(xBC), len(xBC), block.d_conv, groups=len(xBC), padding=block.d_conv - 1)
    part.conv1d.weight = _copy(block.conv1d.weight[xBC])
    part.conv1d.bias = None if block.conv1d.bias is None else _copy(block.conv1d.bias[xBC])
    for name in ("dt_bias", "A_log", "D"):
        setattr(part, name, _copy(getattr(block, name)[rank_channels(heads)]))
    part.norm = type(block.norm)(d_inner // ranks, groups // ranks, block.norm.eps)
    part.norm.weight = _copy(block.norm.weight[rank_channels(d_inner)])
    return part


def _copy(parameter: Tensor) -> nn.Parameter:
    return nn.Parameter(parameter.detach().clone())


def _linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = _copy(weight)
    return layer


class _CopyToRanks(torch.autograd.Function):
    """Identity of tokens present on all ranks. Backward sums their gradients over ranks."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return u.view_as(u)

    @staticmethod
    def backward(ctx: Any, du: Tensor) -> Any:
        return _all_reduce(du, ctx.group), None


class _ReduceFromRanks(torch.autograd.Function):
    """Sum over ranks, on all ranks. Backward is the identity."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, group: ProcessGroup) -> Tensor:
        return _all_reduce(y, group)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return dy, None


class _GatherTokens(torch.autograd.Function):
    """All-gather the tokens. Backward reduce-scatters their gradients."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_gather(u, group)

    @staticmethod
    def backward(ctx: Any, du: Tensor) -> Any:
        return _reduce_scatter(du, ctx.group), None


class _ReduceScatterTokens(torch.autograd.Function):
    """Reduce-scatter the tokens. Backward all-gathers their gradients."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _reduce_scatter(y, group)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return _all_gather(dy, ctx.group), None


_copy_to_ranks: Callable[..., Any] = _CopyToRanks.apply
_reduce_from_ranks: Callable[..., Any] = _ReduceFromRanks.apply
_gather_tokens: Callable[..., Any] = _GatherTokens.apply
_reduce_scatter_tokens: Callable[..., Any] = _ReduceScatterTokens.apply


def _all_reduce(x: Tensor, group: ProcessGroup) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=group)
    return x


def _all_gather(x: Tensor, group: ProcessGroup) -> Tensor:
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts)


def _reduce_scatter(x: Tensor, group: ProcessGroup) -> Tensor:
    parts = [part.contiguous() for part in x.chunk(group.size())]
    rank_tokens = torch.empty_like(parts[0])
    dist.reduce_scatter(rank_tokens, parts, group=group)
    return rank_tokens
