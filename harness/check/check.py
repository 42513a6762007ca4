"""The check: request, target, plan and schedule one after another, and the same for a caller in Python."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from packproof.base.errors import PackproofError, checked_call
from packproof.base.stopwatch import span
from packproof.harness.check.plan import plan
from packproof.harness.check.request import CheckRequest, checked, validate
from packproof.harness.check.schedule import run_plan
from packproof.harness.check.targets.target import open_targets
from packproof.harness.report import CheckFailed, Event, RunFinished, Verdict
from packproof.harness.report.wording import cell_title, failure_texts
from packproof.properties.declarations import Promises
from packproof.properties.laws import Property
from packproof.properties.ops import Op


def run_check(request: CheckRequest) -> Iterator[Event]:
    """Check the kernels of a request, event by event. Raises UsageError before the first event if it cannot be run."""
    with span("start"):
        validate(request)
        planned = plan(request, list(open_targets(request)))
    yield from run_plan(planned)


@checked_call
def check(
    target: str | Callable[..., Any],
    *,
    op: str | Op | None = None,
    device: str | None = None,
    dtypes: Sequence[str | torch.dtype] | None = None,
    properties: Sequence[str | Property] | None = None,
    profile: str = "standard",
    seed: int = 0,
    promises: Promises | None = None,
    domain: str | Sequence[str] = (),
    contract: str | None = None,
    strict: bool = False,
    forward_only: bool = False,
    only_own_kernels: bool = False,
    timeout: float | None = None,
    fail_fast: bool = False,
    max_time: float | None = None,
    expected_failures: str | None = None,
) -> tuple[Verdict, ...]:
    """Check a kernel; returns the verdicts if every property held, or failed as expected.

    target: a function, or its name: "package.module:function", "path/file.py:function", "hub:owner/kernel:function".
    op: an op of packproof, "module:NAME", or an Op.
    device: "cpu" or "cuda"; the GPU if there is one.
    dtypes: as on the command line, or torch's own; all dtypes of the kernel if None.
    properties: names, "module:NAME", or Property objects.
    promises: instead of the kernel's own declaration.
    domain: the calls that the kernel supports, as in `packproof.kernel`.
    contract: the path of a contract; see docs/contract.md.
    fail_fast: stop at the first failure.
    max_time: seconds for the whole check.

    The others are as on the command line; docs/check.md has a table of all.

    Raises CheckFailed, with all verdicts and the report of every failure, if a property failed or not everything could
    be judged.
    UsageError if the check cannot be run.
    PackproofError if packproof itself fails.

    >>> import packproof
    >>> rope = "packproof.refs:rope"
    >>> verdicts = packproof.check(
    ...     rope, op="rope", device="cpu", dtypes=["fp32"], properties=["packing"], profile="quick"
    ... )
    >>> verdicts[0].status
    'passed'
    """
    request = checked(locals(), "check: ")  # the first line, so that these are the arguments and nothing else
    if device is None and torch.cuda.is_available():
        request = replace(request, device="cuda")
    end = [event for event in run_check(request) if isinstance(event, RunFinished)][-1]
    if end.interrupted:
        raise KeyboardInterrupt
    _require_passed(end.verdicts)
    return end.verdicts


def _require_passed(verdicts: Sequence[Verdict]) -> None:
    """Raises CheckFailed or PackproofError unless every verdict that counts is a pass."""
    if failed := [v for v in verdicts if v.failed]:
        raise CheckFailed("\n\n".join(failure_texts(failed)), verdicts)
    if unjudged := [v for v in verdicts if v.status == "error"]:
        raise PackproofError("\n".join(f"{cell_title(v.cell)}: {v.reason}" for v in unjudged))
    counting = [v for v in verdicts if v.cell.counts]
    inconclusive = [v for v in counting if v.status == "inconclusive"]
    if inconclusive or not any(v.held for v in counting):
        reasons = [f"{cell_title(v.cell)}: {v.reason}" for v in inconclusive or counting]
        text = "\n    ".join(dict.fromkeys(reasons))
        raise CheckFailed(f"inconclusive, not all that was asked could be judged:\n    {text}", verdicts)
