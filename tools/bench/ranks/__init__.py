"""`packproof bench ranks`: context parallelism on several GPUs, judged and timed."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.bench.ranks.command import RanksRequest, run, simulated_ranks
    from packproof.bench.ranks.judge import RankGroup
    from packproof.bench.ranks.page import RanksPlot, is_of_ranks, table
    from packproof.bench.ranks.processes import (
        default_rank_count,
        join_ranks,
        launch,
        rank_error_text,
        signal_lines,
        world_size,
    )

__all__ = [
    "RankGroup",
    "RanksPlot",
    "RanksRequest",
    "default_rank_count",
    "is_of_ranks",
    "join_ranks",
    "launch",
    "rank_error_text",
    "run",
    "signal_lines",
    "simulated_ranks",
    "table",
    "world_size",
]

export(
    sys.modules[__name__],
    {
        "packproof.bench.ranks.command": ("RanksRequest", "run", "simulated_ranks"),
        "packproof.bench.ranks.judge": ("RankGroup",),
        "packproof.bench.ranks.page": ("RanksPlot", "is_of_ranks", "table"),
        "packproof.bench.ranks.processes": (
            "default_rank_count",
            "join_ranks",
            "launch",
            "rank_error_text",
            "signal_lines",
            "world_size",
        ),
    },
)
