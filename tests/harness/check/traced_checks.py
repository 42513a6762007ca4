"""Runs of a check that show who computed."""

import os
from functools import cache

from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.events import RunFinished, Verdict

KERNELS = "tests.harness.check.provenance_kernels"


@cache
def traced(
    target: str, op: str = f"{KERNELS}:PRODUCT", *, device: str = "cpu", only_own_kernels: bool = False
) -> tuple[Verdict, ...]:
    request = CheckRequest(
        target,
        op=op,
        device=device,
        dtypes=("float32",),
        properties=("reference",),
        profile="quick",
        questions=False,
        only_own_kernels=only_own_kernels,
        replay_dir=os.devnull,
    )
    [end] = [event for event in run_check(request) if isinstance(event, RunFinished)]
    return end.verdicts


def computed_of(verdicts: tuple[Verdict, ...]) -> set[tuple[str, str, str, bool]]:
    """Kind, name without its module, pass, and whether it is the kernel's own."""
    return {(c.kind, c.name.rpartition(".")[2], c.during, c.is_own) for c in verdicts[-1].computed}
