"""The command line of the bench: `packproof bench`, and `table` for what it has written."""

import shlex
import sys
from typing import Annotated

import typer

from packproof.harness.cli.ending import FAILED, HELD, INCONCLUSIVE, WRONG_CALL, say
from packproof.harness.results.names import DEVICES, dtypes, known, listed, some
from packproof.refs.errors import UsageError
from packproof.refs.signatures import SIGNATURES


def bench(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help="package.module:function or path/file.py:function; without it, packproof's own kernels; or packing: "
            "the packers of packproof.refs; or fp8: errors of attention in 8 bits",
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
    seed: Annotated[int, typer.Option(help="another seed draws other tensors")] = 0,
) -> int:
    """Time kernels next to their peers. One that fails a quick check at the timed sizes gets a verdict and no time.

    On a CPU only the references and the checks are timed: kernels are interpreted there, which does not show their
    speed.

    \b
    packproof bench
    packproof bench --op ssd --against mamba_ssm:ssd --layout L2,L4 --json ssd.json
    packproof bench packing
    packproof bench fp8 --tokens 4096
    packproof bench my_kernels:conv --op causal_conv1d --against reference --lengths 5,0,700 --sizes d=256,w=4
    packproof bench --op rope --sweep sequences --plot rope.svg
    packproof bench --op ssd --layout L2,L4 --compare ssd.json
    packproof bench judged.py:conv --op causal_conv1d --options activation=none

    Exit code 1 also if --compare finds a row slower than the noise of both runs allows, or a target is incorrect; 4 if
    the noise leaves a row open.
    """
    if targets == ["packing"]:
        return _packing(lengths_file, tokens, seed)
    if targets == ["fp8"]:
        return _fp8(tokens, seed)
    names = some(layout, "--layout")
    given = dtypes([dtype]) if dtype is not None else None
    if given and len(given) > 1:
        raise UsageError(f"--dtype: {dtype!r} names {len(given)} dtypes; a bench has one, so run one for each")
    if device is not None:
        known("device", device, DEVICES)
    if op is not None and ":" not in op:
        known("op", op, SIGNATURES)

    import torch  # noqa: PLC0415

    from packproof.harness.bench.bench import BenchRequest  # noqa: PLC0415
    from packproof.harness.bench.command import Outputs, choose_layouts, run_command  # noqa: PLC0415
    from packproof.harness.bench.settings import options_from_text, sizes_from_text  # noqa: PLC0415

    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    chosen = {"names": names, "lengths": lengths, "file": lengths_file, "sweep": sweep}
    request = BenchRequest(
        layouts=choose_layouts(where, **chosen, tokens=tokens, seed=seed),  # type: ignore[arg-type]
        targets=tuple(targets or ()),
        op=op,
        against=None if against is None else tuple(listed(against)),
        sizes=sizes_from_text(sizes) if sizes is not None else {},
        inputs=None if inputs is None else tuple(listed(inputs)),
        options=options_from_text(options) if options is not None else {},
        dtype=given[0] if given else "bfloat16" if where == "cuda" else "float32",
        device=where,
        threads=threads,
        seed=seed,
    )
    outcome = run_command(
        request, Outputs(json, compare, plot, sweep, shlex.join(["packproof", *sys.argv[1:]])), typer.echo
    )
    if outcome.wrong or (outcome.comparison and outcome.comparison.slower):
        return FAILED
    if outcome.noisy or (outcome.comparison and outcome.comparison.undecided):
        return INCONCLUSIVE
    if not outcome.timed:
        return say("nothing could be timed or proven: see the reasons above", WRONG_CALL)
    return HELD


def _packing(file: str | None, capacity: int | None, seed: int) -> int:
    """The table of the packers, for documents as they come or the lengths of a file."""
    from packproof.harness.bench.layouts import from_file  # noqa: PLC0415
    from packproof.packs.measure import CAPACITY, documents, table  # noqa: PLC0415

    for line in table(from_file(file).lengths if file else documents(seed=seed), capacity or CAPACITY):
        typer.echo(line)
    return HELD


def _fp8(tokens: int | None, seed: int) -> int:
    """The table of attention's errors on operands of 8 bits."""
    from packproof.properties.low_precision import TOKENS  # noqa: PLC0415
    from packproof.properties.low_precision import table as lines  # noqa: PLC0415

    for line in lines(tokens or TOKENS, seed):
        typer.echo(line)
    return HELD


def table(file: Annotated[str, typer.Argument(help="a file written by `packproof bench --json`")]) -> int:
    """Print the results of a bench as a Markdown table, with its command, GPU and versions.

    \b
    packproof table bench.json
    """
    from packproof.harness.bench.markdown import table as markdown  # noqa: PLC0415

    typer.echo(markdown(file))
    return HELD
