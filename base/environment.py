"""The machine and software of a run, as far as they affect the times."""

import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch


@dataclass(frozen=True)
class Environment:
    """The machine and the versions of one run."""

    device: str
    """ "cpu" or "cuda"."""
    name: str
    """The processor, or the GPU."""
    torch: str
    triton: str
    """ "" if triton is not installed."""
    python: str
    threads: int
    """The threads of torch."""
    driver: str = ""
    """The version of the NVIDIA driver, "" on a CPU."""


def environment(device: str) -> Environment:
    """The machine and software of this process."""
    on_gpu = device == "cuda"
    return Environment(
        device=device,
        name=torch.cuda.get_device_name() if on_gpu else _processor(),
        torch=torch.__version__,
        triton=version("triton") if find_spec("triton") else "",
        python=platform.python_version(),
        threads=torch.get_num_threads(),
        driver=_driver() if on_gpu else "",
    )


def _processor() -> str:
    """The processor as Linux names it, or else the architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} x{len(names)}" if names else platform.machine()


def _driver() -> str:
    """The version of the NVIDIA driver; "" if nvidia-smi is missing."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    words = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout.split()
    return words[0] if words else ""
