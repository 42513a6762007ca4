"""The commands for kernels: `packproof check`, `contract`, `grade`, `peers` and `replay`."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from packproof.base.errors import UsageError
from packproof.base.names import DEVICES, require_known, split_names
from packproof.base.signatures import SIGNATURES
from packproof.base.stopwatch import add_seconds
from packproof.cli.ending import (
    FAILED,
    INCONCLUSIVE,
    INTERNAL_ERROR,
    SUCCESS,
    WRONG_CALL,
    Report,
    Reports,
    exit_code,
    file_reports,
    follow,
    say,
)
from packproof.cli.printing import section
from packproof.cli.request_options import COMMAND_OPTIONS, request_from, request_options
from packproof.harness.check import CheckRequest
from packproof.harness.process import set_isolation
from packproof.harness.process.start import fast_imports, hand_over, resumable, settle_early_zygote
from packproof.harness.report import RunFinished, RunStarted
from packproof.harness.report.replay_files import MODULE_KIND, ModuleRecord, describe_replay, read_content, read_replay
from packproof.properties.contracts import ContractFile

_GRADE_CODES = {"passed": SUCCESS, "failed": FAILED, "inconclusive": INCONCLUSIVE, "error": INTERNAL_ERROR}


@resumable
@request_options(*COMMAND_OPTIONS, before={"sanitizer": "isolate"})
def check(
    *,
    isolate: Annotated[
        bool | None,
        typer.Option(
            "--isolate/--no-isolate",
            help="run the kernel within all walls or not at all, or within none; by default those the system allows",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print failures and the last line, no more")] = False,
    timings: Annotated[bool, typer.Option("--timings", help="show where the time went")] = False,
    json: Annotated[str | None, typer.Option(help="write the results to this file")] = None,
    junit: Annotated[str | None, typer.Option(help="write JUnit XML to this file")] = None,
    html: Annotated[str | None, typer.Option(help="write an HTML report to this file")] = None,
    **options: Any,
) -> int:
    """Check a kernel: every property at every dtype, with the smallest layout that breaks each one that fails.

    \b
    packproof check
    packproof check my_kernels:conv --op causal_conv1d
    packproof check src/scan.py:scan --op selective_scan --dtype bf16,fp32
    packproof check my_kernels:rope --op rope --profile quick --json results.json
    packproof check my_kernels:attend --op attention --domain 'k in (64, 128)'
    packproof check mamba_ssm:ssd
    packproof check my_kernels:conv --op causal_conv1d --expected-failures e.toml
    """
    start = time.perf_counter()
    request = _make_request(options, isolate=isolate)
    with fast_imports():
        from packproof.harness.check import run_check  # noqa: PLC0415
        from packproof.harness.report.formats import TerminalReport  # noqa: PLC0415

    add_seconds("start", time.perf_counter() - start)
    reports: list[Report] = [
        TerminalReport(timings=timings, quiet=quiet),
        *file_reports(json=json, junit=junit, html=html),
    ]
    return exit_code(follow(run_check(request), reports))


def contract(op: Annotated[str, typer.Argument(help="the op that the kernels compute; see `packproof list`")]) -> int:
    """Print the default contract of an op as JSON: all of its calls, dtypes and gradients, in its usual error budget.

    \b
    packproof contract causal_conv1d > conv.json
    packproof check kernel.py:conv --contract conv.json
    """
    require_known("op", op, SIGNATURES, "packproof list")
    with fast_imports():
        from packproof.properties.contracts import Contract, contract_text  # noqa: PLC0415
        from packproof.properties.ops import OPS  # noqa: PLC0415  (torch)

    typer.echo(contract_text(Contract.for_op(OPS[op])), nl=False)
    return SUCCESS


@resumable
def grade(
    submission: Annotated[
        str | None, typer.Argument(help="path/file.py:function or package.module:function; with --problem a file")
    ] = None,
    *,
    task: Annotated[
        str | None, typer.Option(help="a task of packproof's set, in place of a contract; alone it prints its contract")
    ] = None,
    tasks: Annotated[bool, typer.Option("--tasks", help="list the tasks of packproof's set")] = False,
    contract: Annotated[
        str | None, typer.Option(metavar="FILE", help="JSON file that fixes the terms, as for `packproof check`")
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="a problem in the form of KernelBot (its folder), KernelBench or flashinfer-bench (its file)",
        ),
    ] = None,
    secret: Annotated[
        str | None, typer.Option(help="what the hidden cases are drawn with, beside the submission  [default: drawn]")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda  [default: cuda if available]")] = None,
    peers: Annotated[str | None, typer.Option(help="kernels to time beside it, by target; comma-separated")] = None,
    timed: Annotated[
        bool, typer.Option("--timed/--untimed", help="untimed, a correct submission has half of the reward")
    ] = True,
    isolate: Annotated[
        bool, typer.Option("--isolate/--no-isolate", help="run it within all walls or not at all, or within none")
    ] = True,
    json: Annotated[str | None, typer.Option(help="write the grade to this file")] = None,
) -> int:
    """Grade a kernel that was handed in: a verdict, times at hidden sizes and layouts, and a reward in [0, 1].

    \b
    packproof grade submission.py:conv --contract conv.json
    packproof grade submission.py:conv --contract conv.json --secret "$SECRET" --json grade.json
    packproof grade submission.py:conv --contract conv.json --peers causal_conv1d:conv
    packproof grade submission.py --problem problems/conv --contract conv.json
    packproof grade --tasks
    packproof grade submission.py:scan --task ssd-backward-hard
    """
    require_known("device", device or "cpu", DEVICES)
    if tasks or submission is None:
        return _show_tasks(task, listed=tasks)
    if contract is None and task is None:
        raise UsageError("--contract: a grade needs one; `packproof contract OP > FILE` writes it for an op")
    terms = ContractFile.read(contract) if contract else None
    selected_device = _start_torch(device, isolate=isolate)
    with fast_imports():
        from packproof.base.files import replace_text, writable_path  # noqa: PLC0415
        from packproof.grading import GradeRequest, fixed, grade_text, run_grade, summary_lines, terms_of_grade  # noqa: PLC0415
        from packproof.harness.report.formats import TerminalReport  # noqa: PLC0415

    file = writable_path(json, "--json") if json else None
    names = tuple(split_names([peers] if peers else None))
    terms = terms_of_grade(terms, task)
    fixed_submission = fixed(submission, terms, problem)
    request = GradeRequest(fixed_submission, terms, secret, selected_device, names, timed=timed, isolate=isolate)
    result = run_grade(request, lambda events: follow(events, [TerminalReport(quiet=True)]))
    if file:
        replace_text(file, grade_text(result))
    typer.echo("\n".join(["", *summary_lines(result)]))
    return _GRADE_CODES[result.verdict]


def _show_tasks(name: str | None, *, listed: bool) -> int:
    """Print all tasks, or the contract of one."""
    if not listed and name is None:
        raise UsageError("SUBMISSION: a grade needs one, such as path/file.py:function; --tasks lists problems")
    hand_over()
    with fast_imports():
        from packproof.grading import task_lines  # noqa: PLC0415

    typer.echo("\n".join(task_lines(name)))
    return SUCCESS


@resumable
@request_options(
    *("op", "device", "dtypes", "properties", "profile", "seed", "max_time"),
    helps={
        "op": "only peers that compute this op",
        "properties": "only these properties; comma-separated",
        "max_time": "time that the run may take, as for `packproof check`",
    },
)
def peers(
    *,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="peers as `packproof list` names them; default: all")
    ] = None,
    json: Annotated[str | None, typer.Option(help="write the scoreboard to this file")] = None,
    markdown: Annotated[str | None, typer.Option(help="write a page with the scoreboard to this file")] = None,
    html: Annotated[str | None, typer.Option(help="write an HTML report to this file")] = None,
    from_json: Annotated[
        str | None,
        typer.Option("--from", help="make the page from files of --json, and run nothing; a later one replaces peers"),
    ] = None,
    **options: Any,
) -> int:
    """Check the third-party kernels that are installed, and write one scoreboard.

    Properties that they do not promise are checked too, and marked as such. Exit code 0 if any peer could be judged,
    whatever was found.

    \b
    packproof peers
    packproof peers mamba_ssm:ssd fla:ssd --markdown peers.md --json peers.json
    packproof peers --op attention --device cpu
    packproof peers --from data/peers.json --markdown docs/peers_board.md
    packproof peers --from data/peers.json,fla.json --json data/peers.json
    """
    if from_json:
        return _write_peer_page(from_json.split(","), markdown, json)
    request = _make_request(options)
    with fast_imports():
        from packproof.proof.peers import PeersReport, check_peers, open_peers  # noqa: PLC0415

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
        from packproof.base.files import replace_text, writable_path  # noqa: PLC0415
        from packproof.proof.peers import as_json, as_markdown, merge_boards, read_board  # noqa: PLC0415

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
    target: Annotated[
        str | None, typer.Option(help="run this kernel or module instead of the one in the file; named as for a check")
    ] = None,
    map: Annotated[bool, typer.Option("--map", help="show the error map and the leak map")] = False,  # noqa: A002
    html: Annotated[str | None, typer.Option(help="write an HTML report to this file")] = None,
    show: Annotated[bool, typer.Option("--show", help="print what the file holds, and run nothing")] = False,
) -> int:
    """Run one failing case again, here or on another machine: fixed (exit 0), still failing (1) or not applicable (2).

    \b
    packproof replay .packproof/ssd-packing-5e1c.json
    packproof replay .packproof/ssd-packing-5e1c.json --target my_kernels:scan
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
        from packproof.harness.report.maps import evidence_lines  # noqa: PLC0415
        from packproof.models import replay as run_replay  # noqa: PLC0415

    reports = Reports(file_reports(html=html))
    outcome = run_replay(file, target=target, maps=map or html is not None)
    typer.echo(outcome.text)
    verdict = outcome.verdict
    if map and verdict.failure and verdict.failure.evidence:
        typer.echo("\n" + "\n".join(evidence_lines(verdict.failure.evidence)))
    reports.send(RunStarted((verdict.cell,), "replay", 0, (f"only the case of {file} was run",)))
    return exit_code(reports.finish(RunFinished((verdict,), verdict.seconds)))


