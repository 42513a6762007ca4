"""The evaluator on a few mutants of causal_conv1d.cu: what kills each, and that none leaves a trace."""

import shutil

import pytest

from packproof.kernels import cuda
from packproof.proof.mutants.fork_pool import run_forked
from packproof.proof.mutants.killers import Killer
from packproof.proof.mutants.mutant import KERNELS, Mutant
from packproof.proof.mutants.operators import Edit
from tests.kernels.emulator import compile as emulator
from tests.kernels.mutants import evaluator
from tests.kernels.mutants.checks import NOT_COMPILED, VALUES, VIOLATION, EmulatedCheck, all_checks, proven
from tests.kernels.mutants.evaluator import evaluate, in_order

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def mutant(was: str, now: str, file: str = "causal_conv1d.cu") -> Mutant:
    """A change of the first occurrence of a text."""
    text = (KERNELS / file).read_text()
    start = text.index(was)
    return Mutant(f"{file}:{now}", file, "", "", text, Edit(start, start + len(was), now), range(0))


@pytest.fixture(scope="module")
def checks() -> list[EmulatedCheck]:
    name = "causal_conv1d_cuda.test_short_sequences_match_the_reference"
    return [proven(next(check for check in all_checks() if check.name == name))]


@pytest.mark.parametrize(
    ("changed", "killer"),
    [
        (mutant("sum[i] *= sigmoid(sum[i])", "sum[i] *= sigmoid(-sum[i])"), VALUES),
        (mutant("sum[i] *= sigmoid(sum[i])", "sum[i] = sigmoid(sum[i]) * sum[i]"), ""),
        (mutant("sum[i] *= sigmoid(sum[i])", "sum[i] *= sigmoid(sum)"), NOT_COMPILED),
        (mutant("wait_for_copies<ROWS - 2>", "wait_for_copies<ROWS - 1>", "causal_conv1d_common.cuh"), VIOLATION),
    ],
    ids=lambda value: value.id if isinstance(value, Mutant) else value,
)
def test_what_kills_a_mutant(changed: Mutant, killer: str, checks: list[EmulatedCheck]) -> None:
    builds = set(emulator._BUILD.iterdir())
    *_, outcome = evaluate(checks, {}, changed)
    assert outcome["by"] == killer
    assert set(emulator._BUILD.iterdir()) == builds
    assert checks[0].run() == ""
    assert cuda.source(changed.file) == cuda.source.__wrapped__(changed.file)


def test_a_mutant_that_does_not_end_is_killed(checks: list[EmulatedCheck], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "_LIMIT", (2.0, 0.0))
    endless = mutant("        t++;", "        for (;;) t ^= 1;")
    [(changed, report)] = run_forked([endless], lambda one: evaluate(checks, {}, one), jobs=1)
    assert changed is endless
    assert report["by"] == "hung"


def test_the_check_that_killed_a_mutant_is_first_and_then_those_that_need_no_compiler() -> None:
    def check(name: str, seconds: float, form: str) -> EmulatedCheck:
        forms = frozenset({("ssd.cu", (("SOFTPLUS", form),))})
        return EmulatedCheck("ssd", name, "", frozenset({"ssd.cu"}), str, forms=forms, seconds=seconds)

    one, other, cheap, last = (
        check("one", 2, "0"),
        check("other", 1, "0"),
        check("cheap", 0.5, "1"),
        check("last", 9, "1"),
    )
    every = [one, other, cheap, last]
    assert list(in_order(every, ["ssd.cu"], None)) == [cheap, other, one, last]
    assert list(in_order(every, ["ssd.cu"], Killer("ssd", "one", ""))) == [one, other, cheap, last]
    assert list(in_order(every, ["ssd_bwd.cu"], None)) == []
