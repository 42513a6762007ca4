"""The command line of mutation testing: `packproof mutate`."""

import time
from typing import Annotated

import typer

from packproof.base.machine import available_cores
from packproof.cli.ending import FAILED, SUCCESS
from packproof.cli.usage import seed_option

_PROGRESS_SECONDS = 30.0


def mutate(
    *,
    op: Annotated[str | None, typer.Option(help="use only the checks of this op")] = None,
    kernel: Annotated[str | None, typer.Option(help="only mutants of this kernel module, or module:function")] = None,
    device: Annotated[
        str, typer.Option(help="cpu, where mutants are interpreted, or cuda, where each is compiled: minutes for a few")
    ] = "cpu",
    out_of_reach: Annotated[
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
    packproof mutate --killers data/killers.json --resume mutants.jsonl
    packproof mutate --kernel selective_scan_fwd --sample 40 --seed 1
    packproof mutate --kernel products --list
    packproof mutate --device cuda --kernel ssd_fwd --sample 100
    packproof mutate --device cuda --beyond
    """
    from packproof.base.errors import UsageError  # noqa: PLC0415
    from packproof.base.files import replace_text, writable_path  # noqa: PLC0415
    from packproof.base.names import require_known  # noqa: PLC0415
    from packproof.base.wording import plural  # noqa: PLC0415
    from packproof.harness.check import CheckRequest, validate  # noqa: PLC0415
    from packproof.proof import mutants as mutation  # noqa: PLC0415

    validate(CheckRequest(device=device))
    if killers and device != "cpu":
        raise UsageError("--killers: the file holds checks of interpreted kernels; leave it out with --device cuda")

    every_mutant = mutation.all_mutants()
    functions = {f"{m.module}:{m.function}" for m in every_mutant}
    if kernel is not None:
        require_known(
            "kernel", kernel, [*{m.module: None for m in every_mutant}, *sorted(functions)], "packproof mutate --list"
        )
    kernel_mutants = [m for m in every_mutant if kernel in (None, m.module, f"{m.module}:{m.function}")]
    explanations = mutation.find_explanations(kernel_mutants)
    candidates = (
        [m for m in kernel_mutants if m.id in explanations and explanations[m.id].out_of_reach]
        if out_of_reach
        else kernel_mutants
    )
    selected_mutants = mutation.sample(candidates, sample, seed)
    ops = [require_known("op", op, mutation.OPS)] if op is not None else mutation.OPS
    if not selected_mutants:
        raise UsageError("--kernel and --beyond: no mutant of this kernel is out of reach; leave one of the two out")
    if list_only:
        typer.echo("\n".join([*mutation.listed(selected_mutants), plural(len(selected_mutants), "mutant")]))
        return SUCCESS
    file = writable_path(json, "--json") if json is not None else None
    resume_path = writable_path(resume, "--resume") if resume is not None else None
    killers_path = writable_path(killers, "--killers") if killers is not None else None
    first_checks = mutation.read_killers(killers_path) if killers_path else {}
    mutants = {m.id: m for m in selected_mutants}
    start = last_progress = time.monotonic()
    outcomes = []
    for outcome in mutation.run(selected_mutants, ops, jobs or available_cores(), resume_path, first_checks, device):
        outcomes.append(outcome)
        if not outcome.killed_by and outcome.id not in explanations and (outcome.op or not op):
            typer.echo(mutation.survived(outcome, mutants[outcome.id]))
        if time.monotonic() - last_progress > _PROGRESS_SECONDS:
            last_progress = time.monotonic()
            typer.echo(
                f"{len(outcomes)} of {plural(len(selected_mutants), 'mutant')}, {last_progress - start:.0f} s", err=True
            )
    if op:
        outcomes = [o for o in outcomes if o.op]
    valid_explanations = (
        explanations if device == "cpu" else {name: e for name, e in explanations.items() if not e.out_of_reach}
    )
    contradictions = mutation.wrongly_explained(outcomes, valid_explanations)
    typer.echo("\n".join([*contradictions, *mutation.summary(outcomes, explanations, time.monotonic() - start)]))
    if killers_path:
        replace_text(killers_path, mutation.killers_text(first_checks, outcomes, {m.id for m in every_mutant}))
    if file:
        replace_text(file, mutation.as_json(outcomes, mutants, explanations))
    unexplained = [o for o in outcomes if not o.killed_by and o.id not in explanations]
    return FAILED if unexplained or contradictions else SUCCESS
