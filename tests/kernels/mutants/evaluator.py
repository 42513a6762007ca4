"""Evaluates mutants of the kernels in CUDA C++: each in a fork, by checks that the unchanged kernels pass.

References are computed in the parent, once. A fork compiles the changed sources and runs check after check, until one
kills the mutant; what it compiled goes with it.
"""

import gc
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from packproof.base.records import from_row
from packproof.base.wording import plural
from packproof.kernels import cuda
from packproof.proof.mutants.fork_pool import run_forked
from packproof.proof.mutants.killers import Killer
from packproof.proof.mutants.mutant import KERNELS, Mutant
from packproof.proof.mutants.outcome import MutantOutcome
from tests.kernels.emulator import compile as emulator
from tests.kernels.mutants.checks import ROUNDS, EmulatedCheck, all_checks, cpu_seconds, proven, remember_references
from tests.kernels.mutants.mutant import SOURCES, files_of

_SECONDS_OF_A_FORM = 3.0  # that g++ takes
_LIMIT = 20.0, 10.0  # seconds of a check, plus a multiple of the time with the unchanged kernels


def outcomes(
    mutants: Sequence[Mutant], equivalents: Mapping[str, Any], first_checks: Mapping[str, Killer], jobs: int
) -> Iterator[MutantOutcome]:
    """Evaluate the mutants, round by round: each takes the survivors of the one before. Yields outcomes as they come.

    equivalents: by id, expected survivors: the last round does not run on them.
    first_checks: by id, the check that killed a mutant in an earlier run: it runs first.
    """
    torch.set_num_threads(1)
    remember_references()
    survivors = {m.id: MutantOutcome(m.id) for m in mutants}
    for round_number in ROUNDS:
        remaining = [m for m in mutants if m.id in survivors]
        if round_number == ROUNDS[-1]:
            remaining = [m for m in remaining if m.id not in equivalents]
        sources = {source for m in remaining for source in sources_with(m.file)}
        checks = _proven_checks(sources, round_number) if remaining else []
        gc.freeze()  # a collection in a fork would write to the pages shared with this process, and so copy them
        work = partial(evaluate, checks, first_checks)
        for mutant, report in run_forked(remaining, work, jobs):
            seconds = survivors[mutant.id].seconds + report.get("seconds", 0.0)
            outcome = from_row(MutantOutcome, {"id": mutant.id, **report, "seconds": seconds})
            survivors[mutant.id] = outcome
            if outcome.killed_by:
                yield survivors.pop(mutant.id)
    yield from survivors.values()


def sources_with(file: str) -> list[str]:
    """The sources that include a file."""
    return [source for source in SOURCES if file in files_of(source)]


def _proven_checks(sources: set[str], round_number: int) -> list[EmulatedCheck]:
    """The checks of a round that run these sources."""
    start = time.monotonic()
    checks = [proven(c) for c in all_checks() if c.round_number == round_number and c.sources & sources]
    seconds = time.monotonic() - start
    print(f"the unchanged kernels pass {plural(len(checks), 'check')}, {seconds:.0f} s", file=sys.stderr, flush=True)
    return checks


def in_order(checks: Sequence[EmulatedCheck], sources: Sequence[str], first: Killer | None) -> Iterator[EmulatedCheck]:
    """Checks that compile one of these sources, cheapest first: the time of g++ counts, once for each form."""
    remaining = [c for c in checks if any(source in sources for source, _ in c.forms)]
    compiled: set[Any] = set()

    def cost(check: EmulatedCheck) -> float:
        new_forms = sum(form not in compiled and form[0] in sources for form in check.forms)
        is_first = Killer(check.op, check.name, check.case) == first
        return 0 if is_first else check.seconds + _SECONDS_OF_A_FORM * new_forms

    while remaining:
        check = min(remaining, key=cost)
        remaining.remove(check)
        compiled |= check.forms
        yield check


def evaluate(
    checks: Sequence[EmulatedCheck], first_checks: Mapping[str, Killer], mutant: Mutant
) -> Iterator[dict[str, Any]]:
    """Run checks until one kills the mutant. Reports each check before it runs, and at the end the killer."""
    start, killer = cpu_seconds(), ""
    with installed(mutant):
        for check in in_order(checks, sources_with(mutant.file), first_checks.get(mutant.id)):
            yield {"op": check.op, "property": check.name, "case": check.case, "seconds": cpu_seconds() - start}
            # the signal of CPU time, without that of g++, ends the process
            signal.setitimer(signal.ITIMER_PROF, _LIMIT[0] + _LIMIT[1] * check.seconds)
            killer = check.run()
            signal.setitimer(signal.ITIMER_PROF, 0)
            if killer:
                break
    yield {"by": killer, "seconds": cpu_seconds() - start}


@contextmanager
def installed(mutant: Mutant) -> Iterator[None]:
    """The mutant in place of its file, inside the block. What is compiled there is deleted after it."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        kernels, builds = Path(folder, "kernels"), Path(folder, "builds")
        kernels.mkdir()
        builds.mkdir()
        for file in KERNELS.glob("*.cu*"):
            (kernels / file.name).symlink_to(file)
        (kernels / mutant.file).unlink()
        (kernels / mutant.file).write_text(mutant.source, encoding="utf-8")
        for file in emulator._BUILD.glob("*.*o"):  # other sources stay as they are
            (builds / file.name).symlink_to(file)
        patch.setattr(cuda, "_FOLDER", kernels)
        patch.setattr(emulator, "_BUILD", builds)
        _forget_sources()
        yield
    _forget_sources()


def _forget_sources() -> None:
    for cached in (cuda.source, cuda.signatures, emulator._library):
        cached.cache_clear()
