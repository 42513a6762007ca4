"""The checks of the kernels in CUDA C++: the tests of interpreted_*_cuda.py, and a user's check in the sizes they take.

Import this module in a process with TRITON_INTERPRET=1.
"""

import hashlib
import itertools
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.harness.check.targets import BUILTIN_KERNELS
from packproof.harness.process.execution import InProcess
from packproof.harness.process.naming import Location
from packproof.kernels import cuda
from packproof.proof.mutants.outcome import detected_by
from packproof.properties.cases import Case, Space, golden_cases
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.laws import PROPERTIES
from packproof.properties.ops import OPS
from tests.kernels import (
    interpreted_causal_conv1d,
    interpreted_causal_conv1d_cuda,
    interpreted_selective_scan,
    interpreted_selective_scan_cuda,
    interpreted_ssd_cuda,
    interpreted_ssd_cuda_bwd,
)
from tests.kernels.emulator import compile as emulator

Form = tuple[str, cuda.Macros]
VALUES, VIOLATION, RAISED, NOT_COMPILED = "wrong values", "violation", "raised", "not compiled"
_SOURCES = {"ssd": frozenset({"ssd.cu", "ssd_bwd.cu"})} | {
    op: frozenset({f"{op}.cu"}) for op in ("causal_conv1d", "selective_scan")
}
_TESTS = {
    interpreted_ssd_cuda: "ssd",
    interpreted_ssd_cuda_bwd: "ssd",
    interpreted_causal_conv1d_cuda: "causal_conv1d",
    interpreted_selective_scan_cuda: "selective_scan",
}
_HELPERS = (interpreted_causal_conv1d, interpreted_selective_scan)
_FIRST_TESTS = {
    "test_matches_the_reference_on_layouts",  # of both passes of ssd
    "test_matches_the_reference_on_short_sequences",
    "test_matches_the_reference_in_heads_states_and_groups",
    "test_matches_the_reference_on_every_layout",
    "test_matches_the_reference_around_its_batches",
}
ROUNDS = range(3)
_LAWS = ("reference", "packing", "memory")
_MOST_TOKENS = 400  # of a user's case: the emulator takes a second for some 100


@dataclass(frozen=True)
class EmulatedCheck:
    """A test with its parameters, or a property at a case."""

    op: str
    name: str
    case: str
    sources: frozenset[str]
    """Sources of CUDA C++ that it may run."""
    run: Callable[[], str]
    """Returns the killer, "" for none."""
    round_number: int = 1
    """Each round is for survivors of the one before. 0 has a few layouts, 2 what only `make proof` runs."""
    forms: frozenset[Form] = frozenset()
    """Sources with the macros that it compiles them for."""
    seconds: float = 0.0
    """CPU time with the unchanged kernels."""


def all_checks() -> Iterator[EmulatedCheck]:
    for module, op in _TESTS.items():
        for name, test in vars(module).items():
            if name.startswith("test_"):
                yield from _checks_of(op, module.__name__.rpartition("interpreted_")[2], test)
    for op in _SOURCES:
        yield from _checks_of_user(op)


def _checks_of(op: str, file: str, test: Any) -> Iterator[EmulatedCheck]:
    """A test with each of its parameters."""
    marks = getattr(test, "pytestmark", [])
    is_proof = any(mark.name == "proof" for mark in marks)
    tables = [list(_rows(*mark.args)) for mark in marks if mark.name == "parametrize"]
    for rows in itertools.product(*tables):
        arguments = {name: value for row, _ in rows for name, value in row.items()}
        case = " ".join(f"{name}={value}" for name, value in arguments.items())
        in_proof = is_proof or any(is_rest for _, is_rest in rows)
        round_number = 2 if in_proof else int(test.__name__ not in _FIRST_TESTS)
        name = f"{file}.{test.__name__}"
        yield EmulatedCheck(op, name, case, _SOURCES[op], _killer_of(test, arguments), round_number)


