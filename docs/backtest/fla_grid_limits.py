"""flash-linear-attention's grids count what CUDA limits to 65535, so that it refuses the launch of a pack of more.

Sequences, or chunks, times heads lie on a grid's second axis: in the causal convolution at f3215680, 46c5f6be and
31d15f75, in delta rules at 7a882c3c and 31d15f75, and in log-linear attention and the running sums of wall attention
at f0394d2e. Kernels are not run: the grids that they are launched with are printed. Arguments: which of the functions
below to call.
"""

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import GridExecutor

SEQUENCES, LIMIT = 65_536, 65_535  # sequences of one token each
launches: dict[str, tuple[int, ...]] = {}


def record(self: GridExecutor, *positional: object, **named: object) -> None:
    values = dict(zip(self.arg_names, positional, strict=False)) | named
    launches[self.fn.__name__] = tuple(map(int, self.grid(values) if callable(self.grid) else self.grid))


GridExecutor.__call__ = record
Autotuner.run = lambda self, *a, **options: self.fn.run(*a, **options, **self.configs[0].kwargs)  # tuning needs a GPU
torch.cpu.device = torch.cuda.device = lambda _: nullcontext()


def tokens(offsets: Tensor, **shapes: tuple[int, ...]) -> dict[str, Tensor]:
    return {name: -torch.rand(1, int(offsets[-1]), *shape) for name, shape in shapes.items()}


def convolution(offsets: Tensor) -> None:
    call = import_module("fla.modules.convolution").causal_conv1d
    h200 = SimpleNamespace(get_device_properties=lambda _: {"multiprocessor_count": 132})
    driver.set_active(SimpleNamespace(utils=h200))  # f3215680 asks for it, and there is no driver without a GPU
    call(**tokens(offsets, x=(16,)), weight=torch.randn(16, 4), cu_seqlens=offsets)


def delta_rule(offsets: Tensor) -> None:
    halves = {name: x.half() for name, x in tokens(offsets, q=(1, 16), k=(1, 16), v=(1, 16), beta=(1,)).items()}
    import_module("fla.ops.delta_rule").chunk_delta_rule(**halves, cu_seqlens=offsets)


def gated_delta_product(offsets: Tensor) -> None:
    halves = {name: x.half() for name, x in tokens(offsets, q=(1, 16), k=(1, 16), v=(1, 16), beta=(1,)).items()}
    call = import_module("fla.ops.gated_delta_product").chunk_gated_delta_product
    call(**halves, g=-torch.rand(1, int(offsets[-1]), 1), num_householder=1, cu_seqlens=offsets)


def log_linear(offsets: Tensor) -> None:
    arguments = tokens(offsets, q=(1, 64), k=(1, 64), v=(1, 16), g=(1,), level_scales=(1, 18))
    import_module("fla.ops.log_linear_attn").chunk_log_linear_attn(**arguments, cu_seqlens=offsets)


def sums(offsets: Tensor) -> None:
    (x,) = tokens(offsets, x=(1, 16)).values()
    import_module("fla.ops.utils.cumsum").chunk_global_cumsum(x, cu_seqlens=offsets)


def largest(call: Callable[[Tensor], None], sequences: int) -> int:
    """The most programs along the second or third axis of a grid."""
    launches.clear()
    call(torch.arange(sequences + 1))
    name, grid = max(launches.items(), key=lambda launch: max(launch[1][1:], default=1))
    print(f"{sequences} sequences of one token: {name} has the grid {grid}, of {len(launches)} kernels")
    return max(grid[1:], default=1)


calls = (globals()[name] for name in sys.argv[1:])
results = [(largest(call, 1000) <= LIMIT, largest(call, SEQUENCES) <= LIMIT) for call in calls]
sys.exit((True, False) in results)
