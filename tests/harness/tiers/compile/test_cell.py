"""The compile cell of a kernel: what fails it, and what is only reported."""

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from packproof.harness.report.events import Cell, CellFinished, Verdict
from packproof.harness.tiers.compile import cell as module
from packproof.harness.tiers.compile.variants import CompileResult

VerdictOf = Callable[..., Verdict]


def form(name: str, failure: str = "", slow: str = "", skipped: str = "", compiled: bool = True) -> CompileResult:
    return CompileResult(
        variant=name,
        target="sm_90",
        seconds=1.0,
        failure=failure,
        detail="",
        skipped=skipped,
        slow=slow,
        registers=255,
        spills=8 if slow else 0,
        shared=0,
        shared_limit=1,
        dot=False,
        atomics=[],
        refilled=None,
        key="",
        compiled=compiled,
    )


@pytest.fixture
def verdict_of(monkeypatch: pytest.MonkeyPatch) -> VerdictOf:
    def found(triton: str, *forms: CompileResult) -> Verdict:
        def compiled(modules: list[str], jobs: int, record: str | None) -> Generator[CompileResult | None, None, None]:
            assert jobs >= 2
            assert modules == ["rope.py"]
            yield from (*forms, None)

        monkeypatch.setattr(module, "compile_listings", compiled)
        monkeypatch.setattr(module, "version", lambda name: triton)
        cell = Cell("rope", "packproof.kernels.rope:rope", "cpu", "compile", "")
        ((_, events),) = ((of, list(events)) for of, events in module.compile_cells({cell: "rope.py"}))
        *_, last = events
        assert isinstance(last, CellFinished)
        return last.verdict

    return found


def test_forms_were_tuned_with_the_triton_of_the_constraints() -> None:
    pinned = Path(__file__).parents[4].joinpath("constraints.txt").read_text(encoding="utf-8")
    assert f"\ntriton=={module._TUNED_TRITON}" in pinned


SLOW = form("rope-bf16", slow="spills 8 bytes at 255 registers")


def test_a_spill_fails_with_the_triton_that_forms_were_tuned_with(verdict_of: VerdictOf) -> None:
    verdict = verdict_of("3.7.1", form("fine"), SLOW)
    assert verdict.status == "failed"
    assert verdict.failure is not None
    assert verdict.failure.lines == ("rope-bf16 on sm_90 spills 8 bytes at 255 registers",)


def test_with_another_triton_it_is_reported(verdict_of: VerdictOf) -> None:
    verdict = verdict_of("3.6.0", form("fine"), SLOW)
    assert (verdict.status, verdict.failure, verdict.examples) == ("passed", None, 2)
    assert verdict.reason == (
        "with triton 3.6.0 some forms are slower: rope-bf16 on sm_90 spills 8 bytes at 255 registers"
    )


def test_what_cannot_be_launched_fails_with_any(verdict_of: VerdictOf) -> None:
    verdict = verdict_of("3.6.0", form("large", failure="needs 2 bytes of shared memory"), SLOW)
    assert verdict.failure is not None
    assert verdict.failure.lines == ("large on sm_90: needs 2 bytes of shared memory",)


def test_a_target_that_triton_has_no_tools_for_is_reported(verdict_of: VerdictOf) -> None:
    verdict = verdict_of("3.7.1", form("fine", skipped="no ROCm linker"))
    assert (verdict.status, verdict.reason) == ("skipped", "sm_90: no ROCm linker")


def test_forms_that_were_known_are_counted(verdict_of: VerdictOf) -> None:
    verdict = verdict_of("3.7.1", form("fine"), form("known", compiled=False))
    assert verdict.reason == "1 of 2 forms were known, of the same source and compiler"
