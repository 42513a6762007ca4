"""FlashAttention-4 at 72c7ba48, b900a5b3, 076e0040 and 69e1bcbe: what packs of keys and queries still end in.

A pack without sequences ends in an exception, at 69e1bcbe in the backward pass alone; torch.compile ends in an
AttributeError of the stream up to 076e0040; and at b900a5b3 keys of a sequence without queries get the gradients that
their memory held, here NaN. It needs an H100, and CuTe. Arguments: which of empty, compiled and keys to try.
"""

import inspect
import sys
from collections.abc import Callable

import torch
from flash_attn.cute.interface import flash_attn_varlen_func
from torch import Tensor

torch.use_deterministic_algorithms(True, warn_only=True)  # and memory that is allocated holds NaN


def attend(q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    longest = {"max_seqlen_q": 128, "max_seqlen_k": 128}
    known = {name: n for name, n in longest.items() if name in inspect.signature(flash_attn_varlen_func).parameters}
    y = flash_attn_varlen_func(q, k, v, cu_seqlens_q=queries, cu_seqlens_k=keys, **known)
    return y[0] if isinstance(y, tuple) else y


def differentiate(call: Callable[..., Tensor], queries: list[int], keys: list[int]) -> tuple[Tensor, ...]:
    """y and the gradients of q, k and v, for these offsets."""
    offsets = [torch.tensor(o, dtype=torch.int32, device="cuda") for o in (queries, keys)]
    q, k, v = (torch.randn(o[-1], 2, 64, device="cuda").bfloat16().requires_grad_() for o in (queries, keys, keys))
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


def unwritten() -> bool:
    *_, dk, dv = differentiate(attend, [0, 1, 1, 17], [0, 1, 33, 49])
    rows = [int((~torch.isfinite(d).all(dim=(1, 2))).sum()) for d in (dk, dv)]
    print(f"32 keys of a sequence without queries: of {rows} rows of dk and dv some element is no number")
    return any(rows)


ends("one sequence", attend, [0, 16], [0, 16])
tried = {
    "empty": lambda: ends("no sequence", attend, [0], [0]),
    "compiled": lambda: ends("torch.compile", torch.compile(attend), [0, 16], [0, 16]),
    "keys": unwritten,
}
outcomes = [tried[name]() for name in sys.argv[1:]]
sys.exit(any(outcomes))
