"""The GPU resources of one compiled form of a kernel: registers, spills, shared memory.

They are kept in Triton's cache. The key covers the kernel's source, the target, the options, the version of Triton and
the code of this module. A form is compiled again only if one of these has changed.
"""

import hashlib
import json
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypedDict

from packproof.harness.tiers.compile import refills
from packproof.kernels.variant import Variant

_CACHE_FILE = "resources.json"


class Resources(TypedDict):
    """The GPU resources of one variant on one target."""

    registers: int
    """Registers per thread."""
    spills: int
    """Bytes stored and loaded by spills; on AMD, the number of spilled registers."""
    shared: int
    """Bytes of shared memory per program."""
    dot: bool
    """Whether the kernel multiplies matrices (`tl.dot`)."""
    atomics: list[str]
    """The kinds of `tl.atomic_*` in the kernel."""
    refilled: int
    """The number of buffers refilled too early by a loop (`refills`)."""


def cached_resources(variant: Variant, target: str) -> Resources | None:
    """The resources found by an earlier compilation of the same source, or None. Compiles nothing."""
    path = _cache_manager(variant, target).get_file(_CACHE_FILE)
    if path is None:
        return None
    resources: Resources = json.loads(Path(path).read_text())
    return resources


def compile_and_measure(variant: Variant, target: str) -> Resources:
    """Compile the form in this process and store its resources. Passes on the errors of the compiler."""
    import triton  # noqa: PLC0415  (`import packproof` works where Triton is not installed)

    kernel = triton.compile(_ast_source(variant), target=_gpu_target(target), options=_options(variant))
    registers, spills = _amd_usage(kernel) if target.startswith("gfx") else _nvidia_usage(kernel, target)
    resources = Resources(
        registers=registers,
        spills=spills,
        shared=int(kernel.metadata.shared),
        dot="tt.dot" in kernel.asm["ttir"],
        atomics=sorted(set(re.findall(r"tt\.atomic_(?:rmw )?(\w+)", kernel.asm["ttir"]))),
        refilled=refills.refilled_buffers(kernel.asm["ttgir"]),
    )
    store_resources(variant, target, resources)
    return resources


def store_resources(variant: Variant, target: str, resources: Resources) -> None:
    """Store resources in Triton's cache, as the result of compiling this source."""
    _cache_manager(variant, target).put(json.dumps(resources), _CACHE_FILE, binary=False)


def cache_key(variant: Variant, target: str) -> str:
    """A digest of everything the resources depend on: source, target, options, Triton, and this file."""
    from triton.runtime.cache import get_cache_key  # noqa: PLC0415

    backend = _backend(target)
    options = SimpleNamespace(hash=lambda: _options_text(backend.parse_options(_options(variant))))
    triton_key = get_cache_key(_ast_source(variant), backend, options, env_vars={})
    return hashlib.sha256(f"{triton_key}-{_module_digest()}".encode()).hexdigest()


def _options_text(options: Any) -> str:
    """Options as text, with libraries as digests of their contents. Triton's own digest has their paths on AMD, which
    differ between installations."""
    libraries = [(name, _file_digest(Path(file))) for name, file in options.extern_libs]
    return repr(sorted({**vars(options), "extern_libs": libraries}.items()))


def digest_tools(target: str) -> None:
    """Compute the digest of Triton and the versions of its tools (0.8 s). They are the same for all forms.

    Raises a bare Exception where Triton has no tools for the target.
    """
    from triton.runtime import cache as triton_cache  # noqa: PLC0415

    triton_cache.triton_key()
    _backend(target).hash()


def _cache_manager(variant: Variant, target: str) -> Any:
    from triton.runtime.cache import get_cache_manager  # noqa: PLC0415

    return get_cache_manager(cache_key(variant, target))


def _module_digest() -> str:
    return "".join(_file_digest(Path(file)) for file in (__file__, refills.__file__))


@cache
def _file_digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _ast_source(variant: Variant) -> Any:
    from triton.compiler import ASTSource  # noqa: PLC0415

    names = list(variant.signature)
    return ASTSource(
        fn=variant.kernel,
        signature=dict(variant.signature),
        constexprs={(names.index(name),): value for name, value in variant.constexprs.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in variant.divisible},
    )


def _options(variant: Variant) -> dict[str, Any]:
    return {"num_warps": variant.num_warps, "num_stages": variant.num_stages, **variant.options}


@cache
def _backend(target: str) -> Any:
    from triton.compiler.compiler import make_backend  # noqa: PLC0415

    return make_backend(_gpu_target(target))


def _gpu_target(target: str) -> Any:
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415

    if target.startswith("gfx"):
        return GPUTarget("hip", target, 64)
    return GPUTarget("cuda", int(target.removeprefix("sm_")), 32)


def _amd_usage(kernel: Any) -> tuple[int, int]:
    """Vector registers, and the number of spilled ones."""
    counts = dict(re.findall(r"\.(vgpr_count|vgpr_spill_count):\s+(\d+)", kernel.asm["amdgcn"]))
    return int(counts["vgpr_count"]), int(counts["vgpr_spill_count"])


def _nvidia_usage(kernel: Any, target: str) -> tuple[int, int]:
    """Registers, and bytes of spill stores and loads. Only ptxas reports spills; without a stack there are none."""
    from triton import knobs  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        cubin, ptx = Path(folder, "kernel.cubin"), Path(folder, "kernel.ptx")
        cubin.write_bytes(kernel.asm["cubin"])
        usage = _run_tool(knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(cubin))
        counts = {name: int(n) for name, n in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
        if not counts["STACK"] and not counts["LOCAL"]:
            return counts["REG"], 0
        ptx.write_text(kernel.asm["ptx"])
        blackwell = target in ("sm_100", "sm_120") and getattr(knobs.nvidia, "ptxas_blackwell", None)
        ptxas = blackwell or knobs.nvidia.ptxas
        arch = re.search(r"\.target\s+(\w+)", kernel.asm["ptx"])
        assert arch is not None
        report = _run_tool(ptxas.path, "-v", f"--gpu-name={arch[1]}", str(ptx), "-o", str(Path(folder, "again.cubin")))
        return counts["REG"], sum(int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", report))


def _run_tool(*command: str) -> str:
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return process.stdout + process.stderr
