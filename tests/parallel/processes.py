"""What the tests run on real ranks, in processes with a gloo group: the same checks, and ranks that get lost.

python -m tests.parallel.processes FOLDER NAME=RANKS ... forks the ranks of each, once torch is imported, and leaves
what they found in FOLDER/NAME.RANK.json.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from packproof import layers, parallel, refs
from packproof.harness.engine.violations import broken
from packproof.harness.execution.execute import InProcess
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space
from packproof.properties.comparison import comparisons
from packproof.properties.declaration import describe
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.laws import partition
from packproof.properties.laws.partition import PARTITION
from packproof.properties.ops import OPS
from packproof.properties.promises import Promises
from packproof.refs.errors import PackproofError
from tests.parallel import ours

SECONDS = 2.0
PROMISES: dict[str, dict[str, Any]] = {  # a state that one rank alone hands over keeps its bits
    "causal_conv1d": {"grid": "sequence"},
    "selective_scan": {"grid": "sequence", "chunk": 16, "state_entry": "carry"},
    "ssd": {"grid": "sequence", "chunk": 16, "state_entry": "carry"},
    "rope": {"grid": "token"},
}


def judged(group: dist.ProcessGroup) -> dict[str, Any]:
    """What fails of each op, and how much was compared bit for bit: on the first rank. The others compute with it."""
    found: dict[str, Any] = {}
    for op in ours.OPS:
        promises = Promises(**(PROMISES[op] if group.size() == 2 else {}))
        function = ours.ours(op, group=group)
        space = Space(OPS[op], "float32", promises, frozenset(describe(function)["parameters"]))
        kernel = KernelUnderTest(OPS[op], InProcess(function), promises, takes_cuts=True)
        failed: list[str] = []
        with comparisons() as made:
            for case in cases(space, group.size()):
                if group.rank() == 0:
                    violation = broken(kernel, PARTITION, case)
                    failed += [] if violation is None else [f"{case}: {violation.lines()}"]
                else:
                    take_part(kernel, case)
        found[op] = {"failed": failed, "bitwise": sum(c.allowed is None for c in made), "made": len(made)}
    return found


def tensor_parallel(group: dist.ProcessGroup) -> float:
    """The largest error of a block whose heads, and once its tokens too, are split over the ranks."""
    torch.manual_seed(0)
    block = layers.Mamba2Block(8, d_state=3, headdim=2, ngroups=4, ops=refs).double()
    u, offsets = torch.randn(8, 8, dtype=torch.float64), torch.tensor([0, 3, 8])
    whole, rows = block(u, cu_seqlens=offsets), torch.arange(8).chunk(group.size())[group.rank()]
    all_tokens = parallel.TensorParallelMamba2(block, group)(u, cu_seqlens=offsets)
    some = parallel.TensorParallelMamba2(block, group, sequence_parallel=True)(u[rows], cu_seqlens=offsets)
    return float(torch.cat([all_tokens - whole, some - whole[rows]]).abs().max())


def cases(space: Space, ranks: int) -> Iterator[Case]:
    """Golden cuts, of which a group of few ranks has the first; for two ranks without what has no bits of its own."""
    for case in PARTITION.suited(space, [])[:5]:
        cut = case.replace(cuts=(case.cuts or ())[: ranks - 1])
        yield ours.plain(cut) if ranks == 2 else cut


def take_part(kernel: KernelUnderTest, case: Case) -> None:
    """The calls that `partition` makes of a kernel that takes cuts."""
    sample = kernel.sample(case)
    kernel.remembered(sample)
    partition._cut_by_the_kernel(kernel, sample, case)


def lost(group: dist.ProcessGroup, how: Callable[[], None], *, watched: bool) -> dict[str, Any]:
    """A rank is lost between two layers; what the others say, and after how long."""
    watch = parallel.Watch(SECONDS) if watched else None
    shard = parallel.Shard([0, 12], group, watch=watch)
    x, table = torch.ones(4, 1, 2), torch.ones(4, 1, 3)
    call = (x, torch.ones(4, 1), -torch.ones(1), table, table)
    parallel.ssd(*call, shard=shard, kernel=refs.ssd)
    if group.rank() == 1:
        how()
    start = time.monotonic()
    try:
        parallel.causal_conv1d(x[:, 0], torch.ones(2, 4), shard=shard, kernel=refs.causal_conv1d)
    except PackproofError as error:
        return {"error": str(error), "seconds": time.monotonic() - start}
    return {"error": ""}


def rank_of(folder: Path, name: str, rank: int, ranks: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / f"{name}.store"), ranks)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=30))
    world = dist.group.WORLD
    assert world is not None
    if name.startswith("judged"):
        found = judged(world) | {"tensor parallel": tensor_parallel(world)}
    else:
        how = {"dies": lambda: os._exit(3), "hangs": lambda: time.sleep(6 * SECONDS)}[name.split(maxsplit=1)[0]]
        found = lost(world, how, watched="watched" in name)
    (folder / f"{name}.{rank}.json").write_text(json.dumps(found))


def main(folder: Path, groups: list[str]) -> None:
    children = []
    for group in groups:
        name, ranks = group.split("=")
        for rank in range(int(ranks)):
            child = os.fork()
            if child == 0:
                try:
                    rank_of(folder, name, rank, int(ranks))
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(0)  # a lost rank would keep gloo from being torn down
            children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
