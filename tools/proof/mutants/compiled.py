"""Compiled mutants: each is compiled in its own process and checked on a device as a kernel would be."""

import ast
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from packproof.base.errors import PackproofError
from packproof.harness.check.targets import BUILTIN_KERNELS, BuiltinKernel
from packproof.harness.process import Worker, run_on_every_core
from packproof.proof.mutants.mutant import KERNELS, Mutant, control_of
from packproof.proof.mutants.outcome import DECIDING, MutantOutcome, detected_by
from packproof.properties.cases import Case, Space, golden_cases
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.laws import Property
from packproof.properties.ops import OPS

_DTYPES = ("bfloat16", "float32", "float64")  # fp16 takes the same paths
_LIMIT = 60.0  # seconds of a call: some mutants never return
_FILE = '''"""A kernel of packproof, with one mutant in its place: check it like any file of kernels."""

from packproof.proof.mutants.mutant import install_permanently

install_permanently("{mutant}")

from {module} import {function}
'''


def run_compiled(mutants: Sequence[Mutant], ops: Sequence[str], device: str, jobs: int) -> Iterator[MutantOutcome]:
    """Compile each mutant and check it at the golden cases, by every property that decides mutants.

    Yields the outcomes as they come. First each function is replaced by itself: a control. Raises PackproofError for a
    failing control, as all its mutants would fail in the same way.
    """
    controls = {control.id: control for control in map(control_of, mutants)}
    with TemporaryDirectory() as folder:

        def evaluate_all(mutants: Iterable[Mutant], most_checks: int | None = None) -> Iterator[MutantOutcome]:
            units = [partial(_run_mutant, mutant, ops, device, Path(folder), most_checks) for mutant in mutants]
            return run_on_every_core(units, device, record_type=MutantOutcome, max_processes=jobs)

        for control in evaluate_all(controls.values(), most_checks=1):
            if control.killed_by:
                raise PackproofError(
                    f"{control.id} fails without a change: {control.killed_by} at {control.case}\n"
                    f"    None of its mutants can be checked. Try: packproof check --op {control.op} --device {device}"
                )
        yield from evaluate_all(mutants)


def _run_mutant(
    mutant: Mutant, ops: Sequence[str], device: str, folder: Path, most_checks: int | None = None
) -> Iterator[MutantOutcome]:
    """Check one mutant by the kernels of each op that execute it, until one check detects it.

    most_checks: the number of checks of each op, None for all.
    """
    start, outcome = time.monotonic(), MutantOutcome(mutant.id)
    for builtin in kernels_executing(mutant.module, device):
        if builtin.op in ops:
            outcome = _evaluate(mutant, builtin, islice(_checks(builtin, device), most_checks), device, folder)
        if outcome.killed_by:
            break
    yield replace(outcome, seconds=time.monotonic() - start)


def _evaluate(
    mutant: Mutant, builtin: BuiltinKernel, checks: Iterable[tuple[Property, Case]], device: str, folder: Path
) -> MutantOutcome:
    module, _, function = builtin.target.partition(":")
    file = folder / f"{mutant.id.replace(':', '_')}_{function}.py"
    file.write_text(_FILE.format(mutant=mutant.id, module=module, function=function), encoding="utf-8")
    declaration, outcome = builtin.declaration(device), MutantOutcome(mutant.id)
    with Worker(f"{file}:{function}", device, _LIMIT) as worker:
        subject = KernelUnderTest(OPS[builtin.op], worker, declaration.promises)
        for law, case in checks:
            outcome = MutantOutcome(mutant.id, detected_by(subject, law, case), builtin.op, law.name, str(case))
            if outcome.killed_by:
                break
    return outcome


def _checks(builtin: BuiltinKernel, device: str) -> Iterator[tuple[Property, Case]]:
    """The checks of a kernel by dtype, then by property, then by case."""
    promises = builtin.declaration(device).promises
    for dtype in (d for d in _DTYPES if d in builtin.dtypes):
        space = Space(OPS[builtin.op], dtype, promises, on_gpu=device == "cuda")
        golden = list(golden_cases(space))
        yield from ((law, case) for law in DECIDING for case in law.suited(space, golden))


def kernels_executing(module: str, device: str) -> list[BuiltinKernel]:
    """packproof's Triton kernels with code of a module, one for each op, cheapest first."""
    # where an op has two implementations, the later one is in Triton
    in_triton = {builtin.op: builtin for builtin in BUILTIN_KERNELS.values() if builtin.runs_on(device)}
    return [
        builtin
        for builtin in reversed(in_triton.values())
        if module in _imported_modules(builtin.module.rpartition(".")[2])
    ]


@cache
def _imported_modules(module: str) -> frozenset[str]:
    """The module and its imported kernel modules, direct and indirect."""
    tree = ast.parse((KERNELS / f"{module}.py").read_text(encoding="utf-8"))
    package = "packproof.kernels."
    names = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    direct = {name.removeprefix(package) for name in names if name.startswith(package)}
    return frozenset({module}.union(*(_imported_modules(name) for name in direct)))
