"""Kernels with restrictions get verdicts that they have earned: what the domain allows is judged, what leaks is found.

All of restriction × op × way to refuse × declared or found × correct or leaking with PACKPROOF_ALL_RESTRICTIONS=1,
else a selection that has each restriction with each op, and each combination of the other three.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from tests.restrictions.kernels import KERNELS
from tests.restrictions.refusers import FAULTS, faulty, one_token_only, refuses_all

import packproof
from packproof.adapters import adapt
from packproof.harness import cli, judge
from packproof.harness.check import CheckRequest, run_check
from packproof.harness.events import Cell, CellFinished, RunFinished, Verdict
from packproof.harness.execute import InProcess
from packproof.harness.judge import Judge
from packproof.harness.shrink import Allowance
from packproof.properties.case import Case
from packproof.properties.cases import Space
from packproof.properties.ops import OPS
from packproof.properties.promises import Promises
from packproof.properties.subject import Subject
from packproof.properties.violation import Violation, comparisons
from tests.restrictions import domains
from tests.restrictions.restricted import SETS, WAYS, Kernel, domain_of, ops_of, restricted

LAWS = ("reference", "packing", "isolation")
INCONCLUSIVE = 4


@dataclass(frozen=True)
class Entry:
    """One kernel to be checked. declared: its domain is, else it has to be found from what the kernel refuses."""

    restriction: str
    op: str
    way: str
    declared: bool
    leaking: bool

    def __str__(self) -> str:
        words = [self.restriction, self.op, self.way]
        return "-".join([*words, "declared" if self.declared else "found", "leaking" if self.leaking else "correct"])

    @property
    def domain(self) -> tuple[str, ...]:
        return domain_of(self.op, self.restriction)


def _whole_matrix() -> Iterator[Entry]:
    for restriction in SETS:
        for op, way, declared, leaking in product(ops_of(restriction), WAYS, (True, False), (False, True)):
            yield Entry(restriction, op, way, declared, leaking)


def _selection() -> Iterator[Entry]:
    """Four kernels of each restriction, one of each kind; another restriction begins with another op and way."""
    kinds, ways = list(product((True, False), (False, True))), list(WAYS)
    for r, restriction in enumerate(SETS):
        ops = ops_of(restriction)
        for i, (declared, leaking) in enumerate(kinds):
            yield Entry(restriction, ops[(i + r) % len(ops)], ways[(i + r // 4) % len(ways)], declared, leaking)


WHOLE = os.environ.get("PACKPROOF_ALL_RESTRICTIONS") == "1"
MATRIX = list(_whole_matrix() if WHOLE else _selection())


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def finished(request: CheckRequest) -> RunFinished:
    *_, end = run_check(request)
    assert isinstance(end, RunFinished)
    assert not end.error
    return end


def request(entry: Entry) -> CheckRequest:
    names = SETS[entry.restriction]
    return CheckRequest(
        target=restricted(entry.op, entry.restriction, entry.way, leaking=entry.leaking),
        op=entry.op,
        domain=entry.domain if entry.declared else (),
        dtypes=("float32", "bfloat16") if "bf16" in names else ("float32",),
        properties=(*LAWS, "strides") if "contiguous" in names else LAWS,
        profile="quick",
    )


def in_domain(entry: Entry, verdicts: tuple[Verdict, ...]) -> list[Verdict]:
    """The verdicts that have something to judge; the others are held to claim nothing."""
    inside = []
    for verdict in verdicts:
        if verdict.cell.dtype == "float32" and "bf16" in SETS[entry.restriction]:
            assert verdict.status in ("skipped", "inconclusive")
            assert verdict.judged == 0
        elif verdict.cell.property == "strides":  # refused by its law already: a clear refusal is an answer
            assert verdict.status in ("passed", "skipped")
        else:
            inside.append(verdict)
    assert inside
    return inside


@cache
def classes_when_declared(op: str, restriction: str) -> Mapping[Cell, frozenset[str]]:
    entry = Entry(restriction, op, "ValueError", declared=True, leaking=False)
    return {law_and_dtype(v): v.classes for v in in_domain(entry, finished(request(entry)).verdicts)}


def law_and_dtype(verdict: Verdict) -> tuple[str, str]:
    return verdict.cell.property, verdict.cell.dtype


@pytest.mark.parametrize("entry", [e for e in MATRIX if e.declared and not e.leaking], ids=str)
def test_a_correct_kernel_with_a_declared_domain_passes(entry: Entry) -> None:
    for verdict in in_domain(entry, finished(request(entry)).verdicts):
        assert (verdict.status, verdict.failure) == ("passed", None)
        assert verdict.missing == frozenset()
        assert verdict.refused == 0
        assert verdict.judged > 0
        assert set(verdict.domain) == set(entry.domain)


@pytest.mark.parametrize("entry", [e for e in MATRIX if not e.declared and not e.leaking], ids=str)
def test_the_domain_of_a_correct_kernel_is_found_and_none_of_its_classes_is_lost(entry: Entry) -> None:
    for verdict in in_domain(entry, finished(request(entry)).verdicts):
        assert (verdict.status, verdict.failure) == ("passed", None)
        assert not verdict.missing
        assert verdict.judged > 0
        assert domains.within(verdict.domain, entry.domain, dtype=verdict.cell.dtype, contiguous=True)
        assert verdict.classes >= classes_when_declared(entry.op, entry.restriction)[law_and_dtype(verdict)]


@pytest.mark.parametrize("entry", [e for e in MATRIX if e.leaking], ids=str)
def test_a_leak_inside_the_domain_is_found(entry: Entry) -> None:
    broken = {}
    for verdict in finished(request(entry)).verdicts:
        if verdict.failure is not None:
            assert verdict.failure.tensor, verdict.failure.lines  # not for an exception of its own
            broken[law_and_dtype(verdict)] = verdict
    dtype = "bfloat16" if "bf16" in SETS[entry.restriction] else "float32"
    assert broken.keys() >= {("reference", dtype), ("packing", dtype)}
    assert {verdict.status for verdict in broken.values()} == {"failed"}


def test_the_selection_has_each_restriction_with_each_op_and_each_way_of_each_kind() -> None:
    chosen, every = list(_selection()), list(_whole_matrix())
    for part in (
        lambda e: (e.restriction, e.op),
        lambda e: (e.restriction, e.declared, e.leaking),
        lambda e: (e.way, e.declared, e.leaking),
        lambda e: (e.op, e.declared, e.leaking),
    ):
        assert set(map(part, chosen)) == set(map(part, every))


@pytest.mark.parametrize(("op", "way"), zip(KERNELS, WAYS, strict=True))
def test_a_kernel_that_refuses_everything_is_inconclusive(op: str, way: str) -> None:
    kernel = refuses_all(op, way)
    end = finished(CheckRequest(target=kernel, op=op, dtypes=("float32",), properties=LAWS, profile="quick"))
    for verdict in end.verdicts:
        assert (verdict.status, verdict.judged) == ("inconclusive", 0)
        assert verdict.refused > 0
    assert cli.exit_code(end) == INCONCLUSIVE


@pytest.mark.parametrize(("op", "way"), zip(KERNELS, WAYS, strict=True))
def test_a_kernel_that_takes_packs_of_one_row_only_does_not_pass_in_silence(op: str, way: str) -> None:
    kernel = one_token_only(op, way)
    end = finished(CheckRequest(target=kernel, op=op, dtypes=("float32",), properties=LAWS, profile="quick"))
    for verdict in end.verdicts:
        assert verdict.status in ("inconclusive", "passed")
        assert verdict.missing or domains.within(verdict.domain, ("tokens == 1",), contiguous=True)
        assert (verdict.status == "inconclusive") == bool(verdict.missing)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_no_refusal(fault: str) -> None:
    op = list(KERNELS)[FAULTS.index(fault) % len(KERNELS)]
    end = finished(CheckRequest(target=faulty(op, fault), op=op, dtypes=("float32",), properties=LAWS, profile="quick"))
    for verdict in end.verdicts:
        assert verdict.status == "failed"
        assert verdict.failure is not None
        assert verdict.failure.tensor == ""
    assert cli.exit_code(end) == cli.FAILED


@pytest.mark.parametrize("way", ["NotImplementedError", "ValueError"])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("op", "restriction"), [("rope", "widths"), ("attention", "no empty"), ("ssd", "option")])
def test_as_many_examples_count_as_judged_as_were_computed_and_compared(
    op: str, restriction: str, law: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed, cases_compared = 0, 0

    def counting(kernel: Kernel) -> Kernel:
        def function(**arguments: object) -> object:
            nonlocal computed
            outputs = kernel(**arguments)  # raises where it refuses
            computed += 1
            return outputs

        return function

    def counted(subject: Subject, name: str, case: Case) -> Violation | None:
        nonlocal cases_compared
        before = computed
        with comparisons() as made:
            found = judged_case(subject, name, case)
        cases_compared += computed > before and bool(made)
        return found

    judged_case = judge.broken
    monkeypatch.setattr(judge, "broken", counted)
    space = Space(OPS[op], "float32", Promises())
    subject = Subject(OPS[op], InProcess(counting(restricted(op, restriction, way))), Promises())
    verdict = verdict_of(subject, law, space)
    assert verdict.judged == cases_compared > 0
    assert verdict.refused > 0


def verdict_of(subject: Subject, law: str, space: Space) -> Verdict:
    """In this process, without a search for the domain: what is refused is counted."""
    one = Judge(subject, 0, Allowance(1, 1), 0, {}, ".packproof", "eager")
    *_, end = one.cell(Cell(space.op.name, "kernel", law, space.dtype, "cpu"), space)
    assert isinstance(end, CellFinished)
    return end.verdict


def test_a_domain_says_the_same_wherever_it_is_declared() -> None:
    entry = Entry("widths", "attention", "ValueError", declared=True, leaking=False)
    asked = request(entry)

    def closure() -> Kernel:
        return restricted(entry.op, entry.restriction, entry.way)

    marked = packproof.kernel(op=entry.op, domain=list(entry.domain))(closure())
    adapted = adapt(closure(), op=entry.op, domain=list(entry.domain))
    said = {"dtypes": asked.dtypes, "properties": asked.properties, "profile": "quick"}
    every = [
        finished(asked).verdicts,
        finished(CheckRequest(target=marked, **said)).verdicts,
        finished(CheckRequest(target=adapted, **said)).verdicts,
        packproof.check(closure(), op=entry.op, domain=list(entry.domain), **said),
    ]
    first, *others = [{law_and_dtype(v): (v.status, v.judged, v.domain, v.classes) for v in some} for some in every]
    assert others == [first] * len(others)


OWN_FILE = """
from packproof import refs

def rope(x, cos, sin, *, cu_seqlens, interleaved=False):
    if x.shape[-1] not in (64, 128):
        raise ValueError(f"head_dim must be one of (64, 128), got {x.shape[-1]}")
    return refs.rope(x, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved)

def none(x, cos, sin, *, cu_seqlens, interleaved=False):
    assert x.is_cuda
"""


@pytest.mark.parametrize(
    ("target", "domain", "code"),
    [
        ("own.py:rope", ["--domain", "k in (64, 128)"], 0),
        ("own.py:rope", [], 0),
        ("own.py:rope", ["--domain", "k in (8, 64, 128)"], INCONCLUSIVE),
        ("own.py:none", [], INCONCLUSIVE),
    ],
)
def test_the_command_line_says_so_in_its_exit_code(target: str, domain: list[str], code: int) -> None:
    Path("own.py").write_text(OWN_FILE)
    options = ["--op", "rope", "--dtype", "fp32", "--property", "packing", "--profile", "quick", "--device", "cpu"]
    assert cli.run(["check", target, *options, *domain]) == code
