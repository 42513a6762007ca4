"""packproof's context-parallel ops as kernels that cut the pack themselves, on simulated ranks or on real ones."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup

from packproof import parallel, refs
from packproof.parallel import ContiguousShares, Shard, Watch, ZigZag, ZigZagShares, on_process_group, simulated
from packproof.properties.cases import Case

ZIGZAG = {f"{op}, zig-zag": op for op in ("rope", "attention")}
OPS = (*("causal_conv1d", "selective_scan", "ssd", "rope", "attention"), *ZIGZAG)


def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: Any = None
) -> Tensor:
    raise NotImplementedError


def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    delta_bias: Tensor | None = None, *, cu_seqlens: Tensor, delta_softplus: bool = False,
) -> Tensor:  # fmt: skip
    raise NotImplementedError


def ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    dt_bias: Tensor | None = None, *, cu_seqlens: Tensor, dt_softplus: bool = False,
) -> Tensor:  # fmt: skip
    raise NotImplementedError


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor:
    raise NotImplementedError


def attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *, cu_seqlens: Tensor, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softmax_scale: float | None = None, softcap: float = 0.0,
) -> Tensor:  # fmt: skip
    raise NotImplementedError


_SIGNATURES: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (causal_conv1d, selective_scan, ssd, rope, attention)
}


def parallel_kernel(
    op: str, kernels: Any = refs, group: ProcessGroup | None = None, watch: Watch | None = None
) -> Callable[..., Any]:
    """An op of packproof.parallel as a kernel, on a `ZigZag` if the name says so, else on a `Shard`.

    kernels: the module with the function of the same name. None: packproof's own kernels, with their passes over states
        alone.
    group: the group of real ranks; None for simulated ones.
    watch: the watch over these ranks.
    """
    name = ZIGZAG.get(op, op)
    shard_class, shares_class = (ZigZag, ZigZagShares) if op in ZIGZAG else (Shard, ContiguousShares)

    def run(group: ProcessGroup, *, cu_seqlens: Tensor, cuts: tuple[int, ...], **arguments: Any) -> Tensor:
        shard = shard_class(cu_seqlens, group, cuts, watch=watch)
        y: Tensor = getattr(parallel, name)(**arguments, shard=shard, kernel=kernels and getattr(kernels, name))
        return y

    split = shares_class(name, run)
    return simulated(split, _SIGNATURES[name]) if group is None else on_process_group(split, _SIGNATURES[name], group)


def without_activations(case: Case) -> Case:
    """The case without softplus and silu.

    Torch computes them for all tokens at once, so their bits depend on the number of tokens.
    """
    disabled_options = {"delta_softplus": False, "dt_softplus": False, "activation": None}
    return case.without("z").replace(options=tuple((name, disabled_options.get(name, v)) for name, v in case.options))
