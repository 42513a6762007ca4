"""CUDA C++ kernels on a CPU: compiled with g++, their threads run as fibers. For tests of their logic without a GPU.

What a GPU leaves undefined is a Violation: accesses outside of the launch's tensors or of shared memory, unaligned, or
to shared memory without a barrier between them; registers and memory of a product or a copy in flight; phases of
barriers that never end. Not seen: races in global memory, and order that shuffles alone would give.
"""

import ctypes
import fcntl
import hashlib
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from packproof.kernels import cuda

_HERE = Path(__file__).parent
_COMPILER = ("g++", "-w", "-std=c++17", "-fPIC", f"-I{_HERE}", "-fno-strict-aliasing", "-fno-gnu-unique")
_COMPILER += ("-U_FORTIFY_SOURCE",)  # it takes a jump to the stack of another fiber for an error
_CHECKED = (
    *("-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0"),  # see instrumented.h
    "-fstack-reuse=none",  # operands of a product in flight keep their place on the stack
)
_ON_CPU = {f"{name}.cuh": f'#include "{name}.h"' for name in ("hardware", "hopper", "wgmma")}
_ON_CPU["hardware.cuh"] = '#include "gpu.h"\n#include "hardware.h"'
_HARDWARE = re.compile(f'#include "({"|".join(map(re.escape, _ON_CPU))})"')
_DYNAMIC_SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+) (\w+)\[\];")
_STATIC_SHARED = re.compile(r"(?<!extern )__shared__ ([^;]+?) (\w+)((?:\[[^\]]*\])*);")
_BUILD = _HERE.parents[2] / "build" / "emulator"


class CompilationError(RuntimeError):
    """A source that g++ does not compile. The text has the command and what g++ said."""


LAUNCHED_MACROS: list[dict[str, str]] = []
"""Of each set of kernels that was asked for, in order."""


def install() -> None:
    """In this process, kernels in CUDA C++ run on the CPU from now on."""
    cuda.kernels = _emulated
    cuda.tensor_map = tensor_map
    cuda.missing_requirement = cuda.missing_hopper = lambda device: ""


def _emulated(name: str, device: torch.device, macros: cuda.Macros) -> "Emulated":
    LAUNCHED_MACROS.append(dict(macros))
    return Emulated(name, macros)


@cache
def _library(name: str, macros: cuda.Macros) -> ctypes.CDLL:
    """A source of packproof's kernels for this CPU."""
    defines = (f"-D{key}={value}" for key, value in macros)
    kernels = _built(Path(name).stem, ".o", _on_cpu(name), "-Og", *_CHECKED, *defines, "-c", "-x", "c++", "-")
    core = _built("core", ".o", "", "-O1", "-ftree-vectorize", "-c", str(_HERE / "core" / "core.cpp"))
    return ctypes.CDLL(str(_built(Path(name).stem, ".so", "", "-shared", str(kernels), str(core))))


def _built(stem: str, suffix: str, text: str, *arguments: str) -> Path:
    """What g++ makes of its arguments and of a text, made once and then read from disk.

    The core takes it three seconds, and a form of a kernel one. Another process that needs the same file waits for it.
    """
    digest = hashlib.sha256("\0".join((_surroundings(), text, *arguments)).encode()).hexdigest()
    file = _BUILD / f"{stem}-{digest[:32]}{suffix}"
    _BUILD.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            part = file.with_suffix(".part")
            _compile(text, "-o", str(part), *arguments)
            part.replace(file)  # so that a process that was ended leaves no half of it
    return file


@cache
def _surroundings() -> str:
    """What each compilation depends on beside its source: the compiler, its options and the headers here."""
    version = subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True).stdout
    headers = (file.read_text() for file in sorted(_HERE.rglob("*")) if file.suffix in {".h", ".cpp"})
    return "\0".join((version, *_COMPILER, *headers))


def _compile(text: str, *arguments: str) -> None:
    command = [*_COMPILER, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, input=text)
    if done.returncode:
        raise CompilationError(f"{' '.join(command)}\n{done.stderr}")


