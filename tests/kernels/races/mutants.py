"""The races of packproof's own sources in CUDA C++: mutants that lack one wait, barrier or fence."""

import random
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from packproof.kernels import causal_conv1d, cuda, selective_scan, ssd
from packproof.proof.mutants.mutant import KERNELS, Mutant
from tests.kernels.mutants.mutant import SOURCES, all_mutants, explanations_of, files_of
from tests.kernels.races.bug import Bug, PreparedCall, Tensors

_WAITS = (
    "__syncthreads(", "__syncwarp(", "named_barrier(", "wait_for_bulk_reads<", "wait_for_copies<", "wgmma_wait<",
    "fence_async_proxy(", "fence_mbarrier_init(", "wait_until_empty(",
)  # fmt: skip
_LENGTHS = (300, 1, 64, 2500, 17, 0, 1000)


def _without_a_wait() -> list[Mutant]:
    """Mutants that drop a wait and compute something else, as far as it is known."""
    dropped = [
        m
        for m in all_mutants()
        if m.operator == "phase"
        and m.edit.new == "(void)0"
        and any(wait in m.original[m.edit.start : m.edit.end] for wait in _WAITS)
    ]
    equivalents = explanations_of(dropped)
    return [m for m in dropped if m.id not in equivalents]


def drawn(count: int) -> list[Bug]:
    """So many of them, the same ones each time."""
    mutants = _without_a_wait()
    chosen = random.Random(0).sample(mutants, min(count, len(mutants)))
    return [Bug(f"mutant {m.id}", m.file, partial(_prepare, m)) for m in sorted(chosen, key=lambda m: m.id)]


def by_name(name: str) -> Bug:
    """The bug of one mutant."""
    mutant = next(m for m in all_mutants() if f"mutant {m.id}" == name)
    return Bug(name, mutant.file, partial(_prepare, mutant))


def _prepare(mutant: Mutant, device: torch.device, broken: bool) -> PreparedCall:
    source = next(source for source in SOURCES if mutant.file in files_of(source))
    make_call = {"ssd.cu": _ssd, "ssd_bwd.cu": _ssd, "selective_scan.cu": _scan, "causal_conv1d.cu": _conv}[source]
    backward = "bwd" in mutant.file
    call, other_call = (make_call(device, seed, backward) for seed in (0, 100))
    folder = _folder_of(mutant) if broken else Path(KERNELS)

    def with_source(function: Callable[[], Tensors]) -> Tensors:
        _use_sources(folder)
        return function()

    return PreparedCall(partial(with_source, call), partial(with_source, other_call))


_folders: list[TemporaryDirectory[str]] = []


@cache
def _folder_of(mutant: Mutant) -> Path:
    """A folder with the sources, and the mutant in place of its file. It lasts as long as the process."""
    _folders.append(TemporaryDirectory())
    folder = Path(_folders[-1].name)
    for file in KERNELS.glob("*.cu*"):
        (folder / file.name).symlink_to(file)
    (folder / mutant.file).unlink()
    (folder / mutant.file).write_text(mutant.source, encoding="utf-8")
    return folder


def _use_sources(folder: Path) -> None:
    """Kernels are compiled from this folder from now on: in the process of one trial."""
    if folder != cuda._FOLDER:
        for cached in (cuda.source, cuda.signatures, cuda._kernels):
            cached.cache_clear()
        cuda._FOLDER = folder


def _numbers(shape: tuple[int, ...], device: torch.device, seed: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()


def _offsets(device: torch.device) -> Tensor:
    return torch.tensor([0, *_LENGTHS], device=device).cumsum(0).int()


def _answer(y: Tensor, inputs: Mapping[str, Tensor], backward: bool) -> Tensors:
    """y; with a backward pass also the gradients of its sum, weighted by position."""
    if not backward:
        return {"y": y.detach()}
    weights = torch.linspace(-1, 1, y.numel(), device=y.device).view_as(y)
    gradients = torch.autograd.grad((y.float() * weights).sum(), list(inputs.values()))
    return {"y": y.detach(), **dict(zip(inputs, gradients, strict=True))}


def _ssd(device: torch.device, seed: int, backward: bool) -> Callable[[], Tensors]:
    tokens, heads, groups, states, dtype = sum(_LENGTHS), 16, 2, 64, torch.bfloat16
    keys = tokens, groups, states
    shapes = {"x": (tokens, heads, 64), "dt": (tokens, heads), "B": keys, "C": keys}
    inputs = {name: _numbers(shape, device, seed + k, dtype) for k, (name, shape) in enumerate(shapes.items())}
    A = -torch.rand(heads, generator=torch.Generator().manual_seed(seed)).to(device) - 0.1
    options: Mapping[str, Any] = {"A": A, "dt_softplus": True, "cu_seqlens": _offsets(device), "impl": "cuda"}
    return lambda: _answer(ssd(**inputs, **options), inputs, backward)


def _scan(device: torch.device, seed: int, backward: bool) -> Callable[[], Tensors]:
    tokens, channels, states = sum(_LENGTHS), 128, 16
    shapes = {"u": (tokens, channels), "delta": (tokens, channels), "B": (tokens, states), "C": (tokens, states)}
    inputs = {name: _numbers(shape, device, seed + k, torch.bfloat16) for k, (name, shape) in enumerate(shapes.items())}
    A = -torch.rand(channels, states, generator=torch.Generator().manual_seed(seed)).to(device) - 0.1
    options: Mapping[str, Any] = {"A": A, "delta_softplus": True, "cu_seqlens": _offsets(device), "impl": "cuda"}
    return lambda: _answer(selective_scan(**inputs, **options), inputs, backward)


def _conv(device: torch.device, seed: int, backward: bool) -> Callable[[], Tensors]:
    inputs = {
        "x": _numbers((sum(_LENGTHS), 256), device, seed, torch.bfloat16),
        "weight": _numbers((256, 4), device, seed + 1, torch.bfloat16),
    }
    options: Mapping[str, Any] = {"activation": "silu", "cu_seqlens": _offsets(device), "impl": "cuda"}
    return lambda: _answer(causal_conv1d(**inputs, **options), inputs, backward)
