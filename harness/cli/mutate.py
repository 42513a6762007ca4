"""The command line of mutation testing: `packproof mutate`."""

import os
import time
from typing import Annotated

import typer

from packproof.harness.cli.ending import FAILED, HELD
from packproof.harness.cli.usage import seed_option

_PROGRESS_SECONDS = 30.0


def mutate(
    *,
    op: Annotated[str | None, typer.Option(help="use only the checks of this op")] = None,
    kernel: Annotated[str | None, typer.Option(help="only mutants of this kernel module, or module:function")] = None,
    device: Annotated[
        str, typer.Option(help="cpu, where mutants are interpreted, or cuda, where each is compiled: minutes for a few")
    ] = "cpu",
    beyond: Annotated[
        bool, typer.Option("--beyond", help="only mutants explained as out of reach of the interpreted tiles and sizes")
    ] = False,
    sample: Annotated[int | None, typer.Option(help="only this many, drawn by the seed", min=1)] = None,
    seed: Annotated[int, seed_option("another seed draws another sample")] = 0,
    jobs: Annotated[int | None, typer.Option(help="parallel processes  [default: one per core]", min=1)] = None,
    resume: Annotated[str | None, typer.Option(help="a file of outcomes: reuse these, append the others")] = None,
    killers: Annotated[
        str | None,
        typer.Option(
            help="a file with the check that detected each mutant: that check runs first, and the file is updated"
        ),
    ] = None,
    json: Annotated[str | None, typer.Option(help="write the results to this file")] = None,
    list_only: Annotated[bool, typer.Option("--list", help="show the mutants and run none")] = False,
) -> int:
    """Change packproof's own Triton kernels in thousands of ways, and check that the properties detect each change.

    Exit code 1 if a mutant is undetected and not explained as equivalent.

    \b
    packproof mutate --op rope
    packproof mutate --killers data/killers.json --resume mutants.jsonl --json mutants.json
    packproof mutate --kernel selective_scan_fwd:_selective_scan_fwd_kernel --sample 40 --seed 1
    packproof mutate --kernel products --list
    packproof mutate --device cuda --kernel ssd_fwd --sample 100
    packproof mutate --device cuda --beyond
    """
    from packproof.harness.engine.request import CheckRequest, validate  # noqa: PLC0415
    from packproof.harness.results.files import replace_text, writable  # noqa: PLC0415
    from packproof.harness.results.names import known  # noqa: PLC0415
    from packproof.harness.validation.mutants import killers as killer_file  # noqa: PLC0415
    from packproof.harness.validation.mutants import run as runs  # noqa: PLC0415
    from packproof.harness.validation.mutants import table  # noqa: PLC0415
    from packproof.harness.validation.mutants.equivalents import explained  # noqa: PLC0415
    from packproof.harness.validation.mutants.mutant import all_mutants  # noqa: PLC0415
    from packproof.refs.errors import UsageError  # noqa: PLC0415
    from packproof.refs.wording import counted  # noqa: PLC0415

    validate(CheckRequest(device=device))
    if killers and device != "cpu":
        raise UsageError("--killers: the file holds checks of interpreted kernels; leave it out with --device cuda")

    everything = all_mutants()
    functions = {f"{m.module}:{m.function}" for m in everything}
    if kernel is not None:
        known("kernel", kernel, [*{m.module: None for m in everything}, *sorted(functions)], "packproof mutate --list")
    named = [m for m in everything if kernel in (None, m.module, f"{m.module}:{m.function}")]
    excused = explained(named)
    wanted = [m for m in named if m.id in excused and excused[m.id].beyond] if beyond else named
    chosen = runs.sample(wanted, sample, seed)
    ops = [known("op", op, runs.OPS)] if op is not None else runs.OPS
    if not chosen:
        raise UsageError("--kernel and --beyond: no mutant of this kernel is out of reach; leave one of the two out")
    if list_only:
        typer.echo("\n".join([*table.listed(chosen), counted(len(chosen), "mutant")]))
        return HELD
    file = writable(json, "--json") if json is not None else None
    kept = writable(resume, "--resume") if resume is not None else None
    hints = writable(killers, "--killers") if killers is not None else None
    first = killer_file.read(hints) if hints else {}
    mutants = {m.id: m for m in chosen}
    started = reported = time.monotonic()
    done = []
    for outcome in runs.run(chosen, ops, jobs or os.cpu_count() or 1, kept, first, device):
        done.append(outcome)
        if not outcome.by and outcome.id not in excused and (outcome.op or not op):
            typer.echo(table.survived(outcome, mutants[outcome.id]))
        if time.monotonic() - reported > _PROGRESS_SECONDS:
            reported = time.monotonic()
            typer.echo(f"{len(done)} of {counted(len(chosen), 'mutant')}, {reported - started:.0f} s", err=True)
    if op:
        done = [o for o in done if o.op]
    settled = excused if device == "cpu" else {name: e for name, e in excused.items() if not e.beyond}
    wrong = table.wrongly_explained(done, settled)
    typer.echo("\n".join([*wrong, *table.summary(done, excused, time.monotonic() - started)]))
    if hints:
        replace_text(hints, killer_file.text(first, done, {m.id for m in everything}))
    if file:
        replace_text(file, table.as_json(done, mutants, excused))
    holes = [o for o in done if not o.by and o.id not in excused]
    return FAILED if holes or wrong else HELD
