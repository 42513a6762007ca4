"""The command line of the bench: `packproof bench`, and `packproof table` for the results in its files."""

import shlex
import sys
from typing import Annotated

import typer

from packproof.base.errors import UsageError
from packproof.base.names import DEVICES, parse_dtypes, parse_names, require_known, split_names
from packproof.base.signatures import SIGNATURES
from packproof.bench.stacks import shapes
from packproof.cli import ranks as on_ranks
from packproof.cli.ending import FAILED, INCONCLUSIVE, SUCCESS, WRONG_CALL, say
from packproof.cli.usage import seed_option

_OF = {  # the options of each separate bench
    "packing": ("lengths_file", "tokens", "seed"),
    "stack": ("model", "modes", "steps", "packs", "tokens", "device", "json", "seed"),
    "ranks": ("ranks", "simulated", "cases", "seconds", "tokens", "op", "json"),
    "fp8": ("tokens", "seed"),
}
_OF_KERNELS = ("lengths_file", "tokens", "seed", "device", "json", "op")
_ALONE = {name: kind for kind, names in _OF.items() for name in names if name not in _OF_KERNELS}


def bench(
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help="package.module:function or path/file.py:function; without it, packproof's own kernels; packing: the "
            "packers of packproof.refs; stack: training steps of whole stacks of Mamba blocks; ranks: packs cut over "
            "several GPUs; fp8: errors of attention in 8 bits",
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
        int | None,
        typer.Option(
            help="tokens of a layout or sweep, or of a pack  [default: cuda 65536, cpu 2048; pack 4096]", min=1
        ),
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
    model: Annotated[
        list[str] | None, typer.Option(help=f"stack: {', '.join(shapes.SHAPES)}  [default: on cuda 1.4b, on cpu tiny]")
    ] = None,
    modes: Annotated[list[str] | None, typer.Option(help=f"stack: {', '.join(shapes.MODES)}  [default: all]")] = None,
    steps: Annotated[int, typer.Option(help="stack: training steps to time", min=1)] = 3,
    packs: Annotated[int, typer.Option(help="stack: packs of documents in a step", min=1)] = 4,
    ranks: Annotated[
        int | None,
        typer.Option(help="ranks: processes to start  [default: one for each GPU, without any 2]", min=1),
    ] = None,
    simulated: Annotated[
        int | None, typer.Option(help="ranks: so many ranks in this process, without times", min=1)
    ] = None,
    cases: Annotated[
        int | None,
        typer.Option(help="ranks: packs judged of each op and dtype  [default: cuda 50, cpu 5]", min=0),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="ranks: that a rank waits for the others  [default: 60]", min=1.0)
    ] = None,
) -> int:
    """Time kernels next to their peers. One that fails a quick check at the timed sizes gets a verdict and no time.

    On a CPU only the references and the checks are timed: kernels are interpreted there, which does not show their
    speed.

    \b
    packproof bench
    packproof bench --op ssd --against mamba_ssm:ssd --layout L2,L4 --json ssd.json
    packproof bench packing
    packproof bench stack --model mamba2-1.4b --tokens 8192 --json stack.json
    packproof bench ranks --json ranks.json
    packproof bench fp8 --tokens 4096
    packproof bench my_kernels:conv --op causal_conv1d --against reference --lengths 5,0,700 --sizes d=256,w=4
    packproof bench --op rope --sweep sequences --plot rope.svg
    packproof bench --op ssd --layout L2,L4 --compare ssd.json
    packproof bench judged.py:conv --op causal_conv1d --options activation=none

    Exit code 1 also if --compare finds a row slower than the noise of both runs allows, or a target is incorrect; 4 if
    the noise leaves a row open.
    """
    kind = targets[0] if targets in [[name] for name in _OF] else None
    _check_options(context, kind)
    if kind is not None:
        subcommands = {
            "packing": lambda: _packing(lengths_file, tokens, seed),
            "stack": lambda: _stack(
                parse_names(model, "--model"), parse_names(modes, "--modes"), steps, packs, tokens, device, json, seed
            ),
            "ranks": lambda: on_ranks.bench(ranks, simulated, cases, seconds, tokens=tokens, op=op, json=json),
            "fp8": lambda: _fp8(tokens, seed),
        }
        return subcommands[kind]()
    names = parse_names(layout, "--layout")
    dtypes = parse_dtypes([dtype]) if dtype is not None else None
    if dtypes and len(dtypes) > 1:
        raise UsageError(f"--dtype: {dtype!r} names {len(dtypes)} dtypes; a bench has one, so run one for each")
    if device is not None:
        require_known("device", device, DEVICES)
    if op is not None and ":" not in op:
        require_known("op", op, SIGNATURES)

    import torch  # noqa: PLC0415

    from packproof.bench.kernels.bench import BenchRequest  # noqa: PLC0415
    from packproof.bench.kernels.command import Outputs, choose_layouts, run_command  # noqa: PLC0415
    from packproof.bench.kernels.settings import options_from_text, sizes_from_text  # noqa: PLC0415

    run_device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    layout_options = {"names": names, "lengths": lengths, "file": lengths_file, "sweep": sweep}
    request = BenchRequest(
        layouts=choose_layouts(run_device, **layout_options, tokens=tokens, seed=seed),  # type: ignore[arg-type]
        targets=tuple(targets or ()),
        op=op,
        baselines=None if against is None else tuple(split_names(against)),
        sizes=sizes_from_text(sizes) if sizes is not None else {},
        inputs=None if inputs is None else tuple(split_names(inputs)),
        options=options_from_text(options) if options is not None else {},
        dtype=dtypes[0] if dtypes else "bfloat16" if run_device == "cuda" else "float32",
        device=run_device,
        threads=threads,
        seed=seed,
    )
    outcome = run_command(
        request, Outputs(json, compare, plot, sweep, shlex.join(["packproof", *sys.argv[1:]])), typer.echo
    )
    if outcome.incorrect or (outcome.comparison and outcome.comparison.regressions):
        return FAILED
    if outcome.noisy or (outcome.comparison and outcome.comparison.undecided):
        return INCONCLUSIVE
    if not outcome.timed_rows:
        return say("nothing could be timed or proven: see the reasons above", WRONG_CALL)
    return SUCCESS


