"""The command line: `packproof check`, `peers`, `replay`, `bench`, `museum`, `mutate` and `list`."""

import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from packproof.harness.cli import museum, mutate
from packproof.harness.cli.printing import print_safely
from packproof.harness.results import events
from packproof.harness.results.files import Unwritten
from packproof.harness.results.names import dtype as dtype_name
from packproof.harness.results.text import printable
from packproof.properties.case import SHORT
from packproof.refs.errors import PackproofError, UsageError

HELD, FAILED, WRONG_CALL, OWN_FAULT, INCONCLUSIVE, INTERRUPTED = 0, 1, 2, 3, 4, 130

Report = Callable[[events.Event], None]

_CommandLineError: Any = typer.BadParameter.__mro__[2]  # ClickException, which typer imports from different places

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(museum.app, name="museum")
app.command()(mutate.mutate)


@app.callback()
def about() -> None:
    """Prove that a kernel for packed variable-length sequences computes each sequence as if it were alone.

    Exit codes: 0 every property held, 1 a property failed, 2 the call was wrong, 3 packproof itself failed, 4 no
    property failed, but not everything could be judged.
    """


@app.command()
def check(
    target: Annotated[
        str | None,
        typer.Argument(
            help="package.module:function, path/file.py:function, or a peer as `packproof list` names it; without it, "
            "packproof's own kernels"
        ),
    ] = None,
    *,
    op: Annotated[str | None, typer.Option(help="the op that the target computes; see `packproof list`")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda  [default: cuda if available]")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="fp64, fp32, bf16, fp16; comma-separated")] = None,
    property: Annotated[  # noqa: A002
        list[str] | None, typer.Option(help="only these properties, or your own as module:NAME; comma-separated")
    ] = None,
    profile: Annotated[str, typer.Option(help="how many examples: quick, standard or thorough")] = "standard",
    seed: Annotated[int, typer.Option(help="another seed draws other examples")] = 0,
    domain: Annotated[
        list[str] | None,
        typer.Option(
            help="what the kernel supports, such as 'k in (64, 128)', 'd % 8 == 0', 'tokens % 16 == 0', 'length > 0' "
            "or 'dtype == bf16'; separate several by ; or repeat  [default: declared, else inferred from its refusals]"
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="a property that does not hold fails the run even if it is not promised")
    ] = False,
    exitfirst: Annotated[bool, typer.Option("--exitfirst", "-x", help="end the run at the first failure")] = False,
    max_time: Annotated[
        str | None,
        typer.Option(
            help="time that the run may take, such as 60s or 2m: the most telling cases come first, and what is not "
            "reached is inconclusive"
        ),
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="seconds that one kernel call may take", min=0.001)] = None,
    forward_only: Annotated[bool, typer.Option("--forward-only", help="check no gradients")] = False,
    draw_configs: Annotated[
        bool,
        typer.Option(
            "--draw-configs",
            help="draw a random configuration of an autotuned Triton kernel for each kind of call, without timing: "
            "faster, and checks more configurations",
        ),
    ] = False,
    isolate: Annotated[
        bool,
        typer.Option(
            "--isolate",
            help="run the kernel under bubblewrap: no network, no other processes, nowhere to write; CPU only",
        ),
    ] = False,
    sanitizer: Annotated[
        str | None,
        typer.Option(
            help="run the golden cases under compute-sanitizer, not the properties: memcheck, racecheck or initcheck"
        ),
    ] = None,
    timings: Annotated[bool, typer.Option("--timings", help="show where the time went")] = False,
    json: Annotated[str | None, typer.Option(help="write the results to this file")] = None,
    junit: Annotated[str | None, typer.Option(help="write JUnit XML to this file")] = None,
    html: Annotated[str | None, typer.Option(help="write an HTML report to this file")] = None,
) -> int:
    """Check a kernel: every property at every dtype, with the smallest layout that breaks each one that fails.

    \b
    packproof check
    packproof check my_kernels:conv --op causal_conv1d
    packproof check src/kernels/scan.py:scan --op selective_scan --dtype bf16,fp32 --property packing
    packproof check my_kernels:rope --op rope --profile quick --json results.json
    packproof check my_kernels:attend --op attention --domain 'k in (64, 128); k == v; length > 0'
    packproof check mamba_ssm:ssd
    """
    began = time.perf_counter()
    import torch  # noqa: PLC0415

    from packproof.harness.cli.durations import seconds  # noqa: PLC0415
    from packproof.harness.engine.check import run_check  # noqa: PLC0415
    from packproof.harness.engine.request import CheckRequest  # noqa: PLC0415
    from packproof.harness.reports.html import HtmlReport  # noqa: PLC0415
    from packproof.harness.reports.json_file import JsonReport  # noqa: PLC0415
    from packproof.harness.reports.junit import JunitReport  # noqa: PLC0415
    from packproof.harness.reports.terminal import TerminalReport  # noqa: PLC0415
    from packproof.properties.domain import Domain  # noqa: PLC0415
    from packproof.properties.stopwatch import add  # noqa: PLC0415

    add("start", time.perf_counter() - began)
    request = CheckRequest(
        target=target,
        op=op,
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
        dtypes=tuple(map(dtype_name, _listed(dtype))) or None,
        properties=tuple(_listed(property)) or None,
        profile=profile,
        seed=seed,
        domain=Domain.of(domain or ()).texts,
        strict=strict,
        timeout=timeout,
        forward_only=forward_only,
        draw_configs=draw_configs,
        sanitizer=sanitizer,
        fail_fast=exitfirst,
        max_time=None if max_time is None else seconds(max_time, "--max-time"),
    )
    if isolate:
        _isolate(request.device)
    reports: list[Report] = [TerminalReport(timings=timings)]
    reports += [JsonReport(json)] if json else []
    reports += [JunitReport(junit)] if junit else []
    reports += [HtmlReport(html)] if html else []
    return exit_code(follow(run_check(request), reports))


