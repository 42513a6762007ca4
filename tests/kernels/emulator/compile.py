"""CUDA C++ kernels on a CPU: compiled with g++, their threads run as fibers. For tests of their logic without a GPU."""

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from packproof.kernels import cuda

_HERE = Path(__file__).parent
# without _FORTIFY_SOURCE, which takes a jump to the stack of another fiber for an error
_FLAGS = ("-Og", "-w", "-std=c++17", "-fPIC", "-shared", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE")
_BUILD = tempfile.TemporaryDirectory()

LAUNCHED_MACROS: list[dict[str, str]] = []
"""Of each set of kernels that was asked for, in order."""


def install() -> None:
    """In this process, kernels in CUDA C++ run on the CPU from now on."""
    cuda.kernels = _emulated
    cuda.missing_requirement = lambda device: ""


def _emulated(name: str, device: torch.device, macros: cuda.Macros) -> "Emulated":
    LAUNCHED_MACROS.append(dict(macros))
    return Emulated(name, macros)


@cache
def _library(name: str, macros: cuda.Macros) -> ctypes.CDLL:
    """A source of packproof's kernels for this CPU."""
    folder = Path(_BUILD.name)
    text = cuda.source(name).replace('#include "hardware.cuh"', '#include "gpu.h"\n#include "hardware.h"')
    text = re.sub(r"extern __shared__ float4 (\w+)\[\];", r"float4* \1 = dynamic_shared;", text)
    text += "\nstatic const long long* values;\n" + "".join(
        map(_entry, *zip(*cuda.signatures(name).items(), strict=True))
    )
    stem = folder / "-".join([Path(name).stem, *(f"{key}{value}" for key, value in macros)])
    stem.with_suffix(".cpp").write_text(text)
    defines = [f"-D{key}={value}" for key, value in macros]
    command = [
        "g++",
        *_FLAGS,
        *defines,
        f"-I{_HERE}",
        "-o",
        str(stem.with_suffix(".so")),
        str(stem.with_suffix(".cpp")),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return ctypes.CDLL(str(stem.with_suffix(".so")))


def _entry(name: str, types: Mapping[str, str]) -> str:
    arguments = ", ".join(f"({kind})values[{i}]" for i, kind in enumerate(types.values()))
    return (
        f"static void body_{name}() {{ {name}({arguments}); }}\n"
        f'extern "C" void run_{name}(int programs, int threads, const long long* given) '
        f"{{ values = given; run(body_{name}, programs, threads); }}\n"
    )


class Emulated:
    """What cuda.Kernels is on a GPU."""

    def __init__(self, name: str, macros: cuda.Macros) -> None:
        self._library = _library(name, macros)
        self._signatures = cuda.signatures(name)

    def __contains__(self, kernel: str) -> bool:
        return kernel in self._signatures

    def launch(self, kernel: str, programs: int, threads: int, shared: int, arguments: Mapping[str, Any]) -> None:
        values = [arguments[name] for name in self._signatures[kernel]]
        words = [value.data_ptr() if isinstance(value, Tensor) else int(value) for value in values]
        getattr(self._library, f"run_{kernel}")(programs, threads, (ctypes.c_longlong * len(words))(*words))
