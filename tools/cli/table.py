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
    from packproof.bench.kernels.markdown import table as markdown  # noqa: PLC0415
    from packproof.bench.ranks import page as page_of_ranks  # noqa: PLC0415
    from packproof.bench.stacks import page  # noqa: PLC0415
    from packproof.bench.stacks.report import is_of_stacks  # noqa: PLC0415

    if page_of_ranks.is_of_ranks(file):
        picture = page_of_ranks.RanksPlot(plot) if plot is not None else None
        typer.echo(page_of_ranks.table(file))
        if picture:
            picture.draw(file)
        return SUCCESS
    stacks = is_of_stacks(file)
    if plot is not None and not stacks:
        raise UsageError(
            f"--plot: {file} is not of `packproof bench stack` or `bench ranks`; `packproof bench --sweep` draws others"
        )
    drawing = page.StacksPlot(plot) if plot is not None else None
    typer.echo(page.table(file) if stacks else markdown(file))
    if drawing:
        drawing.draw(file)
    return SUCCESS
