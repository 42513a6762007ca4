"""The commands for kernels: `packproof check`, `peers` and `replay`."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from packproof.harness.cli.beside import hand_over, resumable
from packproof.harness.cli.durations import seconds
from packproof.harness.cli.ending import (
    FAILED,
    SUCCESS,
    WRONG_CALL,
    Report,
    Reports,
    exit_code,
    file_reports,
    follow,
    say,
)
from packproof.harness.cli.printing import section
from packproof.harness.cli.usage import seed_option
from packproof.harness.engine.request import CheckRequest, check_names
from packproof.harness.results import events
from packproof.harness.results.module_record import MODULE_KIND, ModuleRecord
from packproof.harness.results.names import parse_dtypes, parse_names, require_known
from packproof.harness.results.replay_file import describe_replay, read_content, read_replay
from packproof.harness.worker import zygote_client
from packproof.harness.worker.privilege import isolation_command
from packproof.harness.worker.settled import fast_imports
from packproof.properties.cases.domain import Domain
from packproof.properties.stopwatch import add_seconds
from packproof.refs.errors import UsageError
from packproof.refs.signatures import SIGNATURES


@resumable
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
    seed: Annotated[int, seed_option("another seed draws other examples")] = 0,
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
    timeout: Annotated[
        float | None, typer.Option(help="seconds that one kernel call may take", min=0.001, max=86_400)
    ] = None,
    forward_only: Annotated[bool, typer.Option("--forward-only", help="check no gradients")] = False,
    draw_configs: Annotated[
        bool,
        typer.Option(
            "--draw-configs",
            help="draw a configuration of an autotuned Triton kernel for each kind of call, without timing, and take "
            "the next one in each further case: faster on a GPU, and checks more configurations",
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
    compiled: Annotated[
        str | None,
        typer.Option(
            help="what forms of packproof's own kernels took when they were compiled, such as data/compiled.json: only "
            "what has changed since is compiled, and a sample of the rest, which has to agree"
        ),
    ] = None,
    expected_failures: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="TOML file of known failures, by target, property and dtype: they do not fail the run; one that no "
            "longer occurs does, until its entry is removed",
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
    packproof check my_kernels:delta --op gated_delta_rule --expected-failures expected.toml
    """
    start = time.perf_counter()
    request = _make_request(
        device,
        op,
        isolate=isolate,
        target=target,
        dtypes=parse_dtypes(dtype),
        properties=parse_names(property, "--property"),
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
        compiled=compiled,
        expected_failures=expected_failures,
    )
    with fast_imports():
        from packproof.harness.engine.check import run_check  # noqa: PLC0415
        from packproof.harness.reports.terminal import TerminalReport  # noqa: PLC0415

    add_seconds("start", time.perf_counter() - start)
    reports: list[Report] = [TerminalReport(timings=timings), *file_reports(json=json, junit=junit, html=html)]
    return exit_code(follow(run_check(request), reports))


@resumable
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
    seed: Annotated[int, seed_option("another seed draws other examples")] = 0,
    max_time: Annotated[str | None, typer.Option(help="time that the run may take, as for `packproof check`")] = None,
    json: Annotated[str | None, typer.Option(help="write the scoreboard to this file")] = None,
    markdown: Annotated[str | None, typer.Option(help="write a page with the scoreboard to this file")] = None,
    html: Annotated[str | None, typer.Option(help="write an HTML report to this file")] = None,
    from_json: Annotated[
        str | None,
        typer.Option("--from", help="make the page from files of --json, and run nothing; a later one replaces peers"),
    ] = None,
) -> int:
    """Check the third-party kernels that are installed, and write one scoreboard.

    Properties that they do not promise are checked too, and marked as such. Exit code 0 if any peer could be judged,
    whatever was found.

    \b
    packproof peers
    packproof peers mamba_ssm:ssd causal_conv1d:causal_conv1d --markdown peers.md --json peers.json
    packproof peers --op attention --device cpu
    packproof peers --from data/peers.json --markdown docs/peers_board.md
    packproof peers --from data/peers.json,fla.json --json data/peers.json --markdown docs/peers_board.md
    """
    if from_json:
        return _write_peer_page(from_json.split(","), markdown, json)
    request = _make_request(
        device,
        op,
        dtypes=parse_dtypes(dtype),
        properties=parse_names(property, "--property"),
        profile=profile,
        seed=seed,
        max_time=None if max_time is None else seconds(max_time, "--max-time"),
    )
    with fast_imports():
        from packproof.harness.peers.report import PeersReport  # noqa: PLC0415
        from packproof.harness.peers.run import check_peers, open_peers  # noqa: PLC0415

    entries = open_peers(request, names or [])
    if not any(entry.targets for entry in entries):
        reasons = "; ".join(f"{entry.peer.name}: {entry.reason}" for entry in entries)
        return say(f"no peer can be judged here: {reasons or 'none computes this op'}", WRONG_CALL)
    reports: list[Report] = [PeersReport(entries, markdown=markdown, json=json)]
    reports += file_reports(html=html)
    code = exit_code(follow(check_peers(request, entries), reports))
    return SUCCESS if code == FAILED else code


