"""A run over mutants: the sample, the outcomes of an earlier run, and the evaluation of the rest."""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from packproof.base.errors import PackproofError
from packproof.base.records import RecordError, from_row, to_row
from packproof.harness.check.targets import BUILTIN_KERNELS
from packproof.harness.process import import_path
from packproof.proof.mutants.compiled import run_compiled
from packproof.proof.mutants.equivalents import find_explanations
from packproof.proof.mutants.mutant import KERNELS, Mutant
from packproof.proof.mutants.outcome import MutantOutcome

OPS = [name for name in reversed(list(BUILTIN_KERNELS)) if BUILTIN_KERNELS[name].runs_on("cpu")]  # cheapest first


def sample(mutants: Sequence[Mutant], size: int | None, seed: int) -> list[Mutant]:
    """Draw `size` mutants, in their order; all without a size."""
    if size is None or size >= len(mutants):
        return list(mutants)
    indices = set(random.Random(seed).sample(range(len(mutants)), size))
    return [m for k, m in enumerate(mutants) if k in indices]


def run(
    mutants: Sequence[Mutant],
    ops: Sequence[str],
    jobs: int,
    resume: Path | None = None,
    first_checks: Mapping[str, Sequence[str]] | None = None,
    device: str = "cpu",
) -> Iterator[MutantOutcome]:
    """Evaluate mutants; yield the outcomes as they come.

    resume: a file of outcomes. Those for the present sources are reused, and new ones are appended.
    first_checks: by id, the op, the property and the case of the first check of a mutant.
    device: "cpu" to interpret mutants in forks, "cuda" to compile each.
    """

    def evaluate(remaining: Sequence[Mutant]) -> Iterator[MutantOutcome]:
        if device == "cuda":
            return run_compiled(remaining, ops, device, jobs)
        return _run_interpreted(remaining, ops, jobs, first_checks or {})

    return resumed(mutants, evaluate, resume, _digest(device))


def resumed(
    mutants: Sequence[Mutant],
    evaluate: Callable[[Sequence[Mutant]], Iterator[MutantOutcome]],
    file: Path | None,
    digest: str,
) -> Iterator[MutantOutcome]:
    """The outcomes in a file, then those of the other mutants, which are appended to it.

    digest: of what outcomes depend on. The file's outcomes for another one are not taken.
    """
    known_outcomes = _read_outcomes(file, digest) if file else {}
    yield from (known_outcomes[m.id] for m in mutants if m.id in known_outcomes)
    for outcome in evaluate([m for m in mutants if m.id not in known_outcomes]):
        if file:
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"sources": digest, **to_row(outcome)}) + "\n")
        yield outcome


def _read_outcomes(file: Path, digest: str) -> dict[str, MutantOutcome]:
    outcomes = {}
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, RecordError):  # a truncated line
                row = json.loads(line)
                if row.pop("sources", "") == digest:
                    outcome = from_row(MutantOutcome, row)
                    outcomes[outcome.id] = outcome
    return outcomes


def _digest(device: str, kernels: Path = KERNELS) -> str:
    """A digest of the device and the sources of kernels, properties and references: outcomes depend on them.

    kernels: the folder of the kernels; the others lie beside it.
    """
    folders = (kernels, *map(kernels.with_name, ("base", "properties", "refs")))
    return digest_of(device, (file for folder in folders for file in sorted(folder.rglob("*.py"))))


def digest_of(label: str, files: Iterable[Path]) -> str:
    """A digest of a label and the contents of files, in their order."""
    h = hashlib.blake2b(label.encode(), digest_size=8)
    for file in files:
        h.update(file.read_bytes())
    return h.hexdigest()


def _run_interpreted(
    mutants: Sequence[Mutant], ops: Sequence[str], jobs: int, first_checks: Mapping[str, Sequence[str]]
) -> Iterator[MutantOutcome]:
    if not mutants:
        return
    ids = [m.id for m in mutants]
    order = {"ops": list(ops), "mutants": ids, "equivalents": list(find_explanations(mutants)), "jobs": jobs}
    order["first"] = {name: list(first_checks[name]) for name in ids if name in first_checks}
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = os.environ | one_thread | {"PYTHONPATH": os.pathsep.join(import_path()), "CUDA_VISIBLE_DEVICES": ""}
    environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-P", "-m", "packproof.proof.mutants.server"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with process.stdin as channel:
                channel.write(json.dumps(order) + "\n")
            for line in process.stdout:
                yield from_row(MutantOutcome, json.loads(line))
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise PackproofError("the process that evaluates mutants failed; it printed the reason")