@app.command()
def peers(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="peers as `packproof list` names them; default: all")
    ] = None,
    *,
    op: Annotated[str | None, typer.Option(help="only peers that compute this op")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda  [default: cuda if available]")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="fp64, fp32, bf16, fp16; comma-separated")] = None,
    property: Annotated[list[str] | None, typer.Option(help="only these properties; comma-separated")] = None,  # noqa: A002
    profile: Annotated[str, typer.Option(help="how many examples: quick, standard or thorough")] = "standard",
    seed: Annotated[int, typer.Option(help="another seed draws other examples")] = 0,
    json: Annotated[str | None, typer.Option(help="write the scoreboard to this file")] = None,
    markdown: Annotated[str | None, typer.Option(help="write the scoreboard and every failure to this file")] = None,
    html: Annotated[str | None, typer.Option(help="write an HTML report to this file")] = None,
) -> int:
    """Check the third-party kernels that are installed, and write one scoreboard.

    Properties that they do not promise are checked too, and marked as such. Exit code 0 if any peer could be judged,
    whatever was found.

    \b
    packproof peers
    packproof peers mamba_ssm:ssd causal_conv1d:causal_conv1d --markdown peers.md --json peers.json
    packproof peers --op attention --device cpu
    """
    import torch  # noqa: PLC0415

    from packproof.harness.engine.request import CheckRequest  # noqa: PLC0415
    from packproof.harness.peers.board import PeersReport, absent  # noqa: PLC0415
    from packproof.harness.peers.run import check_peers, open_peers  # noqa: PLC0415
    from packproof.harness.reports.html import HtmlReport  # noqa: PLC0415

    request = CheckRequest(
        op=op,
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
        dtypes=tuple(map(dtype_name, _listed(dtype))) or None,
        properties=tuple(_listed(property)) or None,
        profile=profile,
        seed=seed,
    )
    entries = open_peers(request, names or [])
    if not any(entry.targets for entry in entries):
        return _say(f"no peer can be judged here: {'; '.join(absent(entries)) or 'none computes this op'}", WRONG_CALL)
    reports: list[Report] = [PeersReport(entries, markdown=markdown, json=json)]
    reports += [HtmlReport(html)] if html else []
    code = exit_code(follow(check_peers(request, entries), reports))
    return HELD if code == FAILED else code


