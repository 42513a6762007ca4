"""The command `packproof diff`: where a kernel diverges from its reference, on lengths or the case of a replay file."""

import ast
import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from packproof.base.errors import UsageError
from packproof.base.names import DEVICES, require_known, split_names
from packproof.base.names import long_dtype as dtype_name
from packproof.cli.ending import FAILED, INCONCLUSIVE, SUCCESS, say
from packproof.cli.usage import seed_option
from packproof.harness.process.start import fast_imports

_SEPARATOR = re.compile(r"[;,](?![^(\[]*[)\]])")  # a comma inside brackets is part of a value


def diff(
    target: Annotated[
        str,
        typer.Argument(help="package.module:function, path/file.py:function, or a peer as `packproof list` names it"),
    ],
    *,
    op: Annotated[str | None, typer.Option(help="the op that the target computes; see `packproof list`")] = None,
    lengths: Annotated[str | None, typer.Option(help="lengths of the sequences, such as 3,0,5")] = None,
    slack: Annotated[int | None, typer.Option(help="rows past the last sequence  [default: 0]", min=0)] = None,
    case: Annotated[str | None, typer.Option(help="the case of this replay file, instead of lengths")] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="compare with this kernel, such as the one before an edit  [default: the op's own]"),
    ] = None,
    tensor: Annotated[
        list[str] | None, typer.Option(help="only these tensors: y, dx for the gradient of x; comma-separated")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda  [default: cuda if available]")] = None,
    dtype: Annotated[str | None, typer.Option(help="fp64, fp32, bf16 or fp16  [default: the kernel's first]")] = None,
    sizes: Annotated[str | None, typer.Option(help="sizes of axes, such as d=64,w=4")] = None,
    inputs: Annotated[
        list[str] | None, typer.Option(help="optional inputs to pass, such as bias,initial_states; comma-separated")
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(help="options of the op, such as 'activation=silu, return_final_states=True'; or repeat"),
    ] = None,
    seed: Annotated[int | None, seed_option("another seed draws other tensors  [default: 0]")] = None,
) -> int:
    """Find where a kernel diverges from its reference: for each output and gradient the first element that is outside
    its error budget, and which rows are wrong, by sequence, token and chunk.

    \b
    packproof diff my_kernels:conv --op causal_conv1d --lengths 3,0,5
    packproof diff my_kernels:conv --op causal_conv1d --lengths 3,5 --tensor dx
    packproof diff my_kernels:conv --lengths 3,5 --options activation=silu
    packproof diff my_kernels:scan --lengths 64,65 --reference my_kernels:old_scan
    packproof diff my_kernels:scan --case .packproof/ssd-packing-5ca1aecb.json

    Runs the kernel in this process, where breakpoints and prints work. Exit code 0 if nothing diverges, 1 if something
    does or the kernel raises, 4 if it declines the call.
    """
    if (lengths is None) == (case is None):
        mistake = "both came" if lengths is not None else "neither came"
        raise UsageError(f"--lengths or --case: {mistake}; expected one of them, such as --lengths 3,0,5")
    case_settings: dict[str, Any] = {
        "dtype": None if dtype is None else dtype_name(dtype),
        "sizes": None if sizes is None else _pairs("--sizes", [sizes]),
        "present": None if inputs is None else split_names(inputs),
        "options": None if options is None else _pairs("--options", options),
        "seed": seed,
    }
    if case is not None:
        for name, value in {"slack": slack, **case_settings}.items():
            if value is not None:
                option = "inputs" if name == "present" else name
                raise UsageError(f"--{option} cannot be given with --case, which has its own; use --lengths")
    sequence_lengths = _lengths(lengths) if lengths is not None else []
    if device is not None:
        require_known("device", device, DEVICES)
    with fast_imports():
        import torch  # noqa: PLC0415

        from packproof.base.errors import KernelFault  # noqa: PLC0415
        from packproof.debug import diff as find  # noqa: PLC0415
        from packproof.harness.process.naming import Location  # noqa: PLC0415
        from packproof.properties.calling import Refusal  # noqa: PLC0415
        from packproof.refs.packing import PackLayout  # noqa: PLC0415

    selected_device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    layout = case if case is not None else PackLayout(tuple(sequence_lengths), slack or 0)
    reference_kernel = None if reference is None else Location.parse(reference).load()
    try:
        difference = find(target, reference_kernel, layout, op=op, device=selected_device, **case_settings)
    except KernelFault as fault:
        return say(f"{target}: {fault}", FAILED)
    except Refusal as refused:
        return say(f"{target}: inconclusive: {refused}", INCONCLUSIVE)
    if tensor:
        difference = difference.only(split_names(tensor))
    typer.echo(str(difference))
    return FAILED if difference else SUCCESS


def _lengths(text: str) -> list[int]:
    parts = text.strip("[] ").split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise UsageError(f"--lengths: {text!r} is no list of lengths; expected whole numbers, such as 3,0,5")
    return [int(part) for part in parts]


def _pairs(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """Parse `name=value` pairs. A value is a Python literal, or else text, such as silu."""
    pairs = {}
    for part in filter(None, (part.strip() for text in texts for part in _SEPARATOR.split(text))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip().isidentifier():
            example = "d=64,w=4" if option == "--sizes" else "activation=silu"
            raise UsageError(f"{option}: {part!r} is no name with a value; expected some, such as {example}")
        pairs[name.strip()] = _value(value.strip())
    return pairs


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: thousands of brackets
        return text