def _packing(file: str | None, capacity: int | None, seed: int) -> int:
    """Print the table of the packers, for random documents or for the lengths in a file."""
    from packproof.bench.kernels.layouts import from_file  # noqa: PLC0415
    from packproof.bench.packing import CAPACITY, sample_lengths, table_lines  # noqa: PLC0415

    for line in table_lines(from_file(file).lengths if file else sample_lengths(seed=seed), capacity or CAPACITY):
        typer.echo(line)
    return SUCCESS


def _check_options(context: typer.Context, kind: str | None) -> None:
    """Raise UsageError for an option of another kind of bench."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    written_names = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    for name in sorted(written_names - {"targets"}):
        option = f"--{name.replace('_', '-')}"
        if kind is not None and name not in _OF[kind]:
            takes = ", ".join(f"--{other.replace('_', '-')}" for other in _OF[kind])
            raise UsageError(f"{option}: is no option of `packproof bench {kind}`, which has {takes}")
        if kind is None and name in _ALONE:
            raise UsageError(f"{option}: is an option of `packproof bench {_ALONE[name]}` alone")


def _stack(
    names: tuple[str, ...] | None,
    modes: tuple[str, ...] | None,
    steps: int,
    packs: int,
    capacity: int | None,
    device: str | None,
    json: str | None,
    seed: int,
) -> int:
    """Time training steps of whole stacks, in each mode."""
    if device is not None:
        require_known("device", device, DEVICES)
    selected_modes = shapes.modes(modes)
    shapes.models(names, device or "cuda")  # a wrong name is refused before torch is imported

    import torch  # noqa: PLC0415

    from packproof.bench.stacks.report import StacksFile, StacksReport  # noqa: PLC0415
    from packproof.bench.stacks.run import StacksRequest, run_stacks  # noqa: PLC0415

    run_device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    rows = capacity or shapes.CAPACITY[run_device]
    request = StacksRequest(shapes.models(names, run_device), selected_modes, steps, rows, packs, run_device, seed)
    file = StacksFile(json, shlex.join(["packproof", *sys.argv[1:]]))
    report = StacksReport(typer.echo)
    for event in run_stacks(request):
        file(event)
        report(event)
    if any(row.bad for row in report.rows):
        return FAILED
    if not any(row.status == "timed" for row in report.rows):
        return say("nothing could be timed: see the reasons above", WRONG_CALL)
    return SUCCESS


def _fp8(tokens: int | None, seed: int) -> int:
    """Print the table of attention's errors on 8-bit operands."""
    from packproof.bench.fp8 import TOKENS  # noqa: PLC0415
    from packproof.bench.fp8 import table_lines as lines  # noqa: PLC0415

    for line in lines(tokens or TOKENS, seed):
        typer.echo(line)
    return SUCCESS


def table(
    file: Annotated[
        str,
        typer.Argument(help="a file written by `packproof bench --json`; of `bench ranks` also several, with commas"),
    ],
    *,
    plot: Annotated[
        str | None,
        typer.Option(help="draw the results of `bench stack` or `bench ranks` to this .png or .svg file too"),
    ] = None,
) -> int:
    """Print the results of a bench as a Markdown table, with its command, GPU and versions.

    \b
    packproof table bench.json
    packproof table stack.json --plot stack.svg
    packproof table ranks2.json,ranks4.json --plot ranks.svg
    """
    from packproof.bench.kernels.markdown import table as markdown  # noqa: PLC0415
    from packproof.bench.ranks import page as page_of_ranks  # noqa: PLC0415
    from packproof.bench.stacks import page  # noqa: PLC0415
    from packproof.bench.stacks.report import is_of_stacks  # noqa: PLC0415

    if page_of_ranks.is_of_ranks(file):
        picture = page_of_ranks.RanksPlot(plot) if plot is not None else None
        typer.echo(page_of_ranks.table(file))
        if picture:
            picture.draw(file)
        return SUCCESS
    stacks = is_of_stacks(file)
    if plot is not None and not stacks:
        raise UsageError(
            f"--plot: {file} is not of `packproof bench stack` or `bench ranks`; `packproof bench --sweep` draws others"
        )
    drawing = page.StacksPlot(plot) if plot is not None else None
    typer.echo(page.table(file) if stacks else markdown(file))
    if drawing:
        drawing.draw(file)
    return SUCCESS
