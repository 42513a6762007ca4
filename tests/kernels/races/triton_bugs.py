"""The seeded races of Triton kernels, and one between two streams."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from tests.kernels.races import triton_kernels as kernels
from tests.kernels.races.bug import Bug, PreparedCall, Tensors, whole_numbers

_PROGRAMS, _N, _STEPS = 96, 1024, 12


def _reversed(x: Tensor, parts: Tensor, _: Tensor, bug: str) -> Tensor:
    y = torch.empty_like(x)
    programs = len(x) // _STEPS
    kernels.reversed_through_memory[(programs,)](y, x, parts, _STEPS, _N, bug, num_warps=8)
    return y


def _last_program(x: Tensor, parts: Tensor, words: Tensor, bug: str) -> Tensor:
    y = torch.zeros(_N, device=x.device)
    kernels.last_program[(_PROGRAMS,)](y, x, parts, words, _PROGRAMS, _N, bug, num_warps=8)
    return y


def _locked_sum(x: Tensor, _: Tensor, words: Tensor, bug: str) -> Tensor:
    y = torch.zeros(_N, device=x.device)
    kernels.locked_sum[(_PROGRAMS,)](y, x, words, _N, bug, num_warps=8)
    return y


def _chained(x: Tensor, parts: Tensor, words: Tensor, bug: str) -> Tensor:
    y = torch.empty(_PROGRAMS, _N, device=x.device)
    kernels.chained[(_PROGRAMS,)](y, x, parts, words, _N, bug, num_warps=8)
    return y


def _split_sum(x: Tensor, parts: Tensor, words: Tensor, bug: str) -> Tensor:
    y = torch.zeros(_N, device=x.device)
    kernels.split_sum[(_PROGRAMS,)](y, x, parts, words, _PROGRAMS, _N, bug, num_warps=8)
    return y


def _neighbour(x: Tensor, _parts: Tensor, _words: Tensor, bug: str) -> Tensor:
    y = x.clone()
    kernels.neighbour[(len(x),)](y, x, _N, bug, num_warps=8)
    return y


def _summed(x: Tensor, _parts: Tensor, _words: Tensor, bug: str) -> Tensor:
    y = torch.zeros(_N, device=x.device)
    kernels.summed[(_PROGRAMS,)](y, x, _N, bug, num_warps=8)
    return y


def _two_streams(x: Tensor, parts: Tensor, _: Tensor, bug: str) -> Tensor:
    """Doubled on a stream of its own, for which the caller's stream waits unless the bug is there."""
    current, side = torch.cuda.current_stream(), _side_stream(x.device)
    doubled = parts[: len(x)]
    side.wait_stream(current)
    with torch.cuda.stream(side):
        torch.mul(x, 2, out=doubled)
    if not bug:
        current.wait_stream(side)
    y = doubled + 1
    side.wait_stream(current)
    current.wait_stream(side)
    return y


_side_streams: dict[torch.device, torch.cuda.Stream] = {}


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return _side_streams.setdefault(device, torch.cuda.Stream(device))


_Run = Callable[[Tensor, Tensor, Tensor, str], Tensor]


def _prepare(run: _Run, bug: str, device: torch.device, broken: bool) -> PreparedCall:
    shape = _PROGRAMS * _STEPS, _N
    x, other_x = whole_numbers(shape, device), whole_numbers(shape, device, seed=1)
    parts, words = torch.zeros(shape, device=device), torch.zeros(_PROGRAMS, dtype=torch.int32, device=device)

    def call(x: Tensor) -> Tensors:
        words.zero_()
        return {"y": run(x, parts, words, bug if broken else "")}

    return PreparedCall(partial(call, x), partial(call, other_x))


_KERNELS: tuple[tuple[str, _Run, tuple[str, ...]], ...] = (
    ("reversed_through_memory", _reversed, ("no-barrier-before-load", "no-barrier-before-next-store")),
    ("last_program", _last_program, ("no-barrier-before-count", "count-is-relaxed")),
    ("locked_sum", _locked_sum, ("unlocked-without-barrier",)),
    ("chained", _chained, ("flag-before-state", "no-barrier-before-flag")),
    ("split_sum", _split_sum, ("read-one-part-early",)),
    ("neighbour", _neighbour, ("halo-in-place",)),
    ("summed", _summed, ("zeroed-by-first-program", "addition-without-atomics")),
    ("two_streams", _two_streams, ("stream-not-awaited",)),
)
BUGS = tuple(
    Bug(bug, f"triton_kernels.py:{kernel}", partial(_prepare, run, bug))
    for kernel, run, bugs in _KERNELS
    for bug in bugs
)
