"""The command line of the backtest: `packproof backtest`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from packproof.cli.ending import SUCCESS
from packproof.cli.usage import default_device

if TYPE_CHECKING:
    from packproof.proof.backtest import Clones

_Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="entries; default: all in scope")]


def backtest(
    ids: _Ids = None,
    *,
    clones: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="a clone of each project: owner+name, bare or not")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda  [default: cuda if available]")] = None,
    shard: Annotated[str, typer.Option(metavar="I/N", help="the Ith of N parts of the entries")] = "1/1",
    seconds: Annotated[float, typer.Option(help="limit of one check; an entry has two", min=1)] = 600.0,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", help="ask for this property of kernels alone; may be repeated  [default: all]"),
    ] = None,
    results: Annotated[
        str | None, typer.Option(metavar="FILE", help="add each outcome to this file; those in it are not run again")
    ] = None,
    merge: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="outcomes of other runs; may be repeated")
    ] = None,
    page: Annotated[str | None, typer.Option(metavar="FILE", help="write the Markdown page")] = None,
    refactorings: Annotated[
        bool, typer.Option(help="commits that mend nothing, instead of the fixes: nothing may differ")
    ] = False,
    swapped: Annotated[
        bool, typer.Option(help="exchange parent and fix: nothing may be detected; they have outcomes of their own")
    ] = False,
    thin: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="write clones with the files of these entries alone, and run nothing"),
    ] = None,
    list_entries: Annotated[bool, typer.Option("--list", help="list the entries, and run nothing")] = False,
) -> int:
    """Check the kernels of public projects at the commit before a fix and at the fix.

    Each commit is imported in a process of its own, out of a clone. At the parent a property should fail that holds at
    the fix. The entries, and the rule by which they were selected, are in packproof.proof.backtest.

    \b
    packproof backtest --list
    packproof backtest fla-b67113b4 --clones ~/clones --device cuda
    packproof backtest --clones ~/clones --shard 2/8 --results part2.jsonl
    packproof backtest --refactorings --clones ~/clones --device cpu --results refactorings.jsonl
    packproof backtest --swapped --clones ~/clones --device cpu --results swapped.jsonl
    packproof backtest --device cuda --clones ~/clones --thin build/clones
    packproof backtest --merge part1.jsonl --merge part2.jsonl --page docs/backtest.md
    """
    from packproof.base.files import replace_text, writable_path  # noqa: PLC0415
    from packproof.proof import backtest as runs  # noqa: PLC0415

    select = runs.selected_refactorings if refactorings else runs.selected
    chosen = [case.swapped if swapped else case for case in select(tuple(ids or ()), shard)]
    if list_entries:
        for case in chosen:
            about = case.entry.reason or f"{case.entry.symbol or case.entry.path}: {case.entry.fault}"
            typer.echo(f"{case.entry.id:<28} {about}")
        return SUCCESS
    if thin is not None:
        needed = [c for c in chosen if device in (None, c.question and c.question.device)]
        for clone in runs.write_thin_clones(needed, _required(clones), Path(thin)):
            typer.echo(f"{clone.project:<40} {clone.commits:3} commits  {clone.size / 1e6:.1f} MB")
        return SUCCESS
    file, page_file = (
        Path(writable_path(path, option)) if path else None
        for path, option in ((results, "--results"), (page, "--page"))
    )
    outcomes = {**runs.merged(map(Path, merge or ())), **(runs.read_outcomes(file) if file else {})}
    remaining = [] if merge and not clones else [case for case in chosen if case.entry.id not in outcomes]
    if remaining:
        folder, selected_device = _required(clones), device or default_device()
        asked = tuple(properties or ())
        for outcome in runs.run_cases(remaining, folder, selected_device, seconds=seconds, properties=asked):
            typer.echo(runs.line(outcome))
            outcomes[outcome.id] = outcome
            if file:
                runs.append_outcome(file, outcome)
    parts = list(runs.cases().values()), outcomes, list(runs.refactorings().values())
    typer.echo(runs.summary(*parts))
    if page_file:
        replace_text(page_file, runs.as_markdown(*parts))
    return SUCCESS


def _required(clones: str | None) -> "Clones":
    from packproof.base.errors import UsageError  # noqa: PLC0415
    from packproof.proof.backtest import Clones  # noqa: PLC0415

    if clones is None:
        raise UsageError("--clones is missing: the folder with a clone of each project")
    return Clones(Path(clones))
