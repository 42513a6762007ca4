"""The processes of ranks: started on this machine or by torchrun, joined to a group, and watched for losses."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from packproof.base.errors import PackproofError, UsageError
from packproof.bench.ranks.judge import RankGroup
from packproof.harness.process import visible_gpus
from packproof.parallel import Watch

_GRACE = 10.0  # seconds to report the missing ranks
_LOCALHOST = "127.0.0.1"


def world_size() -> int:
    """The number of ranks if this process is one of them, by torchrun or by `launch`; 0 if it is none."""
    return int(os.environ.get("WORLD_SIZE", "0")) if "RANK" in os.environ else 0


def default_rank_count() -> int:
    """The ranks of this machine: one per GPU, or two without a GPU."""
    return len(visible_gpus()) or 2


def join_ranks(seconds: float) -> RankGroup:
    """Join the group of all ranks: NCCL with one GPU each, or gloo.

    seconds: how long a rank waits for the others.
    """
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        if local >= torch.cuda.device_count():
            raise UsageError(f"rank {rank} has no GPU: this machine has {torch.cuda.device_count()}; start fewer ranks")
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    backend_arguments = {"backend": "nccl", "device_id": device} if device.type == "cuda" else {"backend": "gloo"}
    dist.init_process_group(timeout=timedelta(seconds=2 * seconds), **backend_arguments)
    return RankGroup(dist.get_world_size(), str(device), dist.group.WORLD, Watch(seconds))


def rank_error_text(error: Exception, rank_group: RankGroup) -> str:
    """Why this rank ended: the other ranks that are lost, and where, or else the error."""
    watch, group = rank_group.watch, rank_group.group
    assert watch is not None
    assert group is not None
    if watch.lost or isinstance(error, PackproofError):
        return watch.lost or str(error)
    absent_ranks = watch.absent(group, _GRACE / 2)
    first_line = str(error).partition("\n")[0]
    return f"rank {rank_group.rank} of {rank_group.ranks}: {absent_ranks or type(error).__name__} ({first_line})"


def launch(arguments: Sequence[str], ranks: int, seconds: float) -> list[int]:
    """Run `packproof` with these arguments on this many ranks of this machine.

    Returns their exit codes, negative for signals. If one rank fails, the others get time to report it, because they
    wait `seconds` for it. Then they are killed.
    """
    store = dist.TCPStore(_LOCALHOST, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "MASTER_ADDR": _LOCALHOST,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # this process holds the store, so it survives the end of a rank
        "WORLD_SIZE": str(ranks),
    }
    command = [sys.executable, "-m", "packproof", *arguments]
    children = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(ranks)
    ]
    try:
        _wait_until_ended(children, seconds + 2 * _GRACE)
    finally:
        for child in children:
            child.kill()
    return [child.wait() for child in children]


def _wait_until_ended(children: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Wait until all have ended, or until one has failed and the time of the others is over."""
    deadline = float("inf")
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        if deadline == float("inf") and any(child.poll() for child in children):
            deadline = time.monotonic() + seconds
        time.sleep(0.1)


def signal_lines(codes: Sequence[int]) -> list[str]:
    """A line for each rank that a signal ended."""
    return [
        f"rank {rank} of {len(codes)} was ended by {signal.Signals(-code).name}"
        for rank, code in enumerate(codes)
        if code < 0
    ]
