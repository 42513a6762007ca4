"""A context-parallel implementation as a kernel: it takes the whole pack and cuts it over ranks, simulated or real."""

import inspect
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from packproof.base.axes import parse, role
from packproof.base.errors import ArgumentError, UsageError, checked_call, checked_init
from packproof.base.signatures import SIGNATURES
from packproof.parallel.ranks import Ranks

Arguments = dict[str, Any]
Outputs = tuple[Tensor, ...]
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class ContextParallel(Protocol):
    """The interface of a context-parallel implementation: three methods.

    `ContiguousShares` has `split` and `gather` for ranks with one piece of the pack each.

    >>> import torch
    >>> from packproof.parallel import simulated
    >>> class EverySecondToken:
    ...     def split(self, arguments, cuts):
    ...         ranks = len(cuts) + 1
    ...         return [{"x": arguments["x"][rank::ranks]} for rank in range(ranks)]
    ...     def run(self, group, *, x):
    ...         return x + group.rank()
    ...     def gather(self, results, arguments, cuts):
    ...         return (torch.stack([y for (y,) in results], 1).flatten(),)
    >>> simulated(EverySecondToken(), like=lambda x: x)(torch.zeros(4), cuts=(2,))
    tensor([0., 1., 0., 1.])
    """

    def split(self, arguments: Arguments, cuts: tuple[int, ...]) -> list[Arguments]:
        """Split the arguments of the whole call into the keyword arguments of `run` on each of len(cuts) + 1 ranks."""

    def run(self, group: ProcessGroup, **arguments: Any) -> Tensor | Outputs:
        """The outputs of one rank.

        Forward and backward may call functions of `torch.distributed` with this group. Every rank runs both passes,
        including a rank without tokens.
        """

    def gather(self, results: list[Outputs], arguments: Arguments, cuts: tuple[int, ...]) -> Outputs:
        """Assemble the outputs of the whole call from the outputs of all ranks."""


@checked_init
class ContiguousShares:
    """Each rank holds one contiguous piece of the pack, cut at `cuts`.

    op: the name of an op, or an object with `inputs` and `outputs` (axes by name), such as a `packproof.Op`.
    run: computes one rank, `run(group, *, cuts, cu_seqlens, ...)`. Inputs along tokens have the rows of the rank; all
    other inputs are complete, including `cu_seqlens`. Outputs along tokens have the rows of the rank. Of an output
    along sequences, a row counts on the rank holding the last token of its sequence.
    reduces: True if `run` itself all-reduces the gradients of shared parameters. False if each rank leaves its own
    part and the gradient is their sum, as under data parallelism.

    >>> import torch
    >>> from packproof.parallel import ContiguousShares
    >>> shares = ContiguousShares("rope", run=lambda group, **arguments: arguments["x"])
    >>> whole = {"x": torch.ones(5, 1, 2), "cu_seqlens": torch.tensor([0, 5])}
    >>> [share["x"].shape[0] for share in shares.split(whole, (1, 1))]
    [1, 0, 4]
    """

    def __init__(self, op: str | Any, run: Callable[..., Tensor | Outputs], *, reduces: bool = False) -> None:
        declared: Any = SIGNATURES.get(op) if isinstance(op, str) else op
        if not (hasattr(declared, "inputs") and hasattr(declared, "outputs")):
            raise UsageError(f"op: {op!r} is not known; there are {', '.join(SIGNATURES)}, or pass a packproof.Op")
        self._inputs, self._outputs = _roles(declared.inputs), _roles(declared.outputs)
        self.run, self._reduces = run, reduces

    def split(self, arguments: Arguments, cuts: tuple[int, ...]) -> list[Arguments]:
        ends = [0, *cuts, self._tokens(arguments)]

        def share(rank: int, name: str, x: Any) -> Any:
            kind = self._inputs.get(name)
            if not isinstance(x, Tensor) or kind is None:
                return x
            if kind == "token":
                return x[ends[rank] : ends[rank + 1]]
            return x.detach() if self._reduces and rank and kind == "shared" else x

        return [
            {**{name: share(rank, name, x) for name, x in arguments.items()}, "cuts": cuts}
            for rank in range(len(cuts) + 1)
        ]

    def _tokens(self, arguments: Arguments) -> int:
        """Rows of the pack, slack too."""
        return next(len(arguments[n]) for n, kind in self._inputs.items() if kind == "token")

    def gather(self, results: list[Outputs], arguments: Arguments, cuts: tuple[int, ...]) -> Outputs:
        offsets = arguments["cu_seqlens"].tolist()
        last_ranks = [bisect_right(cuts, _last_token(a, b, offsets[-1])) for a, b in pairwise(offsets)]
        kinds = [kind for _, kind in zip(results[0], self._outputs.values(), strict=False)]
        return tuple(
            torch.cat(parts)
            if kind == "token"
            else torch.stack([parts[rank][j] for j, rank in enumerate(last_ranks)])
            if last_ranks
            else parts[0]
            for kind, parts in zip(kinds, zip(*results, strict=True), strict=True)
        )


