"""The proof before the timing: an incorrect implementation gets a verdict and no time."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from packproof.harness.bench.implementations import Implementation
from packproof.harness.bench.results import SizeProof
from packproof.harness.bench.settings import Setting
from packproof.harness.engine.violations import broken
from packproof.harness.execution.execute import InProcess
from packproof.harness.results.events import Tier
from packproof.properties.bounds.oracle import expected
from packproof.properties.call import KernelFault, Refused
from packproof.properties.cases.case import Case
from packproof.properties.cases.sample import Sample
from packproof.properties.comparison import Comparison
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.laws.invariance import PACKING, REFERENCE
from packproof.properties.violation import Violation
from packproof.refs.axes import role

# short sequences and one that crosses chunks of 64 and 128; an empty one only if one is timed
LENGTHS = {"filled": (2, 130, 1), "with an empty one": (2, 0, 130, 1)}
PROPERTIES = (REFERENCE, PACKING)
_SPOT_TOKENS = 70  # past a chunk of 64; with more the float64 reference would take minutes


def prove(
    implementation: Implementation, chosen: Setting, dtype: str, device: str, seed: int, *, empty: bool = False
) -> SizeProof:
    """The small proof: the timed sizes on a few short sequences, in a separate process.

    empty: a timed layout has an empty sequence, so the proof needs one too.
    """
    job = implementation.job
    found = SizeProof(
        job.op.name, implementation.name, str(chosen), dtype, "passed", tier="gpu" if device == "cuda" else "eager"
    )
    if implementation.absent:
        return replace(found, status="not installed", text="not installed")
    if unfit := implementation.unfit(chosen, dtype):
        return replace(found, status="declined", text=unfit)
    if not implementation.packed:
        return replace(found, status="unpacked", text="not packed, so not proven, only timed")
    case = chosen.case(LENGTHS["with an empty one" if empty else "filled"], dtype, seed)
    with job.worker() as worker:
        worker.open()
        subject = KernelUnderTest(job.op, worker, job.declared.promises, gradients=job.declared.gradients)
        return _proven(found, subject, case)


def _proven(found: SizeProof, subject: KernelUnderTest, case: Case) -> SizeProof:
    started = time.monotonic()
    for done, law in enumerate(PROPERTIES, start=1):
        try:
            violation = broken(subject, law, case)
        except Refused as refused:
            return replace(found, status="declined", text=f"declines this call: {refused}")
        tier: Tier = "interpret" if subject.interpreted else found.tier
        found = replace(found, tier=tier, examples=done, seconds=time.monotonic() - started)
        if violation is not None:
            return replace(found, status="failed", text=_verdict(law.name, violation, f"lengths {list(case.lengths)}"))
    if found.tier == "interpret":
        return replace(found, status="interpreted", text="interpreted on a CPU: proven, not timed")
    return found


def spot_check(implementation: Implementation, function: Callable[..., Any], sample: Sample, device: str) -> str:
    """The verdict on the timed layout itself, "" if the implementation is correct there.

    Only the first tokens of two sequences have incoming gradients: their outputs, and every gradient, must then be what
    the reference computes for these tokens alone. If the op is not causal, the two shortest sequences are used whole;
    if the kernel's budget grows with the tokens before a sequence, only the first sequence.

    Raises Refused if it declines this layout, or the machine has too little memory.
    """
    job = implementation.job
    subject = KernelUnderTest(
        job.op, InProcess(function, device), job.declared.promises, gradients=job.declared.gradients
    )
    chosen, counts = _chosen(sample, first=subject.pack_decides)
    alone = sample.select(chosen).piece([(j, 0, n) for j, n in enumerate(counts)])
    try:
        got = subject.run(_only_incoming(sample, chosen, counts))
    except KernelFault as fault:
        return f"on the timed layout: {fault}"
    want = expected(alone, job.declared.promises, gradients=subject.gradients)
    for key, value in want.values.items():
        where = subject.row_map(key, alone)
        rows = _rows(got[key], where.axes, sample, chosen, counts)
        for violation in Comparison(key, rows, value, where, want.budgets[key], other="alone").violations():
            numbers = " and ".join(map(str, chosen))
            return _verdict("spot check", violation, f"sequences {numbers} of the timed layout, numbered from 0 below")
    return ""


def _chosen(sample: Sample, *, first: bool) -> tuple[list[int], list[int]]:
    """The indices of two sequences, preferably with others before them, and the number of compared tokens of each."""
    filled = [j for j, n in enumerate(sample.lengths) if n]
    causal = sample.op.causal
    if sample.options.get(causal) if isinstance(causal, str) else causal:
        chosen = [filled[0]] if first else sorted({filled[len(filled) // 2], filled[-1]})
        return chosen, [min(sample.lengths[j], _SPOT_TOKENS) for j in chosen]
    chosen = sorted(sorted(filled, key=lambda j: sample.lengths[j])[:2])
    return chosen, [sample.lengths[j] for j in chosen]


def _only_incoming(sample: Sample, chosen: list[int], counts: list[int]) -> Sample:
    """The sample with incoming gradients only at the first tokens of these sequences."""
    kept = torch.cat([torch.arange(n) + sample.offsets[j] for j, n in zip(chosen, counts, strict=True)])

    def only(x: Tensor) -> Tensor:
        zero = torch.zeros_like(x)
        zero[kept] = x[kept]
        return zero

    token = {name: x for name, x in sample.cotangents.items() if role(sample.axes[name]) == "token"}
    return replace(sample, cotangents={name: only(x) for name, x in token.items()})


def _rows(x: Tensor, axes: tuple[str, ...], sample: Sample, chosen: list[int], counts: list[int]) -> Tensor:
    """The rows of a result for the compared tokens or the selected sequences; all of a shared gradient."""
    if role(axes) == "shared":
        return x
    if role(axes) == "sequence":
        return x[chosen]
    return torch.cat([x[sample.offsets[j] : sample.offsets[j] + n] for j, n in zip(chosen, counts, strict=True)])


def _verdict(name: str, violation: Violation, where: str) -> str:
    tensor = f" ({violation.tensor})" if violation.tensor else ""
    return "\n".join([f"{name}{tensor}: {where}", *violation.lines()])