@app.command()
def replay(
    file: Annotated[str, typer.Argument(help="a replay file that `packproof check` wrote")],
    *,
    map: Annotated[bool, typer.Option("--map", help="show the error map and the leak map")] = False,  # noqa: A002
    html: Annotated[str | None, typer.Option(help="write an HTML report to this file")] = None,
) -> int:
    """Run one failing case again, here or on another machine: fixed (exit 0), still failing (1) or not applicable (2).

    \b
    packproof replay .packproof/ssd-packing-5e1c.json
    packproof replay .packproof/ssd-packing-5e1c.json --map
    """
    from packproof.harness.engine.replay import replay as run_replay  # noqa: PLC0415
    from packproof.harness.reports.html import HtmlReport  # noqa: PLC0415
    from packproof.harness.results.map_text import evidence_lines  # noqa: PLC0415

    page = _Reports([HtmlReport(html)] if html else [])
    outcome = run_replay(file, maps=map or html is not None)
    typer.echo(outcome.text)
    verdict = outcome.verdict
    if map and verdict.failure and verdict.failure.evidence:
        typer.echo("\n" + "\n".join(evidence_lines(verdict.failure.evidence)))
    page.send(events.RunStarted((verdict.cell,), "replay", 0, (f"only the case of {file} was run",)))
    return exit_code(page.finish(events.RunFinished((verdict,), verdict.seconds)))


@app.command()
def bench(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help="package.module:function or path/file.py:function; without it, packproof's own kernels",
        ),
    ] = None,
    *,
    op: Annotated[str | None, typer.Option(help="the op of the targets; without targets, the only op to time")] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="compare with reference, or with peers as `packproof list` names them; comma-separated, '' for none  "
            "[default: on cuda every peer, on cpu the reference]"
        ),
    ] = None,
    layout: Annotated[list[str] | None, typer.Option(help="L1, L2, L3, L4; comma-separated")] = None,
    lengths: Annotated[str | None, typer.Option(help="lengths of the sequences, such as 5,0,7")] = None,
    lengths_file: Annotated[str | None, typer.Option(help="a file of lengths: one per line, or a JSON list")] = None,
    tokens: Annotated[
        int | None, typer.Option(help="tokens of a layout or sweep  [default: cuda 65536, cpu 2048]", min=1)
    ] = None,
    sizes: Annotated[str | None, typer.Option(help="sizes of axes, such as d=4096,n=16")] = None,
    inputs: Annotated[list[str] | None, typer.Option(help="optional inputs to pass, such as D,z")] = None,
    dtype: Annotated[str | None, typer.Option(help="fp64, fp32, bf16 or fp16  [default: cuda bf16, cpu fp32]")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda  [default: cuda if available]")] = None,
    json: Annotated[str | None, typer.Option(help="write the results to this file")] = None,
    compare: Annotated[
        str | None, typer.Option(help="a file written by --json; exit 1 if something is slower now")
    ] = None,
    sweep: Annotated[str | None, typer.Option(help="series of layouts: tokens, sequences or longest")] = None,
    plot: Annotated[str | None, typer.Option(help="draw the sweep to this .png or .svg file")] = None,
    seed: Annotated[int, typer.Option(help="another seed draws other tensors")] = 0,
) -> int:
    """Time kernels next to their peers. One that fails a quick check at the timed sizes gets a verdict and no time.

    On a CPU only the references and the checks are timed: kernels are interpreted there, which does not show their
    speed.

    \b
    packproof bench
    packproof bench --op ssd --against mamba_ssm:ssd --layout L2,L4 --json ssd.json
    packproof bench my_kernels:conv --op causal_conv1d --against reference --lengths 5,0,700 --sizes d=256,w=4
    packproof bench --op rope --sweep sequences --plot rope.svg
    packproof bench --compare before.json

    Exit code 1 also if --compare finds a row slower than the noise of both runs allows, or a target is incorrect.
    """
    import torch  # noqa: PLC0415

    from packproof.harness.bench.bench import BenchRequest  # noqa: PLC0415
    from packproof.harness.bench.command import Outputs, choose_layouts, run_command  # noqa: PLC0415
    from packproof.harness.bench.settings import sizes_from_text  # noqa: PLC0415

    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    names = None if layout is None else _listed(layout)
    chosen = {"names": names, "lengths": lengths, "file": lengths_file, "sweep": sweep}
    request = BenchRequest(
        layouts=choose_layouts(where, **chosen, tokens=tokens, seed=seed),  # type: ignore[arg-type]
        targets=tuple(targets or ()),
        op=op,
        against=None if against is None else tuple(_listed(against)),
        sizes=sizes_from_text(sizes) if sizes else {},
        inputs=None if inputs is None else tuple(_listed(inputs)),
        dtype=dtype_name(dtype or ("bf16" if where == "cuda" else "fp32")),
        device=where,
        seed=seed,
    )
    outcome = run_command(
        request, Outputs(json, compare, plot, sweep, shlex.join(["packproof", *sys.argv[1:]])), typer.echo
    )
    if outcome.wrong or (outcome.comparison and outcome.comparison.slower):
        return FAILED
    if not outcome.timed:
        return _say("nothing could be timed or proven: see the reasons above", WRONG_CALL)
    return HELD


