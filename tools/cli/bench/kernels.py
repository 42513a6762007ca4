"""The command `packproof bench kernels`."""

import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from packproof.base.errors import UsageError
from packproof.base.names import DEVICES, parse_dtypes, parse_names, require_known, split_names
from packproof.base.signatures import SIGNATURES
from packproof.cli.ending import FAILED, INCONCLUSIVE, SUCCESS, WRONG_CALL, say
from packproof.cli.usage import default_device, seed_option

if TYPE_CHECKING:
    from packproof.bench.kernels import BenchOutcome


def kernels(
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
    options: Annotated[
        str | None,
        typer.Option(
            help="options of the op, such as activation=none  [default: as models use it, less what a target does not "
            "take]"
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="fp64, fp32, bf16 or fp16  [default: cuda bf16, cpu fp32]")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda  [default: cuda if available]")] = None,
    threads: Annotated[
        int | None, typer.Option(help="threads that torch computes with on a CPU  [default: 1]", min=1)
    ] = None,
    json: Annotated[str | None, typer.Option(help="write the results to this file")] = None,
    compare: Annotated[
        str | None,
        typer.Option(help="a file written by --json with the same options; exit 1 if something is slower now"),
    ] = None,
    sweep: Annotated[str | None, typer.Option(help="series of layouts: tokens, sequences or longest")] = None,
    plot: Annotated[str | None, typer.Option(help="draw the sweep to this .png or .svg file")] = None,
    seed: Annotated[int, seed_option("another seed draws other tensors")] = 0,
) -> int:
    """Time kernels next to their peers. One that fails a quick check at the timed sizes gets a verdict and no time.

    On a CPU only the references and the checks are timed: kernels are interpreted there, which does not show their
    speed.

    \b
    packproof bench
    packproof bench --op ssd --against mamba_ssm:ssd --layout L2 --json ssd.json
    packproof bench my_kernels:conv --op causal_conv1d --against reference
    packproof bench my_kernels:conv --lengths 5,0,700 --sizes d=256,w=4
    packproof bench --op rope --sweep sequences --plot rope.svg
    packproof bench --op ssd --layout L2,L4 --compare ssd.json
    packproof bench judged.py:conv --op causal_conv1d --options activation=none

    Exit code 1 also if --compare finds a row slower than the noise of both runs allows, or a target is incorrect; 4 if
    the noise leaves a row open.
    """
    layout_names = parse_names(layout, "--layout")
    full_dtype = _parse_dtype(dtype)
    if device is not None:
        require_known("device", device, DEVICES)
    if op is not None and ":" not in op:
        require_known("op", op, SIGNATURES)

    from packproof.bench.kernels import (  # noqa: PLC0415
        BenchRequest,
        Outputs,
        choose_layouts,
        options_from_text,
        run_command,
        sizes_from_text,
    )

    run_device = device or default_device()
    request = BenchRequest(
        layouts=choose_layouts(
            run_device, names=layout_names, lengths=lengths, file=lengths_file, sweep=sweep, tokens=tokens, seed=seed
        ),
        targets=tuple(targets or ()),
        op=op,
        baselines=None if against is None else tuple(split_names(against)),
        sizes=sizes_from_text(sizes) if sizes is not None else {},
        inputs=None if inputs is None else tuple(split_names(inputs)),
        options=options_from_text(options) if options is not None else {},
        dtype=full_dtype or ("bfloat16" if run_device == "cuda" else "float32"),
        device=run_device,
        threads=threads,
        seed=seed,
    )
    outputs = Outputs(json, compare, plot, sweep, shlex.join(["packproof", *sys.argv[1:]]))
    return _exit_code(run_command(request, outputs, typer.echo))


def _parse_dtype(dtype: str | None) -> str | None:
    """The full name of the only dtype. Raises UsageError for several."""
    names = parse_dtypes([dtype]) if dtype is not None else None
    if names and len(names) > 1:
        raise UsageError(f"--dtype: {dtype!r} names {len(names)} dtypes; a bench has one, so run one for each")
    return names[0] if names else None


def _exit_code(outcome: "BenchOutcome") -> int:
    if outcome.incorrect or (outcome.comparison and outcome.comparison.regressions):
        return FAILED
    if outcome.noisy or (outcome.comparison and outcome.comparison.undecided):
        return INCONCLUSIVE
    if not outcome.timed_rows:
        return say("nothing could be timed or proven: see the reasons above", WRONG_CALL)
    return SUCCESS
