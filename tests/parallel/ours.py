"""packproof's context-parallel ops as kernels that cut the pack themselves, on simulated ranks."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup

from packproof import parallel, refs
from packproof.parallel import ContiguousShares, Shard, simulated

OPS = ("causal_conv1d", "selective_scan", "ssd", "rope")


def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: Any = None
) -> Tensor: ...


def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    delta_bias: Tensor | None = None, *, cu_seqlens: Tensor, delta_softplus: bool = False,
) -> Tensor: ...  # fmt: skip


def ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    dt_bias: Tensor | None = None, *, cu_seqlens: Tensor, dt_softplus: bool = False,
) -> Tensor: ...  # fmt: skip


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor: ...


_LIKE: dict[str, Callable[..., Any]] = {f.__name__: f for f in (causal_conv1d, selective_scan, ssd, rope)}


def ours(op: str, kernels: Any = refs) -> Callable[..., Any]:
    """An op of packproof.parallel as a kernel. kernels: the module whose function of the same name computes."""

    def run(group: ProcessGroup, *, cu_seqlens: Tensor, cuts: tuple[int, ...], **arguments: Any) -> Tensor:
        shard = Shard(cu_seqlens, group, cuts)
        y: Tensor = getattr(parallel, op)(**arguments, shard=shard, kernel=getattr(kernels, op))
        return y

    return simulated(ContiguousShares(op, run), like=_LIKE[op])
