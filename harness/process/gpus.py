"""The GPUs for a test run, counted without initialising CUDA: that would fix the list for the process."""

import os
import shutil
import subprocess
from functools import cache
from itertools import takewhile

from packproof.base.machine import available_cores

WORKERS_PER_GPU = 8  # each keeps a core busy with references; its kernel's CUDA context takes half a GB or more


def visible_gpus() -> list[str]:
    """Names of the GPUs in the form of CUDA_VISIBLE_DEVICES: its own list if it is set, otherwise all of nvidia-smi."""
    device_list = os.environ.get("CUDA_VISIBLE_DEVICES")
    if device_list is None:
        return [str(number) for number in range(_installed_gpu_count())]
    names = (name.strip() for name in device_list.split(","))
    return list(takewhile(lambda name: name and not name.startswith("-"), names))  # CUDA stops there too


def gpu_environment(worker: int) -> dict[str, str]:
    """The environment with one GPU for a worker of a test run: its number modulo the count. Empty without GPUs."""
    names = visible_gpus()
    return {"CUDA_VISIBLE_DEVICES": names[worker % len(names)]} if names else {}


def worker_count(cores: int | None = None) -> int | None:
    """The number of workers for all GPUs: equally many for each, at most one for each core; None without GPUs.

    cores: those of this process, unless given.
    """
    gpus, cores = len(visible_gpus()), available_cores() if cores is None else cores
    return gpus * min(WORKERS_PER_GPU, max(1, cores // gpus)) if gpus else None


@cache
def _installed_gpu_count() -> int:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    process = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in process.stdout.splitlines()) if process.returncode == 0 else 0
