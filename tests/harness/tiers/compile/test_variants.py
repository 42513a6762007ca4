"""The compile tier: variants compile for GPUs that are absent; those that a GPU could not run fail with a reason."""

import time
from contextlib import closing
from pathlib import Path

import pytest

from packproof.base.errors import PackproofError, UsageError
from packproof.harness.tiers.compile.variants import (
    TARGETS,
    CompileResult,
    compile_listings,
    compile_variants,
    next_listing_results,
)
from tests.in_process import environment

pytest.importorskip("triton")

SAMPLES = Path(__file__).parents[2] / "compile_samples.py"


def results(function: str, targets: tuple[str, ...], limit_s: float = 60.0) -> dict[tuple[str, str], CompileResult]:
    found = list(compile_variants(f"{SAMPLES}:{function}", targets, limit_s))
    return {(one["variant"], one["target"]): one for one in found}


def test_good_variants_compile_for_every_target() -> None:
    with environment(TRITON_INTERPRET="1"):  # the caller's kernels may be interpreted, these are compiled
        found = results("good", TARGETS)
    assert set(found) == {(variant, target) for variant in ("dot", "sum") for target in TARGETS}
    for variant, target in [key for key, one in found.items() if one["skipped"]]:  # triton 3.4 ships no ROCm linker
        assert target == "gfx942"
        assert "ROCm linker" in found.pop((variant, target))["skipped"]
    for (variant, target), one in found.items():
        assert one["failure"] == "", (variant, target)
        assert one["registers"] is not None
        assert 0 < one["registers"] <= 512
        assert one["spills"] == 0
        assert one["dot"] == (variant == "dot")
        assert one["atomics"] == (["fadd"] if variant == "sum" else [])
        assert (one["seconds"] > 0) == one["compiled"]
        if variant == "dot":
            assert one["shared"] is not None
            assert 8192 <= one["shared"] < one["shared_limit"] <= 232_448


def test_bad_variants_fail_with_the_reason() -> None:
    found = {variant: one for (variant, _), one in results("bad", ("sm_90",)).items()}
    assert found["oversized"]["failure"] == (
        "needs 262144 bytes of shared memory, sm_90 has 232448: it would fail at launch"
    )
    spills = found["spilling"]["spills"]
    assert spills is not None
    assert spills > 100
    assert found["spilling"]["slow"] == f"spills {spills} bytes at 255 registers"
    assert found["spilling"]["failure"] == found["oversized"]["slow"] == ""
    assert found["spilling as declared"]["spills"] == spills
    assert found["spilling as declared"]["slow"] == ""
    assert found["mistyped"]["failure"].startswith("CompilationError: ")
    assert "total has initial type int32 but is re-assigned to" in found["mistyped"]["failure"]
    assert "for i in range(4):" in found["mistyped"]["detail"]
    assert found["mistyped"]["registers"] is None
    assert found["tiny"]["failure"].startswith("CompilationError: Input shapes should have M >= ")


def test_a_loop_that_refills_what_a_branch_will_read_fails() -> None:
    found = results("pipelined", ("sm_80", "sm_90"))
    wrong = {("2 stages", "sm_90"), ("3 stages", "sm_90")}
    assert {key for key, one in found.items() if one["refilled"]} == wrong
    assert {key for key, one in found.items() if one["failure"]} == wrong
    assert found["2 stages", "sm_90"]["failure"] == (
        "Triton refills buffers of a loop before a branch or loop inside of it has read them, so that results are "
        "wrong: give that loop num_stages=1"
    )


@pytest.mark.proof
def test_a_compilation_that_does_not_end_is_ended() -> None:
    started = time.monotonic()
    found = results("endless", ("sm_80",), limit_s=2.0)
    assert found["endless", "sm_80"]["failure"] == "not compiled within 2 s"
    assert found["sum", "sm_80"]["failure"] == ""
    assert time.monotonic() - started < 40


def test_a_compiler_that_dies_does_not_affect_the_rest() -> None:
    found = results("fatal", ("sm_80",))
    assert found["fatal", "sm_80"]["failure"].startswith("the compiler died with exit code -6")
    assert found["sum", "sm_80"]["failure"] == ""


def test_closing_the_stream_ends_the_compilers() -> None:
    iterator = compile_variants(f"{SAMPLES}:endless", ("sm_80",))
    assert next(iterator)["variant"] == "sum"
    started = time.monotonic()
    iterator.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 5
    running = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    assert not any(f"{SAMPLES}:endless".encode() in arguments for arguments in running)


def test_variants_that_cannot_be_listed() -> None:
    with pytest.raises(UsageError, match=r"compile_samples.py:nothing cannot be compiled: .* has no nothing"):
        list(compile_variants(f"{SAMPLES}:nothing"))


def test_one_process_compiles_for_several_kernels() -> None:
    """The variants of one cannot be listed, which stops no other."""
    listings = [f"{SAMPLES}:good", f"{SAMPLES}:nothing", f"{SAMPLES}:good"]
    with closing(compile_listings(listings, ("sm_90",))) as results:
        first = [one["variant"] for one in next_listing_results(results)]
        with pytest.raises(UsageError, match=r"compile_samples.py:nothing cannot be compiled: .* has no nothing"):
            list(next_listing_results(results))
        assert [one["variant"] for one in next_listing_results(results)] == first != []
        with pytest.raises(PackproofError, match="ended before it had compiled all"):
            list(next_listing_results(results))


@pytest.mark.proof
def test_only_what_changed_is_compiled_again(tmp_path: Path) -> None:
    cache, samples = tmp_path / "cache", tmp_path / "samples.py"
    samples.write_text(SAMPLES.read_text())

    def compiled() -> tuple[dict[str, CompileResult], set[Path]]:
        before = set(cache.rglob("*.cubin"))
        with environment(TRITON_CACHE_DIR=str(cache)):
            found = {one["variant"]: one for one in compile_variants(f"{samples}:good", ("sm_90",))}
        return found, set(cache.rglob("*.cubin")) - before

    def took(one: CompileResult) -> dict[str, object]:
        return {name: value for name, value in one.items() if name not in ("seconds", "compiled")}

    first, made = compiled()
    assert len(made) == 2
    again, made = compiled()
    assert not made
    assert took(again["sum"]) == took(first["sum"])
    samples.write_text(SAMPLES.read_text().replace("tl.atomic_add(y,", "tl.atomic_max(y,"))
    changed, made = compiled()
    assert {path.stem for path in made} == {"_sum_kernel"}
    assert changed["sum"]["atomics"] != first["sum"]["atomics"]
    assert took(changed["dot"]) == took(first["dot"])
