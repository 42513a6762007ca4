"""The compile tier: every variant of a kernel is compiled ahead of time for real targets, on a machine without a GPU.

`compile_listings` starts a process (`python -m packproof.harness.tiers.compile.variants module[:function]...`, one JSON
object per line), because a kernel defined under TRITON_INTERPRET=1 cannot be compiled. Results of earlier runs are
taken from the cache (`resources`). Each other form (a variant on one target) is compiled in a forked child, so that a
hang or a crash of the compiler does not affect the rest.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, TypedDict

from packproof.base.errors import PackproofError, UsageError
from packproof.harness.process.naming import Location
from packproof.harness.tiers.compile.record import cache_recorded_forms, describe_differences, read_record
from packproof.harness.tiers.compile.resources import (
    Resources,
    cache_key,
    cached_resources,
    compile_and_measure,
    digest_tools,
)
from packproof.kernels.variant import Variant

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
SHARED_LIMITS = {  # bytes that one program may use
    "sm_80": 166_912,
    "sm_86": 101_376,
    "sm_89": 101_376,
    "sm_90": 232_448,
    "sm_100": 232_448,
    "sm_120": 101_376,
    "gfx942": 65_536,
}


class CompileResult(TypedDict):
    """The result of one variant on one target. Counts are None where compilation did not get so far."""

    variant: str
    """Name of the variant."""
    target: str
    """One of `SHARED_LIMITS`, such as "sm_90"."""
    seconds: float
    """Time to compile; 0 for a cached form."""
    failure: str
    """Why the form cannot be used, in one line; "" if it can."""
    detail: str
    """The compiler's own messages, if any."""
    skipped: str
    """Why this installation of Triton cannot compile for the target at all; "" if it can."""
    slow: str
    """The spills, in one line, if they exceed the declared number; else "". They cost time but no accuracy."""
    registers: int | None
    """Registers per thread."""
    spills: int | None
    """Bytes stored and loaded by spills; on AMD, the number of spilled registers."""
    shared: int | None
    """Bytes of shared memory per program."""
    shared_limit: int
    """Bytes of shared memory that one program may use on the target."""
    dot: bool
    """Whether the kernel multiplies matrices (`tl.dot`)."""
    atomics: list[str]
    """The kinds of `tl.atomic_*` in the kernel."""
    refilled: int | None
    """The number of buffers refilled too early by a loop (`refills`)."""
    key: str
    """A digest of everything the result depends on (`resources.cache_key`)."""
    compiled: bool
    """Whether the form was compiled now, instead of taken from the cache."""


def compile_variants(
    variants: str, targets: Sequence[str] = TARGETS, limit_s: float = 60.0, jobs: int = 2, record: str | None = None
) -> Iterator[CompileResult]:
    """Compile the variants listed by a function for each target. Yields results as they come.

    variants: "package.module:function" or "path/file.py:function". The function takes no arguments and returns a list
        of Variant. Where only the module is named, the function is "variants".
    targets: names among `SHARED_LIMITS`.
    limit_s: seconds for one variant and target.
    jobs: compilations at the same time.
    record: a file of known forms, not compiled again (`record`).

    Raises UsageError if the variants cannot be listed.
    """
    with closing(compile_listings([variants], targets, limit_s, jobs, record)) as results:
        yield from next_listing_results(results)


def compile_listings(
    listings: Sequence[str],
    targets: Sequence[str] = TARGETS,
    limit_s: float = 60.0,
    jobs: int = 2,
    record: str | None = None,
) -> Generator[CompileResult | UsageError | None, None, None]:
    """`compile_variants` for several functions, one after another in one process: the compiler is imported once.

    None follows the results of each function, or a UsageError if its variants cannot be listed.
    """
    command = [sys.executable, "-m", "packproof.harness.tiers.compile.variants", *listings]
    command += ["--limit", str(limit_s), "--jobs", str(jobs), "--targets", *targets]
    command += ["--record", record] if record else []
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_DISABLE_LINE_INFO"] = "1"  # no one debugs these binaries; saves a sixth of the time
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True, start_new_session=True
        )
        try:
            assert process.stdout is not None
            for message in map(json.loads, process.stdout):
                yield UsageError(message) if isinstance(message, str) else message
            if process.wait() != 0:
                errors.seek(0)
                lines = errors.read().strip().splitlines() or [f"exit code {process.returncode}"]
                raise UsageError(f"{', '.join(listings)} cannot be compiled: {lines[-1]}")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the compilers too
            process.communicate()


