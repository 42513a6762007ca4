"""The command `packproof table`."""

from typing import Annotated

import typer

from packproof.base.errors import UsageError
from packproof.cli.ending import SUCCESS


def table(
    file: Annotated[
        str,
        typer.Argument(help="a file written by `packproof bench --json`; of `bench ranks` also several, with commas"),
    ],
    *,
    plot: Annotated[
        str | None,
        typer.Option(help="draw the results of `bench stack` or `bench ranks` to this .png or .svg file too"),
    ] = None,
) -> int:
    """Print the results of a bench as a Markdown table, with its command, GPU and versions.

    \b
    packproof table bench.json
    packproof table stack.json --plot stack.svg
    packproof table ranks2.json,ranks4.json --plot ranks.svg
    """
    from packproof.bench import kernels, ranks, stacks  # noqa: PLC0415

    if ranks.is_of_ranks(file):
        picture = ranks.RanksPlot(plot) if plot is not None else None
        typer.echo(ranks.table(file))
        if picture:
            picture.draw(file)
        return SUCCESS
    of_stacks = stacks.is_of_stacks(file)
    if plot is not None and not of_stacks:
        raise UsageError(
            f"--plot: {file} is not of `packproof bench stack` or `bench ranks`; `packproof bench --sweep` draws others"
        )
    drawing = stacks.StacksPlot(plot) if plot is not None else None
    typer.echo(stacks.table(file) if of_stacks else kernels.table(file))
    if drawing:
        drawing.draw(file)
    return SUCCESS
