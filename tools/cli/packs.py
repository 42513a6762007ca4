"""The commands for what makes packs: `packproof packs check`."""

from typing import Annotated

import typer

from packproof.base.errors import UsageError
from packproof.base.names import split_names
from packproof.cli.ending import exit_code, file_reports, follow
from packproof.cli.usage import seed_option
from packproof.harness.process.start import fast_imports

app = typer.Typer(add_completion=False)


@app.callback()
def packs() -> None:
    """Check packers, samplers and streams, which choose the documents of a pack, and collators, which lay it out."""


@app.command()
def check(
    target: Annotated[str, typer.Argument(help="package.module:function or path/file.py:function")],
    *,
    kind: Annotated[
        str | None, typer.Option(help="packer, collator, sampler or stream  [default: what its parameters say]")
    ] = None,
    capacity: Annotated[
        list[str] | None, typer.Option(help="rows of a pack; comma-separated  [default: seven of 1 to 1,000]")
    ] = None,
    keeps_order: Annotated[
        bool, typer.Option("--keeps-order", help="the packer promises packs in the order of arrival")
    ] = False,
    excess: Annotated[
        float, typer.Option(help="how many more packs than first fit a packer may make, as a share", min=0)
    ] = 0.1,
    lengths: Annotated[str | None, typer.Option(help="judge documents of these lengths alone; comma-separated")] = None,
    property: Annotated[  # noqa: A002
        list[str] | None, typer.Option(help="laws to judge; comma-separated  [default: all]")
    ] = None,
    separators: Annotated[
        list[str] | None,
        typer.Option(help="ids that a collator's documents hold inside, as of the end of a turn; comma-separated"),
    ] = None,
    profile: Annotated[str, typer.Option(help="quick, standard or thorough: how many are drawn")] = "standard",
    timeout: Annotated[float, typer.Option(help="seconds that one call may take", min=0.001, max=86_400)] = 60,
    seed: Annotated[int, seed_option("another seed draws other documents")] = 0,
    json: Annotated[str | None, typer.Option(help="write the results to this file")] = None,
    junit: Annotated[str | None, typer.Option(help="write JUnit XML to this file")] = None,
    html: Annotated[str | None, typer.Option(help="write an HTML report to this file")] = None,
) -> int:
    """Check that packs lose no token, repeat none and say where each document begins.

    A packer is called pack(lengths, capacity) and returns packs of numbers of documents, or of pieces (document, start,
    stop). A collator is called with a list of mappings that have input_ids, and some labels, and returns one row. A
    sampler is made by (lengths, capacity, rank, ranks) and a stream by (documents, capacity): iterables of packs.

    \b
    packproof packs check my_packing.py:best_fit
    packproof packs check my_packing.py:in_order --keeps-order --capacity 2048,4096
    packproof packs check my_data:collate --kind collator
    packproof packs check my_packing.py:best_fit --lengths 5,6,1 --capacity 10
    """
    numbers = _numbers("--capacity", split_names(capacity), 1)
    with fast_imports():
        from packproof.harness.report.formats import TerminalReport  # noqa: PLC0415
        from packproof.packers import load_function, packer_request, run_packer_check  # noqa: PLC0415

    request = packer_request(
        load_function(target),
        kind=kind,
        capacity=numbers or None,
        keeps_order=keeps_order,
        excess=excess,
        lengths=None if lengths is None else _numbers("--lengths", split_names([lengths]), 0),
        properties=split_names(property),
        separators=_numbers("--separators", split_names(separators), 0),
        profile=profile,
        seed=seed,
        timeout=timeout,
        target=target,
    )
    files = file_reports(json=json, junit=junit, html=html)
    return exit_code(follow(run_packer_check(request, in_own_processes=True), [TerminalReport(), *files]))


def _numbers(option: str, texts: list[str], least: int) -> tuple[int, ...]:
    if not all(text.isdecimal() and int(text) >= least for text in texts):
        raise UsageError(f"{option}: {', '.join(texts)!r}, expected whole numbers of at least {least}, comma-separated")
    return tuple(map(int, texts))