def _on_cpu(name: str) -> str:
    """The text of a source as a CPU compiler reads it, with a function run_KERNEL for each kernel."""
    text = _HARDWARE.sub(lambda part: _ON_CPU[part[1]], cuda.source(name))
    text = _DYNAMIC_SHARED.sub(r"\1* \2 = (\1*)emulated::dynamic_shared();", text)
    text = _STATIC_SHARED.sub(
        r"typedef \1 \2_type\3; static char \2_key; \2_type& \2 = emulated::shared_variable<\2_type>(&\2_key);", text
    )
    kernels = cuda.signatures(name)
    return text + "\nstatic const long long* values;\n" + "".join(_entry(*kernel) for kernel in kernels.items())


def _entry(name: str, types: Mapping[str, str]) -> str:
    arguments = ", ".join(_argument(kind, f"values[{i}]") for i, kind in enumerate(types.values()))
    return (
        f"static void body_{name}() {{ {name}({arguments}); }}\n"
        f'extern "C" const char* run_{name}(int programs, int threads, int shared, const long long* given, '
        "const long long* ranges, int tensors) {\n"
        f"    values = given;\n    return emulated::run(body_{name}, programs, threads, shared, ranges, tensors);\n}}\n"
    )


def _argument(kind: str, word: str) -> str:
    return f"*(const tensor_map*){word}" if kind.endswith("tensor_map") else f"({kind}){word}"


class TensorMap(ctypes.Structure):
    """The tensor_map of core.h: axes from the one whose elements are next to each other."""

    _fields_ = (
        ("base", ctypes.c_void_p),
        ("element", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("swizzle", ctypes.c_int),
        ("box", ctypes.c_int * 3),
        ("shape", ctypes.c_longlong * 3),
        ("strides", ctypes.c_longlong * 3),
    )


def tensor_map(tensor: Tensor, box: tuple[int, ...], swizzle: int) -> TensorMap:
    """What cuda.tensor_map is on a GPU, and as strict."""
    size, ones = tensor.element_size(), [1] * (3 - tensor.ndim)
    strides = [size * stride for stride in reversed(tensor.stride())]
    if tensor.ndim not in {2, 3} or strides[0] != size or any(stride % 16 for stride in strides[1:]):
        raise ValueError(f"strides of {strides} bytes; all but the first, {size}, are multiples of 16")
    if tensor.data_ptr() % 16 or min(tensor.shape) < 1 or not all(1 <= edge <= 256 for edge in box):
        raise ValueError(f"a tensor of {tuple(tensor.shape)} at {tensor.data_ptr()} in boxes of {box}")
    shape = [*reversed(tensor.shape), *ones]
    return TensorMap(
        *(tensor.data_ptr(), size, tensor.ndim, swizzle),
        (ctypes.c_int * 3)(*reversed(box), *ones),
        (ctypes.c_longlong * 3)(*shape),
        (ctypes.c_longlong * 3)(*strides, *ones),
    )


class Violation(Exception):
    """A kernel did what a GPU leaves undefined."""


class Emulated:
    """What cuda.Kernels is on a GPU."""

    def __init__(self, name: str, macros: cuda.Macros) -> None:
        self._library = _library(name, macros)
        self._signatures = cuda.signatures(name)

    def __contains__(self, kernel: str) -> bool:
        return kernel in self._signatures

    def launch(self, kernel: str, programs: int, threads: int, shared: int, arguments: Mapping[str, Any]) -> None:
        """As on a GPU. Raises Violation."""
        values = [arguments[name] for name in self._signatures[kernel]]
        words = _words([_word(value) for value in values])
        ranges = [word for value in (words, *values) for word in _range(value)]
        run = getattr(self._library, f"run_{kernel}")
        run.restype = ctypes.c_char_p
        violation = run(programs, threads, shared, words, _words(ranges), len(ranges) // 2).decode()
        if violation:
            raise Violation(f"{kernel}: {violation}")


def _words(values: list[int]) -> Any:
    return (ctypes.c_longlong * len(values))(*values)


def _range(value: Any) -> tuple[int, ...]:
    """Where the memory of an argument begins and ends, if it has some."""
    if isinstance(value, Tensor):
        memory = value.untyped_storage()
        return memory.data_ptr(), memory.data_ptr() + memory.nbytes()
    if isinstance(value, ctypes.Array | TensorMap):
        return ctypes.addressof(value), ctypes.addressof(value) + ctypes.sizeof(value)
    return ()


def _word(value: Any) -> int:
    if isinstance(value, TensorMap):
        return ctypes.addressof(value)
    return value.data_ptr() if isinstance(value, Tensor) else int(value)