def _rows(names: str | Sequence[str], table: Sequence[Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Arguments by name of each row of a parametrized test, and whether only `make proof` runs it."""
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    for row in table:
        marked = hasattr(row, "marks")
        values = row.values if marked else row if len(columns) > 1 else [row]
        yield dict(zip(columns, values, strict=True)), marked and any(mark.name == "proof" for mark in row.marks)


def _killer_of(test: Callable[..., None], arguments: dict[str, Any]) -> Callable[[], str]:
    def run() -> str:
        torch.manual_seed(0)
        try:
            test(**arguments)
        except emulator.Violation:
            return VIOLATION
        except (AssertionError, pytest.fail.Exception):
            return VALUES
        except emulator.CompilationError:
            return NOT_COMPILED
        except Exception:  # whatever an incorrect kernel leads to
            return RAISED
        return ""

    return run


def _checks_of_user(op: str) -> Iterator[EmulatedCheck]:
    """What `packproof check` does on a Hopper GPU, at short golden cases in sizes for which the op takes CUDA C++.

    Of ssd without a gate too, since with one the backward pass is in Triton.
    """
    builtin = BUILTIN_KERNELS[op]
    promises = builtin.declaration("cpu").promises
    subject = KernelUnderTest(OPS[op], InProcess(Location.parse(builtin.target).load()), promises)
    space = Space(OPS[op], "bfloat16", promises, on_gpu=True)
    sizes = space.model_sizes[0] if op == "ssd" else space.plain_sizes[0]
    golden = [c for c in golden_cases(space) if dict(c.sizes) == dict(sizes) and 0 < c.n_tokens <= _MOST_TOKENS]
    cases = golden if op != "ssd" else [variant for c in golden for variant in (c, c.without("z"))]
    for k, case in enumerate(cases):
        for law in _LAWS if k < 4 else _LAWS[:1]:
            killer = _killer_of_user(subject, law, case)
            yield EmulatedCheck(op, law, str(case), _SOURCES[op], killer, 1 if k < 8 else 2)


def _killer_of_user(subject: KernelUnderTest, law: str, case: Case) -> Callable[[], str]:
    def run() -> str:
        try:
            return detected_by(subject, PROPERTIES[law], case)
        finally:
            subject.cache.discard_results()

    return run


def proven(check: EmulatedCheck) -> EmulatedCheck:
    """The check with its time and forms, from a run with the unchanged kernels. Raises AssertionError if they fail."""
    forms: set[Form] = set()
    emulated = cuda.kernels

    def record(name: str, device: torch.device, macros: cuda.Macros) -> Any:
        forms.add((name, macros))
        return emulated(name, device, macros)

    check.run()  # compiles, and computes what references give
    start = cpu_seconds()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "kernels", record)
        killer = check.run()
    assert not killer, f"{check.name} {check.case}: {killer} without a change"
    return replace(check, forms=frozenset(forms), seconds=cpu_seconds() - start)


def cpu_seconds() -> float:
    """CPU time of this process and of the compilers that it waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def remember_references() -> None:
    """From now on each reference is computed once for the same arguments, and so are results of kernels in Triton."""
    for module in (*_TESTS, *_HELPERS):
        if hasattr(module, "vjp"):
            module.vjp = _remembered(module.vjp, _is_reference)
    refs.ssd = _remembered(refs.ssd, lambda *_, **__: True)


def _is_reference(function: Callable[..., Any], *_arguments: Any, impl: str = "", **_options: Any) -> bool:
    return impl == "triton" or function.__module__.startswith("packproof.refs")


def _remembered(function: Callable[..., Any], condition: Callable[..., bool]) -> Callable[..., Any]:
    results: dict[str, Any] = {}

    def call(*arguments: Any, **options: Any) -> Any:
        values = [*arguments, *itertools.chain(*sorted(options.items()))]
        if not condition(*arguments, **options) or any(isinstance(x, Tensor) and x.requires_grad for x in values):
            return function(*arguments, **options)
        key = _digest(values)
        if key not in results:
            results[key] = function(*arguments, **options)
        return results[key]

    call.__module__ = function.__module__
    call.__name__ = call.__qualname__ = function.__name__
    return call


def _digest(value: Any) -> str:
    """A digest of tensors, in lists and mappings too, and of other arguments by their text."""
    if isinstance(value, Tensor):
        content = value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return f"{value.dtype} {list(value.shape)} {value.stride()} {hashlib.blake2b(content).hexdigest()}"
    if isinstance(value, dict):
        return _digest([*itertools.chain(*sorted(value.items()))])
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_digest, value))}]"
    return f"{value.__module__}.{value.__qualname__}" if callable(value) else repr(value)
