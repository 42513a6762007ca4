"""The command line of `packproof bench ranks`: starts the ranks, or runs as one of them."""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import typer

from packproof.harness.cli.ending import FAILED, HELD, INCONCLUSIVE, OWN_FAULT, WRONG_CALL, say
from packproof.harness.results.files import writable
from packproof.refs.errors import PackproofError, UsageError

if TYPE_CHECKING:
    from packproof.harness.bench.ranks.judge import OnRanks


_SECONDS = 60.0


def bench(
    ranks: int | None,
    simulated: int | None,
    cases: int | None,
    seconds: float | None,
    *,
    tokens: int | None,
    op: str | None,
    json: str | None,
) -> int:
    """Judge and time packs cut over ranks. Exit code 1 if a case fails, 4 if a rank is lost."""
    if ranks is not None and simulated is not None:
        raise UsageError("--simulated: cannot be given together with --ranks; choose one")
    file = writable(json, "--json") if json is not None else None

    from packproof.harness.bench.ranks.command import RanksRequest, run, simulated_here  # noqa: PLC0415
    from packproof.harness.bench.ranks.processes import joined, most_here, started  # noqa: PLC0415

    request = RanksRequest(cases, tokens, op, file)
    request.require_ops()
    if simulated is not None:
        return FAILED if run(request, simulated_here(simulated), typer.echo) else HELD
    if not started():
        given = {"--cases": cases, "--seconds": seconds, "--tokens": tokens, "--op": op, "--json": json}
        options = [f"{name}={value}" for name, value in given.items() if value is not None]
        return _launch(options, ranks or most_here(), seconds or _SECONDS)
    if ranks is not None:
        raise UsageError(f"--ranks: this process is one of {started()} ranks already; leave it out")
    place = joined(seconds or _SECONDS)
    try:
        failed = run(request, place, typer.echo)
    except Exception as error:
        _leave(error, place)
    from torch import distributed  # noqa: PLC0415

    distributed.destroy_process_group()
    return FAILED if failed else HELD


def _launch(options: Sequence[str], ranks: int, seconds: float) -> int:
    """Start the ranks, and return the worst of their exit codes."""
    from packproof.harness.bench.ranks.processes import described, launch  # noqa: PLC0415

    codes = launch(["bench", "ranks", *options], ranks, seconds)
    for line in described(codes):
        say(line, INCONCLUSIVE)
    ended = {INCONCLUSIVE if code < 0 else code for code in codes}
    return next((code for code in (OWN_FAULT, INCONCLUSIVE, WRONG_CALL, FAILED) if code in ended), HELD)


def _leave(error: Exception, place: "OnRanks") -> NoReturn:
    """End this process at once: operations waiting for a lost rank would keep it alive."""
    from packproof.harness.bench.ranks.processes import told  # noqa: PLC0415

    lost = isinstance(error, PackproofError)
    if not lost:
        traceback.print_exc()
    say(told(error, place), INCONCLUSIVE)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INCONCLUSIVE if lost else OWN_FAULT)
