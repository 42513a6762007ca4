"""Check the museum's kernels, each by the properties of its entry, until one fails."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from packproof.harness.check import PROFILES, TIME_LIMITS, rounds
from packproof.harness.process import Worker, run_on_every_core
from packproof.harness.report import Tier
from packproof.museum import Entry
from packproof.properties.calling import Refusal, Runner
from packproof.properties.cases import Case, Lengths, Space, golden_cases, random_cases
from packproof.properties.declarations import Promises, parse_declaration
from packproof.properties.judgement import KernelUnderTest, first_violation
from packproof.properties.laws import PROPERTIES, Property
from packproof.properties.ops import OPS

T = TypeVar("T")
CaseSource = Callable[[Entry, KernelUnderTest, Space, str, int], Iterator[Case]]
SHORT_LIMITS = {**TIME_LIMITS, "cpu": 6.0}  # one kernel of the museum never returns


@dataclass(frozen=True)
class Detection:
    """The result of one entry."""

    entry: Entry
    detected_by: str = ""
    """The first failing property, "" if none failed."""
    lengths: tuple[int, ...] = ()
    """The lengths of the failing case."""
    examples: int = 0
    """Cases drawn."""
    seconds: float = 0.0
    """Seconds since the process of the kernel was ready."""
    lines: tuple[str, ...] = ()
    """The violation, as text."""
    tier: Tier = "eager"
    """How the kernel ran."""
    skipped: str = ""
    """Why it was not run, "" if it was."""

    @property
    def missed(self) -> bool:
        return not self.detected_by and not self.skipped


def run_entries(entries: Sequence[Entry], *, profile: str, device: str, seed: int = 0) -> Iterator[Detection]:
    """Check the entries side by side, one on each core; yields each result as it is done."""
    yield from run_on_every_core(
        [partial(_unit, entry, profile, device, seed) for entry in entries], device, record_type=Detection
    )


def _unit(entry: Entry, profile: str, device: str, seed: int) -> Iterator[Detection]:
    yield detect(entry, profile=profile, device=device, seed=seed)


def detect(entry: Entry, *, profile: str, device: str, seed: int = 0) -> Detection:
    """Draw cases as a check does, and judge each by every property of the entry, until one fails."""
    if entry.needs_gpu and device == "cpu":
        return Detection(entry, skipped="needs a GPU")
    with Worker(entry.kernel, device, SHORT_LIMITS[device]) as worker:
        return detect_with(worker, entry, worker.describe(), profile=profile, seed=seed)


def detect_with(
    runner: Runner,
    entry: Entry,
    description: dict[str, Any],
    *,
    profile: str,
    seed: int = 0,
    draw_cases: CaseSource | None = None,
) -> Detection:
    """The same on a runner of the entry's kernel.

    description: of the kernel, by `describe_kernel`.
    draw_cases: in place of the cases of a check.
    """
    declared = parse_declaration(description, entry.kernel)
    start, examples = time.monotonic(), 0
    promises = Promises(**entry.promises)
    subject = KernelUnderTest(OPS[entry.op], runner, promises, gradients=entry.gradients)
    space = Space(
        OPS[entry.op],
        entry.dtype,
        promises,
        declared.parameters,
        on_gpu=runner.device == "cuda",
        required=declared.required,
    )
    for examples, case in enumerate((draw_cases or _cases)(entry, subject, space, profile, seed), start=1):
        for name in entry.properties:
            if violation := _find_violation(subject, space, PROPERTIES[name], case):
                (lengths, lines), seconds = violation, time.monotonic() - start
                return Detection(entry, name, lengths, examples, seconds, lines, _tier(subject, space))
    return Detection(entry, examples=examples, seconds=time.monotonic() - start, tier=_tier(subject, space))


def _cases(entry: Entry, subject: KernelUnderTest, space: Space, profile: str, seed: int) -> Iterator[Case]:
    """The cases of a check, in its order. For a bug of GPUs only, one at the entry's lengths comes first."""
    golden = list(golden_cases(space, seed))
    if entry.needs_gpu:
        yield golden[0].replace(lengths=entry.lengths, sizes=tuple(OPS[entry.op].sizes[0].items()))
    yield from chain.from_iterable(rounds(golden, frozenset(golden), space))
    yield from random_cases(space, PROFILES[profile].examples[_tier(subject, space)], seed)


def _tier(subject: KernelUnderTest, space: Space) -> Tier:
    """How the kernel runs: known after its first run."""
    return "gpu" if space.on_gpu else "interpret" if subject.interpreted else "eager"


def _find_violation(
    subject: KernelUnderTest, space: Space, law: Property, case: Case
) -> tuple[Lengths, tuple[str, ...]] | None:
    """The violation of a property at a case, or at the case adapted to the property: its lengths and its lines."""
    for suited_case in law.suited(space, [case]):
        try:
            violation = first_violation(subject, law, suited_case)
        except Refusal:
            continue
        if violation is not None:
            tensor = f"{violation.tensor}: " if violation.tensor else ""
            head, *details = violation.lines()
            return suited_case.lengths, (f"{suited_case}", f"{tensor}{head}", *details)
    return None
