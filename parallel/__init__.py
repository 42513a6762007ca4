"""Packs cut over ranks: context-parallel ops on `torch.distributed`, and ranks simulated in one process.

docs/context_parallel.md lists the exchanges and their cost.
"""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.parallel.attention import attention
    from packproof.parallel.convolution import causal_conv1d
    from packproof.parallel.mamba2 import TensorParallelMamba2
    from packproof.parallel.ranks import run_ranks
    from packproof.parallel.rotary import rope
    from packproof.parallel.scans import selective_scan, ssd
    from packproof.parallel.shard import Shard
    from packproof.parallel.simulated import ContextParallel, ContiguousShares, on_process_group, simulated
    from packproof.parallel.watch import Watch
    from packproof.parallel.zigzag import ZigZag, ZigZagShares

__all__ = [
    "ContextParallel",
    "ContiguousShares",
    "Shard",
    "TensorParallelMamba2",
    "Watch",
    "ZigZag",
    "ZigZagShares",
    "attention",
    "causal_conv1d",
    "on_process_group",
    "rope",
    "run_ranks",
    "selective_scan",
    "simulated",
    "ssd",
]

export(
    sys.modules[__name__],
    {
        "packproof.parallel.attention": ("attention",),
        "packproof.parallel.convolution": ("causal_conv1d",),
        "packproof.parallel.mamba2": ("TensorParallelMamba2",),
        "packproof.parallel.ranks": ("run_ranks",),
        "packproof.parallel.rotary": ("rope",),
        "packproof.parallel.scans": ("selective_scan", "ssd"),
        "packproof.parallel.shard": ("Shard",),
        "packproof.parallel.simulated": ("ContextParallel", "ContiguousShares", "on_process_group", "simulated"),
        "packproof.parallel.watch": ("Watch",),
        "packproof.parallel.zigzag": ("ZigZag", "ZigZagShares"),
    },
)
