"""The proof before the timing: an incorrect implementation gets a verdict and no time."""

import time
from dataclasses import replace

import torch
from torch import Tensor

from packproof.base.axes import role
from packproof.base.errors import KernelFault
from packproof.bench.kernels.implementations import Implementation
from packproof.bench.kernels.results import SizeProof
from packproof.bench.kernels.settings import Setting
from packproof.harness.report import Tier
from packproof.properties.bounds import oracle_answer
from packproof.properties.calling import Refusal
from packproof.properties.cases import Case, Sample
from packproof.properties.judgement import Comparison, KernelUnderTest, first_violation
from packproof.properties.laws import PACKING, REFERENCE, Violation

# short sequences and one that crosses chunks of 64 and 128; an empty one only if one is timed
LENGTHS = {"filled": (2, 130, 1), "with an empty one": (2, 0, 130, 1)}
PROPERTIES = (REFERENCE, PACKING)
_SPOT_TOKENS = 70  # past a chunk of 64; with more the float64 reference would take minutes


def prove(
    implementation: Implementation, setting: Setting, dtype: str, device: str, seed: int, *, empty: bool = False
) -> SizeProof:
    """The small proof: the timed sizes on a few short sequences, in a separate process.

    empty: a timed layout has an empty sequence, so the proof needs one too.
    """
    job = implementation.job
    proof = SizeProof(
        job.op.name, implementation.name, str(setting), dtype, "passed", tier="gpu" if device == "cuda" else "eager"
    )
    if implementation.is_absent:
        return replace(proof, status="not installed", text="not installed")
    if reason := implementation.unsupported_reason(setting, dtype):
        return replace(proof, status="declined", text=reason)
    if not implementation.is_packed:
        return replace(proof, status="unpacked", text="not packed, so not proven, only timed")
    case = setting.case(LENGTHS["with an empty one" if empty else "filled"], dtype, seed)
    with job.worker() as worker:
        worker.open()
        subject = KernelUnderTest(job.op, worker, job.declared.promises, gradients=job.declared.gradients)
        return _prove_properties(proof, subject, case)


def _prove_properties(proof: SizeProof, subject: KernelUnderTest, case: Case) -> SizeProof:
    start = time.monotonic()
    for count, law in enumerate(PROPERTIES, start=1):
        try:
            violation = first_violation(subject, law, case)
        except Refusal as refusal:
            return replace(proof, status="declined", text=f"declines this call: {refusal}")
        tier: Tier = "interpret" if subject.interpreted else proof.tier
        proof = replace(proof, tier=tier, examples=count, seconds=time.monotonic() - start)
        if violation is not None:
            return replace(proof, status="failed", text=_verdict(law.name, violation, f"lengths {list(case.lengths)}"))
    if proof.tier == "interpret":
        return replace(proof, status="interpreted", text="interpreted on a CPU: proven, not timed")
    return proof


def spot_check(subject: KernelUnderTest, sample: Sample) -> str:
    """The verdict on the timed layout itself, "" if the kernel is correct there.

    Only the first tokens of two sequences have incoming gradients: their outputs, and every gradient, must then be what
    the reference computes for these tokens alone. If the op is not causal, the two shortest sequences are used whole;
    if the kernel's budget grows with the tokens before a sequence, only the first sequence.

    Raises Refusal if it declines this layout, or the machine has too little memory.
    """
    sequences, counts = _select_sequences(sample, first_only=subject.budget_depends_on_pack)
    alone_sample = sample.select(sequences).piece([(j, 0, n) for j, n in enumerate(counts)])
    try:
        result = subject.run(_with_incoming_gradients_at(sample, sequences, counts))
    except KernelFault as fault:
        return f"on the timed layout: {fault}"
    reference = oracle_answer(alone_sample, subject.promises, gradients=subject.gradients)
    for key, value in reference.values.items():
        row_map = subject.row_map(key, alone_sample)
        rows = _rows(result[key], row_map.axes, sample, sequences, counts)
        for violation in Comparison(
            key, rows, value, row_map, reference.budgets[key], baseline_name="alone"
        ).violations():
            numbers = " and ".join(map(str, sequences))
            return _verdict("spot check", violation, f"sequences {numbers} of the timed layout, numbered from 0 below")
    return ""


def _select_sequences(sample: Sample, *, first_only: bool) -> tuple[list[int], list[int]]:
    """The indices of two sequences, preferably with others before them, and the number of compared tokens of each."""
    nonempty = [j for j, n in enumerate(sample.lengths) if n]
    causal = sample.op.causal
    if sample.options.get(causal) if isinstance(causal, str) else causal:
        sequences = [nonempty[0]] if first_only else sorted({nonempty[len(nonempty) // 2], nonempty[-1]})
        return sequences, [min(sample.lengths[j], _SPOT_TOKENS) for j in sequences]
    sequences = sorted(sorted(nonempty, key=lambda j: sample.lengths[j])[:2])
    return sequences, [sample.lengths[j] for j in sequences]


def _with_incoming_gradients_at(sample: Sample, sequences: list[int], counts: list[int]) -> Sample:
    """The sample with incoming gradients only at the first tokens of these sequences."""
    rows = torch.cat([torch.arange(n) + sample.offsets[j] for j, n in zip(sequences, counts, strict=True)])

    def zero_elsewhere(x: Tensor) -> Tensor:
        zero = torch.zeros_like(x)
        zero[rows] = x[rows]
        return zero

    token_cotangents = {name: x for name, x in sample.cotangents.items() if role(sample.axes[name]) == "token"}
    return replace(sample, cotangents={name: zero_elsewhere(x) for name, x in token_cotangents.items()})


def _rows(x: Tensor, axes: tuple[str, ...], sample: Sample, sequences: list[int], counts: list[int]) -> Tensor:
    """The rows of a result for the compared tokens or the selected sequences; all of a shared gradient."""
    if role(axes) == "shared":
        return x
    if role(axes) == "sequence":
        return x[sequences]
    return torch.cat([x[sample.offsets[j] : sample.offsets[j] + n] for j, n in zip(sequences, counts, strict=True)])


def _verdict(name: str, violation: Violation, location: str) -> str:
    tensor = f" ({violation.tensor})" if violation.tensor else ""
    return "\n".join([f"{name}{tensor}: {location}", *violation.lines()])