def _last_token(start: int, end: int, tokens: int) -> int:
    """The last token of a sequence. For an empty sequence: the next token, or the last token of the pack."""
    return max(end - 1 if end > start else min(start, tokens - 1), 0)


def _roles(axes: Mapping[str, str]) -> dict[str, str]:
    return {name: role(parse(spec).alternatives[0]) for name, spec in axes.items()}


@checked_call
def simulated(implementation: ContextParallel, like: F) -> F:
    """Make a kernel of a context-parallel implementation, on ranks simulated in one process.

    The kernel has the signature of `like` and one more keyword argument, `cuts`: token positions in order, one fewer
    than ranks, () by default. The property `partition` recognizes a kernel of cut packs by this argument. Gradients
    flow through `split`, the backward pass of each rank, and `gather`. Differentiable once.

    like: the op on one rank.

    Raises the exception of a failing rank, with a note of its number, and PackproofError for a deadlock.

    >>> import torch
    >>> import packproof
    >>> from packproof.parallel import ContiguousShares, Shard, rope, simulated
    >>> def run(group, *, x, cos, sin, cu_seqlens, cuts):
    ...     return rope(x, cos, sin, shard=Shard(cu_seqlens, group, cuts), kernel=packproof.refs.rope)
    >>> kernel = simulated(ContiguousShares("rope", run), like=packproof.refs.rope)
    >>> x, table, cu_seqlens = torch.randn(5, 1, 2), torch.rand(5, 1), torch.tensor([0, 2, 5])
    >>> whole = packproof.refs.rope(x, table, table, cu_seqlens=cu_seqlens)
    >>> torch.equal(kernel(x, table, table, cu_seqlens=cu_seqlens, cuts=(1, 3)), whole)
    True
    """
    return _kernel(implementation, like, None)


@checked_call
def on_process_group(implementation: ContextParallel, like: F, group: ProcessGroup) -> F:
    """Like `simulated`, on real ranks: every process of the group makes the same calls, with the same tensors.

    Each process runs its own part and gets the results of all ranks, so that a check in any process covers the whole
    pack. Too few cuts for the group leave the last ranks without tokens; surplus cuts are ignored.

    >>> import torch
    >>> import torch.distributed as dist
    >>> from packproof import refs
    >>> from packproof.parallel import ContiguousShares, on_process_group
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun does, with more ranks
    >>> shares = ContiguousShares("rope", lambda group, *, cuts, **arguments: refs.rope(**arguments))
    >>> kernel = on_process_group(shares, refs.rope, dist.group.WORLD)
    >>> x, table, cu_seqlens = torch.randn(5, 1, 2), torch.rand(5, 1), torch.tensor([0, 2, 5])
    >>> kernel(x, table, table, cu_seqlens=cu_seqlens).shape
    torch.Size([5, 1, 2])
    >>> dist.destroy_process_group()
    """
    return _kernel(implementation, like, group)


def _kernel(implementation: ContextParallel, like: F, group: ProcessGroup | None) -> F:
    signature = inspect.signature(like)

    @wraps(like)
    def kernel(*args: Any, cuts: Sequence[int] = (), **options: Any) -> Any:
        bound = signature.bind(*args, **options)
        arguments = {name: x for name, x in bound.arguments.items() if x is not None}
        positions = tuple(int(cut) for cut in cuts)
        if any(a > b for a, b in pairwise((0, *positions))):
            raise ArgumentError(f"{like.__name__}: cuts are {list(positions)}, expected token positions in order")
        if group is not None:
            end = int(arguments["cu_seqlens"][-1])
            positions = (*positions, *[end] * group.size())[: group.size() - 1]
        shares = implementation.split(arguments, positions)
        tensor_keys = [
            (rank, name) for rank, share in enumerate(shares) for name, x in share.items() if isinstance(x, Tensor)
        ]
        ranks = Ranks(len(shares)) if group is None else _Processes(group)
        passes = _Passes(implementation, shares, tensor_keys, ranks)
        rank_outputs = _run_on_ranks(passes, *(shares[rank][name] for rank, name in tensor_keys))
        outputs = implementation.gather(passes.outputs_by_rank(rank_outputs), arguments, positions)
        return outputs[0] if len(outputs) == 1 else outputs

    parameters = [*signature.parameters.values()]
    cuts_parameter = inspect.Parameter("cuts", inspect.Parameter.KEYWORD_ONLY, default=())
    vars(kernel)["__signature__"] = signature.replace(parameters=[*parameters, cuts_parameter])
    vars(kernel).pop("__wrapped__")
    return kernel  # type: ignore[return-value]


