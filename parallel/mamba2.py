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

from packproof.layers.mamba2 import GroupRMSNorm, Mamba2Block
from packproof.parallel.cut import process_group
from packproof.refs.errors import ArgumentError, checked_call, checked_init

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
        self.part, self.sequence_parallel = part_of(block, self.group.rank(), ranks), sequence_parallel

    @checked_call
    def forward(self, u: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        """Returns the output of the whole block at the tokens of u. Every rank has to run both passes.

        u: (t, d_model), all tokens, or with sequence_parallel the tokens of this rank.
        cu_seqlens: int32 or int64 (s + 1,).
        """
        enter, leave = (_gathered, _scattered) if self.sequence_parallel else (_copied, _summed)
        y: Tensor = leave(self.part(enter(u, self.group), cu_seqlens=cu_seqlens), self.group)
        return y


def part_of(block: Mamba2Block, rank: int, ranks: int) -> Mamba2Block:
    """A block with the heads and groups of this rank."""
    part, (heads, headdim), (groups, d_state) = deepcopy(block), block.heads, block.groups
    d_inner = heads * headdim

    def own(channels: int, start: int = 0) -> Tensor:
        """Indices of this rank's part of `channels` channels, the first of which is `start`."""
        each = channels // ranks
        return start + torch.arange(rank * each, (rank + 1) * each)

    xBC = torch.cat([own(d_inner), own(groups * d_state, d_inner), own(groups * d_state, d_inner + groups * d_state)])
    dt = own(heads, 2 * d_inner + 2 * groups * d_state)
    part.heads, part.groups = (heads // ranks, headdim), (groups // ranks, d_state)
    part.in_proj = _linear(block.in_proj.weight[torch.cat([own(d_inner), d_inner + xBC, dt])])
    part.out_proj = _linear(block.out_proj.weight[:, own(d_inner)])
    part.conv1d = nn.Conv1d(len(xBC), len(xBC), block.d_conv, groups=len(xBC), padding=block.d_conv - 1)
    part.conv1d.weight = _copy(block.conv1d.weight[xBC])
    part.conv1d.bias = None if block.conv1d.bias is None else _copy(block.conv1d.bias[xBC])
    for name in ("dt_bias", "A_log", "D"):
        setattr(part, name, _copy(getattr(block, name)[own(heads)]))
    part.norm = GroupRMSNorm(d_inner // ranks, groups // ranks, block.norm.eps)
    part.norm.weight = _copy(block.norm.weight[own(d_inner)])
    return part


def _copy(parameter: Tensor) -> nn.Parameter:
    return nn.Parameter(parameter.detach().clone())


def _linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = _copy(weight)
    return layer


class _Copied(torch.autograd.Function):
    """Identity of tokens present on all ranks. Backward sums their gradients over ranks."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return u.view_as(u)

    @staticmethod
    def backward(ctx: Any, du: Tensor) -> Any:
        return _all_reduced(du, ctx.group), None


class _Summed(torch.autograd.Function):
    """Sum over ranks, on all ranks. Backward is the identity."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, group: ProcessGroup) -> Tensor:
        return _all_reduced(y, group)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return dy, None


class _Gathered(torch.autograd.Function):
    """All-gather the tokens. Backward reduce-scatters their gradients."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_tokens(u, group)

    @staticmethod
    def backward(ctx: Any, du: Tensor) -> Any:
        return _own_tokens(du, ctx.group), None


class _Scattered(torch.autograd.Function):
    """Reduce-scatter the tokens. Backward all-gathers their gradients."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _own_tokens(y, group)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return _all_tokens(dy, ctx.group), None


_copied: Callable[..., Any] = _Copied.apply
_summed: Callable[..., Any] = _Summed.apply
_gathered: Callable[..., Any] = _Gathered.apply
_scattered: Callable[..., Any] = _Scattered.apply


def _all_reduced(x: Tensor, group: ProcessGroup) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=group)
    return x


def _all_tokens(x: Tensor, group: ProcessGroup) -> Tensor:
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts)


def _own_tokens(x: Tensor, group: ProcessGroup) -> Tensor:
    parts = [part.contiguous() for part in x.chunk(group.size())]
    own = torch.empty_like(parts[0])
    dist.reduce_scatter(own, parts, group=group)
    return own