def _make_request(options: Mapping[str, Any], *, isolate: bool | None = None) -> CheckRequest:
    """Make the request; without a device it is cuda if available. It is checked before torch is imported."""
    request = request_from(options)
    if isolate and request.sanitizer is not None:
        raise UsageError(
            f"--isolate: compute-sanitizer runs kernels outside of the walls, and --sanitizer is {request.sanitizer}; "
            "leave one of them out"
        )
    if request.every_configuration and "reference" not in (request.properties or ["reference"]):
        raise UsageError(
            f"--every-configuration: configurations are judged by the property reference, and --property is "
            f"{','.join(map(str, request.properties or ()))}; add it"
        )
    device = _start_torch(options["device"], isolate=isolate, several_kernels=request.target is None)
    return replace(request, device=device)


def _start_torch(device: str | None, *, isolate: bool | None = None, several_kernels: bool = False) -> str:
    """Import torch, fix the process from which kernels are forked, and return the device.

    device: None for cuda if available, else cpu.
    isolate: whether kernels run within all walls; None for those that the system allows.
    several_kernels: whether the run checks more than one kernel.
    """
    hand_over()
    with fast_imports():
        import torch  # noqa: PLC0415

    selected_device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if isolate is not None:
        set_isolation("required" if isolate else "none")
    # late: several workers use torch.compile; one kernel on a CPU is compiled in one dtype only
    settle_early_zygote(
        interpreted=selected_device == "cpu", preload_compiler=several_kernels or selected_device != "cpu"
    )
    return selected_device