class _Processes:
    """The ranks of a process group; this process is one of them."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def run(self, program: Callable[[ProcessGroup], T]) -> list[T]:
        """The program's result on each rank, moved to this rank's device."""
        local_result = program(self._group)
        results: list[Any] = [None] * self._group.size()
        dist.all_gather_object(results, _move_tensors(local_result, lambda x: x.detach().cpu()), group=self._group)
        device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(self._group) == "nccl" else "cpu"
        results = [_move_tensors(result, lambda x: x.to(device)) for result in results]
        results[self._group.rank()] = local_result
        return results


def _move_tensors(value: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """Apply `move` to the tensors in nested tuples and dicts."""
    if isinstance(value, Mapping):
        return {name: _move_tensors(x, move) for name, x in value.items()}
    if isinstance(value, tuple):
        return tuple(_move_tensors(x, move) for x in value)
    return move(value) if isinstance(value, Tensor) else value


class _Passes:
    """Forward and backward of all ranks.

    tensor_keys: (rank, name) of each input tensor, in order.
    """

    def __init__(
        self,
        implementation: ContextParallel,
        shares: list[Arguments],
        tensor_keys: list[tuple[int, str]],
        ranks: "Ranks | _Processes",
    ) -> None:
        self._implementation, self._shares, self._tensor_keys = implementation, shares, tensor_keys
        self._leaves: list[dict[str, Tensor]] = [{} for _ in shares]
        self._outputs: list[Outputs] = []
        self._ranks = ranks

    def forward(self, tensors: Sequence[Tensor], needs_gradient: Sequence[bool]) -> list[Tensor]:
        """The outputs of all ranks, in one list.

        needs_gradient: whether each tensor needs a gradient.
        """
        differentiable = {name for (_, name), grad in zip(self._tensor_keys, needs_gradient, strict=True) if grad}
        for (rank, name), x in zip(self._tensor_keys, tensors, strict=True):
            self._leaves[rank][name] = x.detach().requires_grad_(name in differentiable)

        def program(group: ProcessGroup) -> Outputs:
            rank = group.rank()
            with torch.set_grad_enabled(bool(differentiable)):
                result = self._implementation.run(group, **{**self._shares[rank], **self._leaves[rank]})
            return result if isinstance(result, tuple) else (result,)

        self._outputs = self._ranks.run(program)
        return [y.detach() for outputs in self._outputs for y in outputs]

    def outputs_by_rank(self, tensors: Sequence[Tensor]) -> list[Outputs]:
        """Group a flat list of the outputs of all ranks by rank."""
        remaining, by_rank = iter(tensors), []
        for outputs in self._outputs:
            by_rank.append(tuple(next(remaining) for _ in outputs))
        return by_rank

    def backward(self, incoming: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradient of each input tensor."""
        dys = self.outputs_by_rank(incoming)

        def program(group: ProcessGroup) -> dict[str, Tensor | None]:
            rank = group.rank()
            pairs = [(y, dy) for y, dy in zip(self._outputs[rank], dys[rank], strict=True) if y.requires_grad]
            wrt = {name: x for name, x in self._leaves[rank].items() if x.requires_grad}
            if not pairs:
                return dict.fromkeys(wrt)
            ys, output_gradients = zip(*pairs, strict=True)
            # the graph is kept: a caller may go backward again through its own
            gradients = torch.autograd.grad(ys, [*wrt.values()], output_gradients, retain_graph=True, allow_unused=True)
            return dict(zip(wrt, gradients, strict=True))

        gradients = self._ranks.run(program)
        return [gradients[rank].get(name) for rank, name in self._tensor_keys]


class _RanksFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: _Passes, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks = ranks
        return tuple(ranks.forward(tensors, ctx.needs_input_grad[1:]))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: Tensor) -> Any:
        return None, *ctx.ranks.backward(incoming)


_run_on_ranks: Callable[..., Any] = _RanksFunction.apply
