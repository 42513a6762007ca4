"""flash-linear-attention's grids count what CUDA limits to 65535: it refuses the launch of a pack of more.

Sequences, or chunks, times heads lie on a grid's second axis: in the causal convolution at 46c5f6be and 31d15f75, and
in log-linear attention and the running sums of wall attention at f0394d2e. It needs a GPU. Arguments: which of
convolution, log_linear and sums to call.
"""

import sys
from importlib import import_module

import torch
from torch import Tensor

SEQUENCES = 65_536  # of one token each


def convolution(offsets: Tensor) -> None:
    x, weight = (torch.randn(*shape).to(offsets.device) for shape in ((1, int(offsets[-1]), 16), (16, 4)))
    import_module("fla.modules.convolution").causal_conv1d(x, weight, cu_seqlens=offsets)


def log_linear(offsets: Tensor) -> None:
    n = int(offsets[-1])
    shapes = {"q": (1, 64), "k": (1, 64), "v": (1, 16), "g": (1,), "level_scales": (1, 18)}
    tokens = (torch.rand(1, n, *shape).neg().to(offsets.device, torch.bfloat16) for shape in shapes.values())
    import_module("fla.ops.log_linear_attn").chunk_log_linear_attn(*tokens, cu_seqlens=offsets)


def sums(offsets: Tensor) -> None:
    x = torch.randn(1, int(offsets[-1]), 1, 16).to(offsets.device)
    import_module("fla.ops.utils.cumsum").chunk_global_cumsum(x, cu_seqlens=offsets)


def refused(name: str, sequences: int) -> bool:
    try:
        globals()[name](torch.arange(sequences + 1, device="cuda"))
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"{name}, {sequences} sequences of one token: {str(error).splitlines()[0]}")
        return True
    print(f"{name}, {sequences} sequences of one token: it returns")
    return False


results = [(refused(name, 1000), refused(name, SEQUENCES)) for name in sys.argv[1:]]
sys.exit((False, True) in results)
