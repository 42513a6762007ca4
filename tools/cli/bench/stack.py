"""The command `packproof bench stack`."""

import shlex
import sys
from typing import Annotated

import typer

from packproof.base.names import DEVICES, parse_names, require_known
from packproof.bench import stacks
from packproof.cli.ending import FAILED, SUCCESS, WRONG_CALL, say
from packproof.cli.usage import default_device, seed_option


def stack(
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(stacks.SHAPES)}; comma-separated  [default: on cuda both 1.4b, on cpu tiny]"),
    ] = None,
    modes: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(stacks.MODES)}; comma-separated  [default: all]")
    ] = None,
    steps: Annotated[int, typer.Option(help="training steps to time", min=1)] = 3,
    packs: Annotated[int, typer.Option(help="packs of documents in a step", min=1)] = 4,
    tokens: Annotated[
        int | None,
        typer.Option(
            help=f"tokens of a pack  [default: cuda {stacks.CAPACITY['cuda']}, cpu {stacks.CAPACITY['cpu']}]",
            min=1,
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda  [default: cuda if available]")] = None,
    json: Annotated[str | None, typer.Option(help="write the results to this file")] = None,
    seed: Annotated[int, seed_option("another seed draws other tensors")] = 0,
) -> int:
    """Time training steps of whole stacks of Mamba blocks: single documents, padded and packed.

    \b
    packproof bench stack --json stack.json
    packproof bench stack --model mamba2-1.4b --modes single,packed --tokens 8192

    Exit code 1 if the loss of a mode is not that of one document at a time.
    """
    model_names = parse_names(model, "--model")
    mode_names = parse_names(modes, "--modes")
    if device is not None:
        require_known("device", device, DEVICES)
    selected_modes = stacks.modes(mode_names)
    stacks.models(model_names, device or "cuda")  # a wrong name is refused before torch is imported

    from packproof.bench.stacks import StacksFile, StacksReport, StacksRequest, run_stacks  # noqa: PLC0415

    run_device = device or default_device()
    models = stacks.models(model_names, run_device)
    capacity = tokens or stacks.CAPACITY[run_device]
    file = StacksFile(json, shlex.join(["packproof", *sys.argv[1:]]))
    report = StacksReport(typer.echo)
    for event in run_stacks(StacksRequest(models, selected_modes, steps, capacity, packs, run_device, seed)):
        file(event)
        report(event)
    if any(row.bad for row in report.rows):
        return FAILED
    if not any(row.status == "timed" for row in report.rows):
        return say("nothing could be timed: see the reasons above", WRONG_CALL)
    return SUCCESS
