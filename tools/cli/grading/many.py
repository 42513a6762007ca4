"""The command `packproof grades`: many submissions, on one machine or on many."""

from collections import Counter
from typing import Annotated, Any

import typer

from packproof.base.names import DEVICES, require_known
from packproof.base.wording import plural, printable
from packproof.cli.ending import INCONCLUSIVE, SUCCESS
from packproof.harness.process.start import fast_imports


def grades(
    submissions: Annotated[
        str, typer.Argument(help="FILE.jsonl, each line an object with `submission`; or FOLDER:function")
    ],
    *,
    contract: Annotated[
        str | None, typer.Option(metavar="FILE", help="the terms of each submission that has none of its own")
    ] = None,
    task: Annotated[str | None, typer.Option(help="a task in place of a contract, as `packproof grade` has it")] = None,
    results: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="write each grade to this file once it is made, as a line of JSON"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="keep the grades that the results have")] = False,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="use a Ray cluster: auto, host:port, or local for one on this machine"),
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="cores of one grade  [default: 1, on a GPU 4]")] = None,
    secret: Annotated[
        str | None, typer.Option(help="what the hidden cases are drawn with, beside the submission  [default: drawn]")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda  [default: cuda if available]")] = None,
    timed: Annotated[
        bool, typer.Option("--timed/--untimed", help="untimed, a correct submission has half of the reward")
    ] = True,
    isolate: Annotated[
        bool, typer.Option("--isolate/--no-isolate", help="run each within all walls or not at all, or within none")
    ] = True,
) -> int:
    """Grade many submissions, one on each GPU or on so many cores, on this machine or on the hosts of a Ray cluster.

    Exit code 0 if all were judged, whatever their verdicts; 4 if some were not.

    \b
    packproof grades submissions.jsonl --results grades.jsonl
    packproof grades submissions:conv --contract conv.json --results grades.jsonl
    packproof grades submissions.jsonl --results grades.jsonl --resume --ray auto
    """
    require_known("device", device or "cpu", DEVICES)
    with fast_imports():
        from packproof.grading import GradeOptions, GradeRun  # noqa: PLC0415

    verdicts = Counter[str]()
    options = GradeOptions(device, secret, timed=timed, isolate=isolate)
    with GradeRun(
        submissions,
        contract=contract,
        task=task,
        options=options,
        cores=cores,
        ray=ray,
        results=results,
        resume=resume,
    ) as run:
        for row in run:
            verdicts[row["grade"]["verdict"] if "grade" in row else "not graded"] += 1
            typer.echo(printable(_line(row)))
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    before = f", {len(run.graded_before)} graded before" if run.graded_before else ""
    typer.echo(f"{plural(len(run.entries), 'submission')}: {counts or 'none graded now'}{before}")
    return SUCCESS if verdicts.keys() <= {"passed", "failed"} else INCONCLUSIVE


def _line(row: dict[str, Any]) -> str:
    if "grade" not in row:
        return f"{row['name']}: not graded, {row['error']}"
    return f"{row['name']}: {row['grade']['verdict']}, reward {row['measured']['reward']:.4f}, {row['grade']['reason']}"