def _write_peer_page(paths: Sequence[str], markdown: str | None, json: str | None) -> int:
    with fast_imports():
        from packproof.harness.peers.board import as_json, merge_boards, read_board  # noqa: PLC0415
        from packproof.harness.peers.page import as_markdown  # noqa: PLC0415
        from packproof.harness.results.files import replace_text, writable_path  # noqa: PLC0415

    board = merge_boards([read_board(path) for path in paths])
    if json:
        replace_text(writable_path(json, "--json"), as_json(board))
    if markdown:
        replace_text(writable_path(markdown, "--markdown"), as_markdown(board))
    if not (json or markdown):
        typer.echo(as_markdown(board), nl=False)
    return SUCCESS


@resumable
def replay(
    file: Annotated[str, typer.Argument(help="a replay file that `packproof check` or `packproof model` wrote")],
    *,
    map: Annotated[bool, typer.Option("--map", help="show the error map and the leak map")] = False,  # noqa: A002
    html: Annotated[str | None, typer.Option(help="write an HTML report to this file")] = None,
    show: Annotated[bool, typer.Option("--show", help="print what the file holds, and run nothing")] = False,
) -> int:
    """Run one failing case again, here or on another machine: fixed (exit 0), still failing (1) or not applicable (2).

    \b
    packproof replay .packproof/ssd-packing-5e1c.json
    packproof replay .packproof/ssd-packing-5e1c.json --map
    packproof replay .packproof/ssd-packing-5e1c.json --show
    """
    data = read_content(Path(file))
    module_record = ModuleRecord.from_json(data, Path(file)) if data.get("kind") == MODULE_KIND else None
    kernel_record = {} if module_record else read_replay(Path(file))
    if show:
        section(file, module_record.describe() if module_record else describe_replay(kernel_record))
        return SUCCESS

    hand_over()
    if kernel_record:
        _start_torch(kernel_record["device"])
    with fast_imports():
        from packproof.harness.modules.replay import replay as run_replay  # noqa: PLC0415
        from packproof.harness.results.map_text import evidence_lines  # noqa: PLC0415

    reports = Reports(file_reports(html=html))
    outcome = run_replay(file, maps=map or html is not None)
    typer.echo(outcome.text)
    verdict = outcome.verdict
    if map and verdict.failure and verdict.failure.evidence:
        typer.echo("\n" + "\n".join(evidence_lines(verdict.failure.evidence)))
    reports.send(events.RunStarted((verdict.cell,), "replay", 0, (f"only the case of {file} was run",)))
    return exit_code(reports.finish(events.RunFinished((verdict,), verdict.seconds)))


def _make_request(device: str | None, op: str | None, *, isolate: bool = False, **settings: Any) -> CheckRequest:
    """Make the request; without a device it is cuda if available. Names are checked before torch is imported."""
    if op is not None and ":" not in op:
        require_known("op", op, SIGNATURES)
    check_names(request := CheckRequest(op=op, device="cpu" if device is None else device, **settings))
    return replace(request, device=_start_torch(device, isolate=isolate, several_kernels=request.target is None))


def _start_torch(device: str | None, *, isolate: bool = False, several_kernels: bool = False) -> str:
    """Import torch, fix the process from which kernels are forked, and return the device.

    device: None for cuda if available, else cpu.
    isolate: whether kernels run under bubblewrap.
    several_kernels: whether the run checks more than one kernel.
    """
    hand_over()
    with fast_imports():
        import torch  # noqa: PLC0415

    selected_device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if isolate:
        _isolate(selected_device)
    else:  # late: several workers use torch.compile; one kernel on a CPU is compiled in one dtype only
        zygote_client.settle_early_zygote(
            interpreted=selected_device == "cpu", preload_compiler=several_kernels or selected_device != "cpu"
        )
    return selected_device


def _isolate(device: str) -> None:
    if device != "cpu":
        raise UsageError(f"--isolate: no GPU can be reached from inside, and device is {device}; use --device cpu")
    zygote_client.close_early_zygote()
    zygote_client.isolate_zygotes(isolation_command())
