"""What the tests run on real ranks: the same checks, and ranks that get lost. With NCCL where there is a GPU for each,
else with gloo.

python -m tests.parallel.processes FOLDER NAME=RANKS ... forks the ranks of each, once torch is imported, and leaves
what they found in FOLDER/NAME.RANK.json.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from packproof import parallel, refs
from packproof.base.errors import PackproofError
from packproof.bench.ranks import judge, ours
from packproof.bench.ranks.blocks import split_block
from packproof.bench.ranks.judge import RankGroup
from packproof.harness.process.gpus import visible_gpus

SECONDS = 2.0
CASES = 2
# a sample on four ranks, and the rest in `make proof`: tokens before a cut, states, keys that go round
ON_FOUR = ("causal_conv1d", "selective_scan", "attention, zig-zag")
JUDGED_OPS = {
    "judged on 2": ours.OPS,
    "judged on 4": ON_FOUR,
    "others on 4": tuple(op for op in ours.OPS if op not in ON_FOUR),
}


def judged(place: RankGroup, ops: Sequence[str]) -> dict[str, Any]:
    """What fails of each op, how much was compared, and what of that bit for bit; what a split block differs in."""
    found: dict[str, Any] = {op: asdict(judge.judge_op(op, "float32", CASES, place)) for op in ops}
    return found | {"tensor parallel": split_block(place), "device": place.device}


def lost(place: RankGroup, how: Callable[[], None], *, watched: bool) -> dict[str, Any]:
    """A rank is lost between two layers; what the others say, and after how long."""
    assert place.group is not None
    watch = parallel.Watch(SECONDS) if watched else None
    shard = parallel.Shard([0, 12], place.group, watch=watch)
    x, table = torch.ones(6, 1, 2, device=place.device), torch.ones(6, 1, 3, device=place.device)
    A = -torch.ones(1, device=place.device)
    parallel.ssd(x, x[..., 0].contiguous(), A, table, table, shard=shard, kernel=refs.ssd)
    if place.rank == 1:
        how()
    start = time.monotonic()
    try:
        weight = torch.ones(2, 4, device=place.device)
        parallel.causal_conv1d(x[:, 0], weight, shard=shard, kernel=refs.causal_conv1d)
    except PackproofError as error:
        return {"error": str(error), "seconds": time.monotonic() - start, "device": place.device}
    return {"error": ""}


def place_of(folder: Path, name: str, rank: int, ranks: int, *, on_gpu: bool) -> RankGroup:
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    given: dict[str, Any] = {"backend": "nccl", "device_id": device} if on_gpu else {"backend": "gloo"}
    if on_gpu:
        torch.cuda.set_device(device)
    store = dist.FileStore(str(folder / f"{name}.store"), ranks)  # type: ignore[attr-defined]
    dist.init_process_group(store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=30), **given)
    return RankGroup(ranks, str(device), dist.group.WORLD, parallel.Watch(60.0))


def rank_of(folder: Path, name: str, rank: int, ranks: int, *, on_gpu: bool) -> None:
    place = place_of(folder, name, rank, ranks, on_gpu=on_gpu)
    if name in JUDGED_OPS:
        found = judged(place, JUDGED_OPS[name])
    else:
        how = {"dies": lambda: os._exit(3), "hangs": lambda: time.sleep(6 * SECONDS)}[name.split(maxsplit=1)[0]]
        found = lost(place, how, watched="watched" in name)
    (folder / f"{name}.{rank}.json").write_text(json.dumps(found))


def main(folder: Path, groups: list[str]) -> None:
    children, gpus = [], len(visible_gpus())  # counted without CUDA, which a fork would not survive
    for group in groups:
        name, ranks = group.split("=")
        on_gpu = int(ranks) <= gpus and name != "dies"  # NCCL alone does not notice a rank that dies
        for rank in range(int(ranks)):
            child = os.fork()
            if child == 0:
                try:
                    rank_of(folder, name, rank, int(ranks), on_gpu=on_gpu)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(0)  # a lost rank would keep gloo from being torn down
            children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
