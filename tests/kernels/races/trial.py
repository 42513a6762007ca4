"""One seeded race on a GPU, in a process of its own: `python -m tests.kernels.races.trial NAME CALLS LOCK`.

Prints a line of JSON: how many of so many calls had other bits than the first one, in plain repetition, with other work
beside them, and with pauses in the kernel too; and, with pauses and work, for the kernel without the bug.
"""

import faulthandler
import fcntl
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from packproof.harness.process.execution.perturbation.compilers import pauses_compiled_in
from packproof.harness.process.execution.perturbation.repetition import distance, repeat_perturbed
from tests.kernels.races import cuda_bugs, mutants, triton_bugs
from tests.kernels.races.bug import Bug, PreparedCall, Tensors

_SECONDS = 60  # of a trial, compilation included
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
    """Compile what takes long while other trials run."""
    faulthandler.dump_traceback_later(2 * _SECONDS, exit=True)
    call = bug.prepare(device, True).call
    for pauses in (nullcontext(), pauses_compiled_in(0)):
        with pauses:
            call()
    torch.cuda.synchronize()
    faulthandler.cancel_dump_traceback_later()


def main(name: str, calls: str, lock: str) -> None:
    """Wait until no other trial runs, then make this one."""
    bug, device = find_bug(name), torch.device("cuda", torch.cuda.current_device())
    if name not in SEEDED:
        _compile(bug, device)
    with Path(lock).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        faulthandler.dump_traceback_later(_SECONDS, exit=True)  # a bug may hang
        outcome = run_trial(bug, int(calls), device)
        torch.cuda.synchronize()
    print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
