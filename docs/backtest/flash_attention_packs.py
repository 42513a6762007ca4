"""FlashAttention-4 at 72c7ba48, b900a5b3, 076e0040 and 69e1bcbe: what packs of keys and queries still end in.

A pack without sequences ends in an exception, at 69e1bcbe in the backward pass alone; torch.compile ends in an
AttributeError of the stream up to 076e0040. At b900a5b3 the backward kernel of SM90 stores what it accumulated also
for keys of a sequence without queries, for which it accumulates nothing: they get gradients that registers happened
to hold, on an H200 other than 0 at every key. It needs an H100, and CuTe. Arguments: which of empty, compiled and keys
to try.
"""

import inspect
import sys
from collections.abc import Callable

import torch
from flash_attn.cute.interface import flash_attn_varlen_func
from torch import Tensor

torch.use_deterministic_algorithms(True, warn_only=True)  # and memory that is allocated holds NaN

HEADS = [(2, 2, 64), (4, 2, 64), (2, 2, 128)]  # of queries, of keys, and their width
BLOCKS = 132  # as many as an H200 runs at once: blocks past them get registers that earlier ones have used
LAYOUTS = [([1, 0, 16], [1, 32, 16]), ([1, 0, 2, 0, 16], [16] * 5), ([128] * BLOCKS + [0] * BLOCKS, [128] * 2 * BLOCKS)]
TRIALS = 3


def attend(q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    longest = {"max_seqlen_q": 128, "max_seqlen_k": 128}
    known = {name: n for name, n in longest.items() if name in inspect.signature(flash_attn_varlen_func).parameters}
    result = flash_attn_varlen_func(q, k, v, cu_seqlens_q=queries, cu_seqlens_k=keys, **known)
    y: Tensor = result[0] if isinstance(result, tuple) else result
    return y


def differentiate(
    call: Callable[..., Tensor], queries: list[int], keys: list[int], heads: tuple[int, int, int] = HEADS[0]
) -> tuple[Tensor, ...]:
    """y and the gradients of q, k and v, for these lengths."""
    offsets = [torch.tensor([0, *n], device="cuda").cumsum(0, dtype=torch.int32) for n in (queries, keys)]
    shapes = [(sum(n), h, heads[2]) for n, h in zip((queries, keys, keys), (heads[0], heads[1], heads[1]), strict=True)]
    q, k, v = (torch.randn(shape, device="cuda").bfloat16().requires_grad_() for shape in shapes)
    y = call(q, k, v, *offsets)
    return y, *torch.autograd.grad(y, (q, k, v), torch.randn_like(y))


def ends(name: str, *arguments: object) -> bool:
    try:
        differentiate(*arguments)  # type: ignore[arg-type]
        torch.cuda.synchronize()
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[0][:200]}")
        return True
    print(f"{name}: it returns")
    return False


def moved(queries: list[int], keys: list[int], heads: tuple[int, int, int]) -> bool:
    """Whether keys that no query sees have a gradient other than 0: a number, or none."""
    unseen = torch.tensor([n == 0 for n in queries]).repeat_interleave(torch.tensor(keys)).cuda()
    trials = []
    for _ in range(TRIALS):
        *_, dk, dv = differentiate(attend, queries, keys, heads)
        trials.append([int((d[unseen] != 0).any(2).any(1).sum()) for d in (dk, dv)])
    pack = f"{queries.count(0)} of {len(queries)} sequences without queries, heads and width {heads}"
    print(f"{pack}: of their {int(unseen.sum())} keys so many have a dk and dv other than 0: {trials}", flush=True)
    return any(map(any, trials))


def any_moved() -> bool:
    results = [moved(*layout, heads) for heads in HEADS for layout in LAYOUTS]
    return any(results)


ends("one sequence", attend, [16], [16])
tried = {
    "empty": lambda: ends("no sequence", attend, [], []),
    "compiled": lambda: ends("torch.compile", torch.compile(attend), [16], [16]),
    "keys": any_moved,
}
outcomes = [tried[name]() for name in sys.argv[1:]]
sys.exit(any(outcomes))
