"""The board of models: `packproof models`."""

import time
from importlib.metadata import version
from typing import Annotated

import typer

from packproof.harness.cli.ending import HELD
from packproof.harness.worker.settled import importing


def models(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="model types of transformers; default: all")
    ] = None,
    *,
    list_only: Annotated[bool, typer.Option("--list", help="show the model types, and run nothing")] = False,
    seed: Annotated[int, typer.Option(help="another seed draws other weights and tokens")] = 0,
    json: Annotated[str | None, typer.Option(help="write the results to this file")] = None,
    markdown: Annotated[str | None, typer.Option(help="write the board to this file")] = None,
    from_json: Annotated[
        str | None, typer.Option("--from", help="make the board from a file of --json, and run nothing")
    ] = None,
) -> int:
    """Try each convention on a small random model of each causal language model of the installed transformers.

    A model that leaks is a finding, not a failure: the exit code is 0.

    \b
    packproof models llama mamba2 qwen3_next
    packproof models --json data/models.json --markdown docs/models_board.md
    packproof models --from data/models.json --markdown docs/models_board.md
    """
    with importing():
        from packproof.harness.architectures import page  # noqa: PLC0415
        from packproof.harness.architectures.board import Built, run_board  # noqa: PLC0415
        from packproof.harness.architectures.tiny import architectures  # noqa: PLC0415
        from packproof.harness.results.files import replace_text, writable  # noqa: PLC0415
        from packproof.harness.results.names import known  # noqa: PLC0415

    files = [writable(path, option) if path else None for path, option in ((json, "--json"), (markdown, "--markdown"))]
    if from_json:
        board = page.read(from_json)
    else:
        every = architectures()
        chosen = [every[known("model type", n, every, "packproof models --list")] for n in names or every]
        if list_only:
            typer.echo("\n".join(f"{each.name}  {each.model}" for each in chosen))
            return HELD
        started, found = time.monotonic(), []
        for each in run_board(chosen, seed):
            found.append(each)
            if isinstance(each, Built):
                typer.echo(f"{each.name}: {each.reason or each.layers or 'one kind of layer'}")
            else:
                typer.echo(page.line(each))
        versions = {name: version(name) for name in ("transformers", "torch")}
        board = page.gathered(found, time.monotonic() - started, seed, versions)
    for file, text in zip(files, (page.as_json(board), page.as_markdown(board)), strict=True):
        if file:
            replace_text(file, text)
    typer.echo(page.counts(board))
    return HELD