@app.command()
def table(file: Annotated[str, typer.Argument(help="a file written by `packproof bench --json`")]) -> int:
    """Print the results of a bench as a Markdown table, with its command, GPU and versions.

    \b
    packproof table bench.json
    """
    from packproof.harness.bench.markdown import table as markdown  # noqa: PLC0415

    typer.echo(markdown(file))
    return HELD


@app.command()
def proof(
    folder: Annotated[str, typer.Argument(help="folder with museum.json, recipes.json, alarms.json and mutants.json")],
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

    from packproof.harness.results.files import replace_text, writable  # noqa: PLC0415
    from packproof.harness.validation.proof_report import markdown, report  # noqa: PLC0415

    files = writable(page, "PAGE"), writable(json, "--json")
    found = report(Path(folder))
    replace_text(files[0], markdown(found, numbers=relpath(json, Path(page).parent)))
    replace_text(files[1], dumps(found, indent=1) + "\n")
    return HELD


@app.command(name="list")
def list_everything() -> int:
    """List the ops with their tensors, the kernels that packproof ships, the peers, properties, profiles and dtypes."""
    from packproof.adapters.registry import PEERS  # noqa: PLC0415
    from packproof.harness.engine.request import PROFILES  # noqa: PLC0415
    from packproof.harness.targets.builtin_kernels import BUILTIN_KERNELS  # noqa: PLC0415
    from packproof.properties.catalogue import PROPERTIES  # noqa: PLC0415
    from packproof.properties.ops import OPS  # noqa: PLC0415

    def section(name: str, rows: dict[str, str]) -> None:
        width = max(map(len, rows)) + 2
        typer.echo(name)
        for key, text in rows.items():
            typer.echo(f"  {key:<{width}}{text}".rstrip())

    def tensors(specs: object) -> str:
        return ", ".join(f"{name}[{spec}]" for name, spec in dict(specs).items())  # type: ignore[call-overload]

    section("ops", {name: f"{tensors(op.inputs)} -> {tensors(op.outputs)}" for name, op in OPS.items()})
    section("kernels", {name: own.target for name, own in BUILTIN_KERNELS.items()})
    section("peers", {peer.name: f"{peer.op}, {_here(peer)}" for peer in PEERS.values()})
    section("properties", {name: law.law for name, law in PROPERTIES.items()})
    section("profiles", dict.fromkeys(PROFILES, ""))
    section("dtypes", {short: name for name, short in SHORT.items()})
    return HELD


def follow(stream: Iterator[events.Event], reports: Sequence[Report]) -> events.RunFinished:
    """Send every event to every report until the run ends, normally, by Ctrl-C or by a bug of packproof."""
    verdicts: list[events.Verdict] = []
    sinks = _Reports(reports)
    start = time.monotonic()
    started = False
    try:
        for event in stream:
            started = True
            if isinstance(event, events.RunFinished):
                return sinks.finish(event)
            if isinstance(event, events.CellFinished):
                verdicts.append(event.verdict)
            sinks.send(event)
        raise RuntimeError("the stream of events ended without RunFinished")
    except KeyboardInterrupt:
        end = events.RunFinished(tuple(verdicts), time.monotonic() - start, interrupted=True)
    except Exception as error:
        if isinstance(error, PackproofError) and not started:
            raise
        traceback.print_exc()
        end = events.RunFinished(tuple(verdicts), time.monotonic() - start, error=_in_one_line(error))
    return sinks.finish(end)


class _Reports:
    """Independent reports: one that cannot be written is dropped, with a message."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self._reports = list(reports)
        self._unwritten, self._error = False, ""

    def send(self, event: events.Event) -> None:
        for report in list(self._reports):
            try:
                report(event)
            except Exception as error:
                self._reports.remove(report)
                if isinstance(error, Unwritten):
                    self._unwritten = True
                    _say(f"a report could not be written: {error}", WRONG_CALL)
                else:
                    traceback.print_exc()
                    self._error = _in_one_line(error)

    def finish(self, end: events.RunFinished) -> events.RunFinished:
        """Send the last event; return it with what happened to the reports."""
        self.send(end)
        return replace(end, unwritten=self._unwritten, error=end.error or self._error)


def exit_code(end: events.RunFinished) -> int:
    """The exit code of a run. If no cell applies to the kernel, nothing was checked: the call was wrong."""
    statuses = {verdict.status for verdict in end.verdicts if verdict.cell.counts}
    refused = any(verdict.refused for verdict in end.verdicts)
    if any(verdict.failed for verdict in end.verdicts):
        return FAILED
    if end.error or any(verdict.status == "error" for verdict in end.verdicts):
        return OWN_FAULT
    if end.unwritten:
        return WRONG_CALL
    if end.interrupted:
        return INTERRUPTED
    if "inconclusive" in statuses or (refused and "passed" not in statuses):
        return INCONCLUSIVE
    return HELD if "passed" in statuses else WRONG_CALL


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code. A wrong one gets one line on stderr."""
    try:
        return int(app(list(arguments) or ["--help"], prog_name="packproof", standalone_mode=False) or 0)
    except PackproofError as error:
        return _say(str(error), WRONG_CALL)
    except (typer.Abort, KeyboardInterrupt):
        return _say("interrupted", INTERRUPTED)
    except Exception as error:
        if isinstance(error, _CommandLineError):
            return _say(error.format_message(), WRONG_CALL)
        traceback.print_exc()
        return _say(f"packproof itself failed: {_in_one_line(error)}", OWN_FAULT)


def main() -> None:
    """The `packproof` command. Its exit code does not depend on who reads its output, or in which encoding."""
    print_safely()
    raise SystemExit(run(sys.argv[1:]))


def _isolate(device: str) -> None:
    from packproof.harness.worker import zygote_client  # noqa: PLC0415
    from packproof.harness.worker.isolation import isolated  # noqa: PLC0415

    if device != "cpu":
        raise UsageError(f"--isolate: no GPU can be reached from inside, and device is {device}; use --device cpu")
    zygote_client.isolate(isolated())


def _say(text: str, code: int) -> int:
    typer.echo(f"packproof: {printable(text)}", err=True)
    return code


def _in_one_line(error: Exception) -> str:
    """Type and first line of an error; stderr has the rest."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _here(peer: Any) -> str:
    """The installed version of a peer, or how to install it."""
    return f"{peer.distributions[0]} {peer.version}" if peer.installed else f"pip install {peer.distributions[0]}"


def _listed(values: list[str] | None) -> list[str]:
    return [name for value in values or [] for name in value.split(",") if name]
