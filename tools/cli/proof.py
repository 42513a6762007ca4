"""The command line of the report on packproof itself: `packproof proof`."""

from typing import Annotated

import typer

from packproof.cli.ending import SUCCESS


def proof(
    folder: Annotated[
        str, typer.Argument(help="folder with museum.json, recipes.json, alarms.json, errors.json and mutants.json")
    ],
    page: Annotated[str, typer.Argument(help="write the report to this Markdown file")],
    json: Annotated[str, typer.Option(help="write the numbers of the report to this file")],
) -> int:
    """Combine the runs of the museum, of correct kernels and of mutants into one report on how well bugs are detected.

    \b
    make proof
    packproof proof .packproof/proof docs/proof.md --json data/proof.json
    """
    from json import dumps  # noqa: PLC0415
    from os.path import relpath  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    from packproof.base.files import replace_text, writable_path  # noqa: PLC0415
    from packproof.proof import markdown, report  # noqa: PLC0415

    files = writable_path(page, "PAGE"), writable_path(json, "--json")
    figures = report(Path(folder))
    replace_text(files[0], markdown(figures, numbers=relpath(json, Path(page).parent)))
    replace_text(files[1], dumps(figures, indent=1) + "\n")
    return SUCCESS
