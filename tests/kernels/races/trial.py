"""One seeded race on a GPU, in a process of its own: `python -m tests.kernels.races.trial NAME CALLS LOCK`.

Prints a line of JSON: how many of so many calls had other bits than the first one, in plain repetition, with other work
beside them, and with pauses in the kernel too; and, with pauses and work, for the kernel without the bug.
"""

import faulthandler
import fcntl
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from packproof.harness.process.execution.perturbation.compilers import pauses_compiled_in
from packproof.harness.process.execution.perturbation.repetition import distance, repeat_perturbed
from packproof.kernels import cuda
from tests.kernels.races import cuda_bugs, mutants, triton_bugs
from tests.kernels.races.bug import Bug, PreparedCall, Tensors

_SECONDS = 60  # of a trial's calls
SEEDED = {bug.name: bug for bug in (*cuda_bugs.BUGS, *triton_bugs.BUGS)}


@dataclass(frozen=True)
class Outcome:
    """How many of the calls of a trial differ from its first one."""

    name: str
    source: str
    calls: int
    plain: int
    with_load: int
    perturbed: int
    correct: int | None
    """Without the bug: any difference is a false alarm. None for a mutant: its op is checked as a whole."""


def find_bug(name: str) -> Bug:
    """A seeded bug, or the mutant of one of packproof's sources."""
    return SEEDED[name] if name in SEEDED else mutants.by_name(name)


def run_trial(bug: Bug, calls: int, device: torch.device) -> Outcome:
    """Make the calls in all four ways."""
    is_mutant = bug.name not in SEEDED
    correct = None if is_mutant else _perturbed(bug.prepare(device, False), calls, device, with_pauses=0.75)
    broken = bug.prepare(device, True)
    return Outcome(
        bug.name,
        bug.source,
        calls,
        plain=_plain(broken.call, calls, device),
        with_load=_perturbed(broken, calls, device, with_pauses=0.0),
        perturbed=_perturbed(broken, calls, device, with_pauses=0.75),
        correct=correct,
    )


def _plain(call: Callable[[], Tensors], calls: int, device: torch.device) -> int:
    """Plain repetition: the same call, one after another."""
    expected = {name: x.clone() for name, x in call().items()}
    distances: list[Tensor] = [distance(call(), expected, device) for _ in range(calls)]
    return int((torch.stack(distances) > 0).sum())


def _perturbed(prepared: PreparedCall, calls: int, device: torch.device, *, with_pauses: float) -> int:
    run = partial(repeat_perturbed, tensors_of=lambda tensors: tensors, calls=calls, device=device, seed=0)
    return run(prepared.call, prepared.other_call, with_pauses=with_pauses).different


def _compile(bug: Bug, device: torch.device) -> None:
    """Compile the kernels while another trial runs, and launch none of them."""
    run, compiled = JITFunction.run, cuda.Kernels._kernel

    def warm_up(function: Any, *arguments: Any, **options: Any) -> Any:
        return run(function, *arguments, **{**options, "warmup": True})

    def load(kernels: Any, kernel: str, programs: int, threads: int, shared: int, arguments: object) -> None:
        from cuda.core import Device  # noqa: PLC0415  (no CPU has it)

        Device(kernels._device.index).set_current()  # in a thread of autograd too
        compiled(kernels, kernel, shared)

    with patch.object(JITFunction, "run", warm_up), patch.object(cuda.Kernels, "launch", load):
        for call in [bug.prepare(device, broken).call for broken in _forms(bug)]:
            call()
            with pauses_compiled_in(0):
                call()
    torch.cuda.synchronize()


def _forms(bug: Bug) -> tuple[bool, ...]:
    """With the bug, and without it unless it is a mutant."""
    return (False, True) if bug.name in SEEDED else (True,)


def main(name: str, calls: str, lock: str) -> None:
    """Wait until no other trial runs, then make this one."""
    bug, device, start = find_bug(name), torch.device("cuda", torch.cuda.current_device()), time.monotonic()
    _compile(bug, device)
    compiled = time.monotonic()
    with Path(lock).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        faulthandler.dump_traceback_later(_SECONDS, exit=True)  # a bug may hang
        locked = time.monotonic()
        outcome = run_trial(bug, int(calls), device)
        torch.cuda.synchronize()
    times = f"compiled in {compiled - start:.1f} s, called in {time.monotonic() - locked:.1f} s"
    print(f"{name}: {times}", file=sys.stderr)
    print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
