"""The command line of the museum: `packproof museum` and its `show`, `run`, `rogues`, `alarms` and `compare`."""

import time
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from packproof.harness.cli.ending import FAILED, HELD, INCONCLUSIVE
from packproof.harness.cli.usage import seed_option

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
        from packproof.harness.validation.museum.table import listed  # noqa: PLC0415

        _print(listed(_chosen(None, op, bug_class)))
    return HELD


@app.command()
def show(ids: Annotated[list[str], typer.Argument(metavar="ID...", help="entries")]) -> int:
    """Show an entry: cause, trigger, links, and where the bug is in the source."""
    from packproof.harness.validation.museum.table import shown  # noqa: PLC0415
    from packproof.museum import classes  # noqa: PLC0415

    _print("\n".join(shown(entry, classes())) for entry in _chosen(ids, None, None))
    return HELD


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
    from packproof.harness.engine.request import CheckRequest, validate  # noqa: PLC0415
    from packproof.harness.results.files import replace_text, writable  # noqa: PLC0415
    from packproof.harness.validation.museum.detect import run_entries  # noqa: PLC0415
    from packproof.harness.validation.museum.table import as_json, outcome, summary  # noqa: PLC0415

    where = _device() if device is None else device
    validate(CheckRequest(device=where, profile=profile))
    file = writable(json, "--json") if json is not None else None
    started, done = time.monotonic(), []
    for entry in run_entries(_chosen(ids, op, bug_class), profile=profile, device=where, seed=seed):
        typer.echo(outcome(entry))
        done.append(entry)
    typer.echo(summary(done, time.monotonic() - started))
    if file:
        replace_text(file, as_json(done, profile, where, seed))
    return FAILED if any(c.missed for c in done) else HELD


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
    from packproof.harness.results.names import known  # noqa: PLC0415
    from packproof.harness.validation.museum.rogues import try_rogues  # noqa: PLC0415
    from packproof.museum.rogues import entries  # noqa: PLC0415

    every = entries()
    for name in ids or []:
        known("rogue", name, every, "packproof museum rogues")
    trials = list(try_rogues([every[name] for name in ids or every]))
    for trial in trials:
        reason = trial.rogue.undefended or trial.said.partition("\n")[0]
        expected = trial.as_expected or trial.fate == "not run"
        how = trial.fate if expected else f"{trial.fate.upper()}, not as expected"
        typer.echo(f"{trial.rogue.id:<5} {how:<9} {trial.rogue.title}: {reason}")
    tried = [trial for trial in trials if trial.fate != "not run"]
    seen = sum(trial.fate in ("detected", "reported") for trial in tried)
    undefended = sum(bool(trial.rogue.undefended) for trial in tried)
    absent = f", {len(trials) - len(tried)} not run" if len(tried) < len(trials) else ""
    typer.echo(f"{seen} of {len(trials)} detected or reported, {undefended} not defended against{absent}")
    if not all(trial.as_expected for trial in tried):
        return FAILED
    return HELD if tried else INCONCLUSIVE


@app.command()
def alarms(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="correct kernels; default: all")] = None,
    *,
    seeds: Annotated[int, typer.Option(help="cases per kernel, one seed each", min=1)] = 200,
    json: _Json = None,
) -> int:
    """Check correct kernels by every property, in all dtypes; exit code 1 at a false alarm.

    \b
    packproof museum alarms
    packproof museum alarms scan.own_grid ssd.quadratic --seeds 20
    """
    from packproof.harness.results.files import replace_text, writable  # noqa: PLC0415
    from packproof.harness.results.names import known  # noqa: PLC0415
    from packproof.harness.validation.museum.alarms import judge_controls  # noqa: PLC0415
    from packproof.harness.validation.museum.table import control_line, controls_json, controls_summary  # noqa: PLC0415
    from packproof.museum import controls  # noqa: PLC0415

    everything = controls()
    chosen = [everything[known("correct kernel", i, everything)] for i in ids] if ids else list(everything.values())
    file = writable(json, "--json") if json is not None else None
    started, done = time.monotonic(), []
    for control in judge_controls(chosen, seeds):
        typer.echo(control_line(control))
        done.append(control)
    typer.echo(controls_summary(done, time.monotonic() - started))
    if file:
        replace_text(file, controls_json(done))
    return FAILED if any(a.false for a in done) else HELD


@app.command()
def compare(*, json: _Json = None) -> int:
    """Run the recipes of public test suites on the bugs found in real kernels, and show which ones each detects.

    The layouts are fixed, as in such suites. The recipes: torch's assert_close, a relative root mean square of 0.005,
    and twice the error of the reference in low precision. Takes a few minutes on a CPU.
    """
    from packproof.harness.results.files import replace_text, writable  # noqa: PLC0415
    from packproof.harness.validation.museum.recipes import compare as run_recipes  # noqa: PLC0415
    from packproof.harness.validation.museum.table import compared, compared_json  # noqa: PLC0415
    from packproof.museum import controls, entries  # noqa: PLC0415

    file = writable(json, "--json") if json is not None else None
    found = [entry for entry in entries().values() if entry.links and not entry.needs_gpu]
    done = list(run_recipes([*found, *controls().values()]))
    _print(compared(done))
    if file:
        replace_text(file, compared_json(done))
    return HELD


def _device() -> str:
    import torch  # noqa: PLC0415

    return "cuda" if torch.cuda.is_available() else "cpu"


def _chosen(ids: list[str] | None, op: str | None, bug_class: str | None) -> list[Any]:
    """The entries with these ids, of this op and class. Raises UsageError for an unknown name or an empty selection."""
    from packproof.harness.results.names import known  # noqa: PLC0415
    from packproof.museum import classes, entries  # noqa: PLC0415
    from packproof.refs.errors import UsageError  # noqa: PLC0415
    from packproof.refs.wording import counted  # noqa: PLC0415

    everything = entries()
    if op is not None:
        known("op", op, dict.fromkeys(e.op for e in everything.values()))
    if bug_class is not None:
        known("class", bug_class, classes())
    named = [known("entry", i, everything, "packproof museum") for i in ids] if ids else list(everything)
    found = [e for e in map(everything.__getitem__, named) if op in (None, e.op) and bug_class in (None, e.bug_class)]
    if not found:
        given = {"--op": op, "--class": bug_class}
        asked = " and ".join(f"{option} {value}" for option, value in given.items() if value is not None)
        raise UsageError(f"{asked}: none of {counted(len(named), 'entry')} is of it; leave an option out")
    return found


def _print(lines: Iterable[str]) -> None:
    typer.echo("\n".join(lines))