def next_listing_results(results: Iterator[CompileResult | UsageError | None]) -> Iterator[CompileResult]:
    """The results of the next function of `compile_listings`. Raises UsageError if its variants cannot be listed."""
    for result in results:
        if result is None:
            return
        if isinstance(result, UsageError):
            raise result
        yield result
    raise PackproofError("the process that compiles ended before it had compiled all")


def _main() -> int:
    parser = argparse.ArgumentParser(description="Compile the variants of Triton kernels; one JSON object per line.")
    parser.add_argument("listings", nargs="+", help="module[:function]")
    parser.add_argument("--targets", nargs="+", default=TARGETS, choices=sorted(SHARED_LIMITS))
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one variant and target")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--record", help="a file of forms that need not be compiled again")
    arguments = parser.parse_args()
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers and kernels print must not mix with the results
    try:
        record = read_record(arguments.record) if arguments.record else {}
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    unsupported = _digest_targets(arguments.targets)
    for listing in arguments.listings:
        for result in _compile_listing(listing, unsupported, record, arguments):
            print(json.dumps(result), file=output, flush=True)
    return 0


def _compile_listing(
    listing: str, unsupported: Mapping[str, str], record: Mapping[str, Resources], arguments: argparse.Namespace
) -> Iterator[CompileResult | str | None]:
    """The results of one function; at the end None, or the reason why its variants cannot be listed."""
    try:
        variants = Location.parse(listing if ":" in listing else f"{listing}:variants").load()()
    except UsageError as error:
        yield f"{listing} cannot be compiled: {error}"
        return
    for variant, target in ((v, t) for v in variants for t in unsupported if _is_for_target(v, t)):
        yield _empty_result(variant, target) | {"skipped": unsupported[target]}
    work = [(v, t) for v in variants for t in arguments.targets if t not in unsupported and _is_for_target(v, t)]
    expected = cache_recorded_forms(record, work)
    for result in _compile_all(work, arguments.limit, arguments.jobs):
        if result["key"] in expected and not result["failure"]:
            result["failure"] = describe_differences(result, expected[result["key"]])
        yield result
    yield None


def _is_for_target(variant: Variant, target: str) -> bool:
    """Whether the wrapper would choose the variant on that target."""
    return not variant.targets or target in variant.targets


def _digest_targets(targets: Sequence[str]) -> dict[str, str]:
    """Compute the digests here once, for all forks. Returns the targets without tools in this Triton, with the
    reason."""
    unsupported = {}
    for target in targets:
        try:
            digest_tools(target)
        except Exception as error:  # Triton raises a bare Exception where a linker is missing
            unsupported[target] = str(error)
    return unsupported


def _compile_all(work: Sequence[tuple[Variant, str]], limit_s: float, jobs: int) -> Iterator[CompileResult]:
    """Yield cached results, then compile the other forms in at most `jobs` forks at a time, each with a deadline."""
    cached = [_is_cached(*form) for form in work]
    for form in (form for form, is_cached in zip(work, cached, strict=True) if is_cached):
        result = _empty_result(*form)
        result.update(_compile_outcome(*form))
        yield result
    pending = [form for form, is_cached in zip(reversed(work), reversed(cached), strict=True) if not is_cached]
    running: dict[Connection, _CompilerProcess] = {}
    while pending or running:
        while pending and len(running) < jobs:
            child = _CompilerProcess(*pending.pop(), limit_s)
            running[child.connection] = child
        next_deadline = min(child.deadline for child in running.values())
        ready = wait(list(running), timeout=max(0.0, next_deadline - time.monotonic()))
        for connection, child in list(running.items()):
            if connection in ready or time.monotonic() >= child.deadline:
                del running[connection]
                yield child.finish(connection in ready)


