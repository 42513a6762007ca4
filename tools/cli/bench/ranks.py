"""The command `packproof bench ranks`: starts the ranks, or runs as one of them."""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from packproof.base.errors import PackproofError, UsageError
from packproof.base.files import writable_path
from packproof.cli.ending import FAILED, INCONCLUSIVE, INTERNAL_ERROR, SUCCESS, WRONG_CALL, say

if TYPE_CHECKING:
    from packproof.bench.ranks import RankGroup


_DEFAULT_SECONDS = 60.0


def ranks(
    *,
    ranks: Annotated[
        int | None, typer.Option(help="processes to start  [default: one for each GPU, without any 2]", min=1)
    ] = None,
    simulated: Annotated[
        int | None, typer.Option(help="judge this many ranks in one process, without times", min=1)
    ] = None,
    cases: Annotated[
        int | None, typer.Option(help="packs to judge of each op and dtype  [default: cuda 50, cpu 5]", min=0)
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="longest wait of a rank for the others  [default: 60]", min=1.0)
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="tokens of the timed packs  [default: cuda 262144, cpu 96]", min=1)
    ] = None,
    op: Annotated[str | None, typer.Option(help="the only op to judge and time")] = None,
    json: Annotated[str | None, typer.Option(help="write the results to this file")] = None,
) -> int:
    """Judge and time packs cut over several GPUs.

    \b
    packproof bench ranks --json ranks.json
    packproof bench ranks --simulated 2 --op ssd
    torchrun --standalone --nproc-per-node 2 -m packproof bench ranks

    Exit code 1 if a case fails, 4 if a rank is lost.
    """
    if ranks is not None and simulated is not None:
        raise UsageError("--simulated: cannot be given together with --ranks; choose one")
    file = writable_path(json, "--json") if json is not None else None

    from packproof.bench.ranks import RanksRequest, default_rank_count, join_ranks, run, simulated_ranks, world_size  # noqa: PLC0415

    request = RanksRequest(cases, tokens, op, file)
    request.require_ops()
    if simulated is not None:
        return FAILED if run(request, simulated_ranks(simulated), typer.echo) else SUCCESS
    if not world_size():
        values = {"--cases": cases, "--seconds": seconds, "--tokens": tokens, "--op": op, "--json": json}
        options = [f"{name}={value}" for name, value in values.items() if value is not None]
        return _launch(options, ranks or default_rank_count(), seconds or _DEFAULT_SECONDS)
    if ranks is not None:
        raise UsageError(f"--ranks: this process is one of {world_size()} ranks already; leave it out")
    rank_group = join_ranks(seconds or _DEFAULT_SECONDS)
    try:
        failed = run(request, rank_group, typer.echo)
    except Exception as error:
        _exit_rank(error, rank_group)
    from torch import distributed  # noqa: PLC0415

    distributed.destroy_process_group()
    return FAILED if failed else SUCCESS


def _launch(options: Sequence[str], ranks: int, seconds: float) -> int:
    """Start the ranks, and return the worst of their exit codes."""
    from packproof.bench.ranks import launch, signal_lines  # noqa: PLC0415

    codes = launch(["bench", "ranks", *options], ranks, seconds)
    for line in signal_lines(codes):
        say(line, INCONCLUSIVE)
    exit_codes = {INCONCLUSIVE if code < 0 else code for code in codes}
    return next((code for code in (INTERNAL_ERROR, INCONCLUSIVE, WRONG_CALL, FAILED) if code in exit_codes), SUCCESS)


def _exit_rank(error: Exception, rank_group: "RankGroup") -> NoReturn:
    """End this process at once: operations waiting for a lost rank would keep it alive."""
    from packproof.bench.ranks import rank_error_text  # noqa: PLC0415

    lost = isinstance(error, PackproofError)
    if not lost:
        traceback.print_exc()
    say(rank_error_text(error, rank_group), INCONCLUSIVE)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INCONCLUSIVE if lost else INTERNAL_ERROR)
