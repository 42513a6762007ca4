"""The check: request, target, plan and schedule one after another, and the same for a caller in Python."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from packproof.harness.engine.plan import plan
from packproof.harness.engine.request import CheckRequest, validate
from packproof.harness.engine.schedule import run_plan
from packproof.harness.engine.target import open_targets
from packproof.harness.results.events import Event, RunFinished, Verdict
from packproof.harness.results.failed import CheckFailed
from packproof.harness.results.names import SEED, is_seed
from packproof.harness.results.names import long_dtype as dtype_name
from packproof.harness.results.wording import cell_title, failure_texts
from packproof.properties.cases.domain import Domain
from packproof.properties.laws.property import Property
from packproof.properties.op import Op
from packproof.properties.promises import Promises
from packproof.properties.stopwatch import span
from packproof.refs.errors import PackproofError, UsageError, checked_call


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
    dtypes: Sequence[str] | None = None,
    properties: Sequence[str | Property] | None = None,
    profile: str = "standard",
    seed: int = 0,
    promises: Promises | None = None,
    domain: str | Sequence[str] = (),
    strict: bool = False,
    forward_only: bool = False,
    timeout: float | None = None,
    fail_fast: bool = False,
    max_time: float | None = None,
    expected_failures: str | None = None,
) -> tuple[Verdict, ...]:
    """Check a kernel; returns the verdicts if every property held, or failed as expected.

    target: a function, or its name as "package.module:function" or "path/file.py:function".
    op: an op of packproof, "module:NAME", or an Op.
    device: "cpu" or "cuda"; the GPU if there is one.
    dtypes: as on the command line; all dtypes of the kernel if None.
    properties: names, "module:NAME", or Property objects.
    promises: instead of the kernel's own declaration.
    domain: the calls that the kernel supports, as in `packproof.kernel`.
    fail_fast: stop at the first failure.
    max_time: seconds for the whole check.
    expected_failures: a TOML file of failures that do not fail the check, unless they no longer occur.
    profile, seed, strict, forward_only, timeout: as on the command line.

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
    flags = {"strict": strict, "forward_only": forward_only, "fail_fast": fail_fast}
    _require_types(
        (target, "target", callable(target) or isinstance(target, str), "a function or its name"),
        (op, "op", op is None or isinstance(op, str | Op), "the name of an op, an Op or None"),
        (device, "device", device is None or isinstance(device, str), '"cpu", "cuda" or None'),
        (dtypes, "dtypes", dtypes is None or _listed(dtypes, str), 'names in a list, such as ["fp32"], or None'),
        (
            properties,
            "properties",
            properties is None or _listed(properties, str | Property),
            "a list of them, or None",
        ),
        (profile, "profile", isinstance(profile, str), '"quick", "standard" or "thorough"'),
        (seed, "seed", is_seed(seed), SEED),
        (promises, "promises", promises is None or isinstance(promises, Promises), "a packproof.Promises or None"),
        (domain, "domain", isinstance(domain, str) or _listed(domain, str), "conditions as text"),
        (timeout, "timeout", timeout is None or _positive(timeout), "seconds above zero, or None"),
        (max_time, "max_time", max_time is None or _positive(max_time), "seconds above zero, or None"),
        (
            expected_failures,
            "expected_failures",
            expected_failures is None or isinstance(expected_failures, str),
            "the path of a TOML file, or None",
        ),
        *((value, name, isinstance(value, bool), "True or False") for name, value in flags.items()),
    )
    request = CheckRequest(
        target=target,
        op=op,
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
        dtypes=tuple(map(dtype_name, dtypes)) if dtypes else None,
        properties=tuple(properties) if properties else None,
        profile=profile,
        seed=seed,
        promises=promises,
        domain=Domain.of(domain).texts,
        strict=strict,
        forward_only=forward_only,
        timeout=timeout,
        fail_fast=fail_fast,
        max_time=max_time,
        expected_failures=expected_failures,
    )
    end = [event for event in run_check(request) if isinstance(event, RunFinished)][-1]
    if end.interrupted:
        raise KeyboardInterrupt
    _require_passed(end.verdicts)
    return end.verdicts


def _require_types(*arguments: tuple[Any, str, bool, str]) -> None:
    """Raises UsageError for the first invalid argument.

    arguments: value, name, whether the value is valid, and the expected value in words.
    """
    for value, name, good, expected in arguments:
        if not good:
            raise UsageError(f"check: {name} is {value!r}; expected {expected}")


def _listed(values: Any, kind: Any) -> bool:
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    return is_list and all(isinstance(value, kind) for value in values)


def _positive(seconds: Any) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0


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
        listed = "\n    ".join(dict.fromkeys(reasons))
        raise CheckFailed(f"inconclusive, not all that was asked could be judged:\n    {listed}", verdicts)
