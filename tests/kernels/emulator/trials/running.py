"""Kernels of these tests: on the CPU, and on a Hopper GPU where there is one."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from packproof.kernels import cuda
from tests.kernels.emulator import compile as emulator

MACROS = (("TOKEN", "BF16"),)


def needs_hopper() -> bool:
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0)


on_a_cpu = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
on_hopper = pytest.mark.skipif(needs_hopper(), reason="needs compute capability 9.0")
on_both = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=on_a_cpu), pytest.param("cuda", marks=on_hopper)]
)


def launch(source: str, kernel: str, threads: int, shared: int, device: str, **arguments: Any) -> None:
    """Run one block of a source beside this file, and wait for it."""
    path = str(Path(__file__).parent / source)
    on_cpu = device == "cpu"
    kernels = emulator.Emulated(path, MACROS) if on_cpu else cuda.kernels(path, torch.device("cuda", 0), MACROS)
    kernels.launch(kernel, 1, threads, shared, arguments)
    if not on_cpu:
        torch.cuda.synchronize()


def tensor_map(tensor: torch.Tensor, box: tuple[int, ...], swizzle: int) -> Any:
    return (cuda if tensor.is_cuda else emulator).tensor_map(tensor, box, swizzle)
