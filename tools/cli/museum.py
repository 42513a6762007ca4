"""The command line of the museum: `packproof museum` and its `show`, `run`, `rogues`, `soak`, `alarms`, `compare`."""

import time
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from packproof.cli.ending import FAILED, INCONCLUSIVE, SUCCESS, say
from packproof.cli.usage import default_device, seed_option

app = typer.Typer(add_completion=False)

_Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="entries; default: all")]
_Op = Annotated[str | None, typer.Option(help="only entries of this op")]
_Class = Annotated[str | None, typer.Option("--class", help="only entries of this class of bugs")]
_Json = Annotated[str | None, typer.Option(help="write the results to this file")]


@app.callback(invoke_without_command=True)
def museum(context: typer.Context, op: _Op = None, bug_class: _Class = None) -> int:
    """Real bugs of packed kernels, re-created as small runnable kernels. Without a command, list them.

    \b
    packproof museum --op ssd
    packproof museum show D4
    packproof museum run
    """
    if context.invoked_subcommand is None:
        from packproof.proof.museum import listed  # noqa: PLC0415

        _print(listed(_select_entries(None, op, bug_class)))
    return SUCCESS


@app.command()
def show(ids: Annotated[list[str], typer.Argument(metavar="ID...", help="entries")]) -> int:
    """Show an entry: cause, trigger, links, and where the bug is in the source."""
    from packproof.museum import classes  # noqa: PLC0415
    from packproof.proof.museum import shown  # noqa: PLC0415

    _print("\n".join(shown(entry, classes())) for entry in _select_entries(ids, None, None))
    return SUCCESS


@app.command()
def run(
    ids: _Ids = None,
    *,
    op: _Op = None,
    bug_class: _Class = None,
    profile: Annotated[str, typer.Option(help="how many examples: quick, standard or thorough")] = "standard",
    device: Annotated[str | None, typer.Option(help="cpu or cuda  [default: cuda if available]")] = None,
    seed: Annotated[int, seed_option("another seed draws other examples")] = 0,
    json: _Json = None,
) -> int:
    """Check each entry by the properties that it names until one detects the bug; exit code 1 if one is undetected.

    \b
    packproof museum run
    packproof museum run S17 D4 --profile quick
    packproof museum run --class strides --json strides.json
    """
    from packproof.base.files import replace_text, writable_path  # noqa: PLC0415
    from packproof.harness.check import CheckRequest, validate  # noqa: PLC0415
    from packproof.proof.museum import as_json, outcome, run_entries, summary  # noqa: PLC0415

    selected_device = default_device() if device is None else device
    validate(CheckRequest(device=selected_device, profile=profile))
    file = writable_path(json, "--json") if json is not None else None
    start, detections = time.monotonic(), []
    for entry in run_entries(_select_entries(ids, op, bug_class), profile=profile, device=selected_device, seed=seed):
        typer.echo(outcome(entry))
        detections.append(entry)
    typer.echo(summary(detections, time.monotonic() - start))
    if file:
        replace_text(file, as_json(detections, profile, selected_device, seed))
    return FAILED if any(c.missed for c in detections) else SUCCESS


@app.command()
def rogues(ids: _Ids = None) -> int:
    """Check kernels that cheat or break a checker, by the properties that each names; exit code 1 if one is undetected.

    Each passes a harness that compares one call by allclose. The reason is given where packproof has no defense. Those
    that delete files, or write into other processes, run in a throwaway root (bubblewrap, or a chroot over an overlay
    in namespaces of its own). Where none can be made they are "not run"; exit code 4 if nothing else was asked for.

    \b
    packproof museum rogues
    packproof museum rogues R26 R62
    """
    from packproof.base.names import require_known  # noqa: PLC0415
    from packproof.museum.rogues import entries  # noqa: PLC0415
    from packproof.proof.museum import DEFENDED, try_rogues  # noqa: PLC0415

    all_rogues = entries()
    for name in ids or []:
        require_known("rogue", name, all_rogues, "packproof museum rogues")
    trials = list(try_rogues([all_rogues[name] for name in ids or all_rogues]))
    for trial in trials:
        reason = trial.rogue.undefended or trial.text.partition("\n")[0]
        expected = trial.is_as_expected or trial.fate == "not run"
        fate = trial.fate if expected else f"{trial.fate.upper()}, not as expected"
        typer.echo(f"{trial.rogue.id:<5} {fate:<9} {trial.rogue.title}: {reason}")
    executed = [trial for trial in trials if trial.fate != "not run"]
    detected = sum(trial.fate in DEFENDED for trial in executed)
    undefended = sum(bool(trial.rogue.undefended) for trial in executed)
    not_run = f", {len(trials) - len(executed)} not run" if len(executed) < len(trials) else ""
    typer.echo(
        f"{detected} of {len(trials)} detected, reported or prevented, {undefended} not defended against{not_run}"
    )
    if not all(trial.is_as_expected for trial in executed):
        return FAILED
    return SUCCESS if executed else INCONCLUSIVE