def _is_cached(variant: Variant, target: str) -> bool:
    try:
        return cached_resources(variant, target) is not None
    except Exception:  # its source has no digest: compiling it shows why
        return False


class _CompilerProcess:
    """One variant on one target, compiled in a fork of this process."""

    def __init__(self, variant: Variant, target: str, limit_s: float) -> None:
        self._variant, self._target, self._limit = variant, target, limit_s
        self._start_time = time.monotonic()
        self.deadline = self._start_time + limit_s
        context = get_context("fork")
        self.connection, sender = context.Pipe(duplex=False)
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  (closed in finish)
        self._process = context.Process(
            target=_compile_in_child, args=(variant, target, sender, self._log.fileno()), daemon=True
        )
        self._process.start()
        sender.close()

    def finish(self, responded: bool) -> CompileResult:
        result = _empty_result(self._variant, self._target)
        self._log.seek(0)
        log_text = self._log.read()
        if responded:
            try:
                result.update(json.loads(self.connection.recv_bytes()))
            except EOFError:
                self._process.join()
                result["failure"] = f"the compiler died with exit code {self._process.exitcode}"
        else:
            result["failure"] = f"not compiled within {self._limit:g} s"
        if result["failure"]:
            result["detail"] += log_text[-4000:]
            # MLIR and ptxas print the cause, or at least the pass; Python only reports that there was an error
            diagnoses = (r"\bPipeline failed while executing \[`(\w+)`", r"\berror: (.+)")
            diagnosis = next(filter(None, (re.search(pattern, log_text) for pattern in diagnoses)), None)
            result["failure"] += f": {diagnosis[1]}" if diagnosis else ""
        self._process.kill()
        self._process.join()
        self._log.close()
        self.connection.close()
        result["seconds"] = round(time.monotonic() - self._start_time, 3)
        return result


def _empty_result(variant: Variant, target: str) -> CompileResult:
    return CompileResult(
        variant=variant.name,
        target=target,
        seconds=0.0,
        failure="",
        detail="",
        skipped="",
        slow="",
        registers=None,
        spills=None,
        shared=None,
        shared_limit=SHARED_LIMITS[target],
        dot=False,
        atomics=[],
        refilled=None,
        key="",
        compiled=False,
    )


def _compile_in_child(variant: Variant, target: str, sender: Connection, log: int) -> None:
    os.dup2(log, 2)
    sender.send_bytes(json.dumps(_compile_outcome(variant, target)).encode())


def _compile_outcome(variant: Variant, target: str) -> Any:
    """The fields of `CompileResult` from `compile_variant`. If it raises an error: `failure` and `detail` alone."""
    try:
        return compile_variant(variant, target)
    except Exception as error:  # whatever the compiler raises is this variant's result
        return {"failure": _first_line(error), "detail": str(error)[-2000:]}


def _first_line(error: BaseException) -> str:
    """The type of an error and its last line: the compiler puts the reason below the quoted source, or in the cause."""
    lines = [line.strip() for line in str(error.__cause__ or error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


def compile_variant(variant: Variant, target: str) -> dict[str, Any]:
    """The resources of a form, cached or compiled in this process, and the limits that they exceed. Passes on the
    errors of the compiler."""
    cached = cached_resources(variant, target)
    resources = cached or compile_and_measure(variant, target)
    registers, spills, shared, limit = (
        resources["registers"],
        resources["spills"],
        resources["shared"],
        SHARED_LIMITS[target],
    )
    failures = {
        f"needs {shared} bytes of shared memory, {target} has {limit}: it would fail at launch": shared > limit,
        "Triton refills buffers of a loop before a branch or loop inside of it has read them, so that results are "
        "wrong: give that loop num_stages=1": resources["refilled"] > 0,
    }
    spill_text = f"spills {spills} {'registers' if target.startswith('gfx') else 'bytes'} at {registers} registers"
    return {
        **resources,
        "key": cache_key(variant, target),
        "compiled": cached is None,
        "failure": "; ".join(reason for reason, fails in failures.items() if fails),
        "slow": spill_text if spills > variant.spills else "",
    }


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # the reader has closed the pipe: it needs no more
        sys.exit(_main())