@app.command()
def soak(
    *,
    minutes: Annotated[float, typer.Option(help="how long to play submissions", min=0.0)] = 10.0,
    submissions: Annotated[int, typer.Option(help="how many have to be checked in this time", min=1)] = 200,
    seed: Annotated[int, seed_option("another seed draws other submissions")] = 0,
) -> int:
    """Check correct, wrong and hostile kernels side by side, with little memory; exit code 1 if something has changed.

    Each is a `packproof check --isolate` of its own, as many at a time as there are cores, in a throwaway root and a
    control group of 4 GiB. No verdict may be another one than alone, no process be left, and no file outside of the
    folder of the run be changed. Exit code 4, with the reason: there is no such root or group, some were not judged, or
    fewer were checked in this time. Digests of all folders, before and after, take a minute or two more.

    \b
    packproof museum soak
    packproof museum soak --minutes 2 --submissions 20
    """
    from packproof.proof.museum import NoControlGroupError, ThrowawayRootError, run_soak, soak_lines  # noqa: PLC0415

    try:
        result = run_soak(60 * minutes, submissions, seed)
    except (NoControlGroupError, ThrowawayRootError) as error:
        return say(str(error), INCONCLUSIVE)
    _print(soak_lines(result))
    if not result.holds:
        return FAILED
    return SUCCESS if result.is_conclusive else INCONCLUSIVE


@app.command()
def alarms(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="correct kernels; default: all")] = None,
    *,
    seeds: Annotated[int, typer.Option(help="cases per kernel, one seed each", min=1)] = 200,
    dtype: Annotated[
        list[str] | None, typer.Option(help="only this dtype's seeds, for parts of a run; may be repeated")
    ] = None,
    isolate: Annotated[
        bool, typer.Option("--isolate", help="within all walls; exit code 3 where the system lacks one")
    ] = False,
    json: _Json = None,
) -> int:
    """Check correct kernels by every property, in all dtypes; exit code 1 at a false alarm.

    \b
    packproof museum alarms
    packproof museum alarms scan.own_grid ssd.quadratic --seeds 20
    """
    from packproof.base.files import replace_text, writable_path  # noqa: PLC0415
    from packproof.base.names import require_known  # noqa: PLC0415
    from packproof.harness.process import set_isolation  # noqa: PLC0415
    from packproof.museum import controls  # noqa: PLC0415
    from packproof.proof.museum import (  # noqa: PLC0415
        ALARM_DTYPES,
        control_line,
        controls_json,
        controls_summary,
        judge_controls,
    )

    if isolate:
        set_isolation("required")
    all_kernels = controls()
    dtypes = [require_known("dtype", name, ALARM_DTYPES) for name in dtype or ALARM_DTYPES]
    selected_kernels = (
        [all_kernels[require_known("correct kernel", i, all_kernels)] for i in ids]
        if ids
        else list(all_kernels.values())
    )
    file = writable_path(json, "--json") if json is not None else None
    start, results = time.monotonic(), []
    for control in judge_controls(selected_kernels, seeds, dtypes):
        typer.echo(control_line(control))
        results.append(control)
    typer.echo(controls_summary(results, time.monotonic() - start))
    if file:
        replace_text(file, controls_json(results))
    return FAILED if any(a.false_alarms for a in results) else SUCCESS


@app.command()
def compare(*, json: _Json = None) -> int:
    """Run the recipes of public test suites on the bugs found in real kernels, and show which ones each detects.

    The layouts are fixed, as in such suites. The recipes: torch's assert_close, a relative root mean square of 0.005,
    and twice the error of the reference in low precision. Takes a few minutes on a CPU.
    """
    from packproof.base.files import replace_text, writable_path  # noqa: PLC0415
    from packproof.museum import controls, entries  # noqa: PLC0415
    from packproof.proof.museum import compare as run_recipes  # noqa: PLC0415
    from packproof.proof.museum import compared, compared_json  # noqa: PLC0415

    file = writable_path(json, "--json") if json is not None else None
    real_bugs = [entry for entry in entries().values() if entry.links and not entry.needs_gpu]
    comparisons = list(run_recipes([*real_bugs, *controls().values()]))
    _print(compared(comparisons))
    if file:
        replace_text(file, compared_json(comparisons))
    return SUCCESS


def _select_entries(ids: list[str] | None, op: str | None, bug_class: str | None) -> list[Any]:
    """The entries with these ids, of this op and class. Raises UsageError for an unknown name or an empty selection."""
    from packproof.base.errors import UsageError  # noqa: PLC0415
    from packproof.base.names import require_known  # noqa: PLC0415
    from packproof.base.wording import plural  # noqa: PLC0415
    from packproof.museum import classes, entries  # noqa: PLC0415

    all_entries = entries()
    if op is not None:
        require_known("op", op, dict.fromkeys(e.op for e in all_entries.values()))
    if bug_class is not None:
        require_known("class", bug_class, classes())
    selected_ids = (
        [require_known("entry", i, all_entries, "packproof museum") for i in ids] if ids else list(all_entries)
    )
    selected_entries = [
        e for e in map(all_entries.__getitem__, selected_ids) if op in (None, e.op) and bug_class in (None, e.bug_class)
    ]
    if not selected_entries:
        filters = {"--op": op, "--class": bug_class}
        filter_text = " and ".join(f"{option} {value}" for option, value in filters.items() if value is not None)
        raise UsageError(f"{filter_text}: none of {plural(len(selected_ids), 'entry')} is of it; leave an option out")
    return selected_entries


def _print(lines: Iterable[str]) -> None:
    typer.echo("\n".join(lines))
