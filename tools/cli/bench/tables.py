"""The commands `packproof bench packing` and `packproof bench fp8`, each of which prints a table."""

from typing import Annotated

import typer

from packproof.cli.ending import SUCCESS
from packproof.cli.usage import seed_option


def packing(
    *,
    lengths_file: Annotated[
        str | None,
        typer.Option(help="a file of lengths: one per line, or a JSON list  [default: a million random documents]"),
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="tokens of a pack  [default: 4096]", min=1)] = None,
    seed: Annotated[int, seed_option("another seed draws other documents")] = 0,
) -> int:
    """Compare the packers of packproof.refs: their padding, how far they reorder documents, and their time.

    \b
    packproof bench packing
    packproof bench packing --lengths-file lengths.json --tokens 8192
    """
    from packproof.bench import PACK_CAPACITY, packer_lines, sample_lengths  # noqa: PLC0415
    from packproof.bench.kernels import from_file  # noqa: PLC0415

    lengths = from_file(lengths_file).lengths if lengths_file else sample_lengths(seed=seed)
    for line in packer_lines(lengths, tokens or PACK_CAPACITY):
        typer.echo(line)
    return SUCCESS


def fp8(
    *,
    tokens: Annotated[int | None, typer.Option(help="tokens of the sequence  [default: 16384]", min=1)] = None,
    seed: Annotated[int, seed_option("another seed draws other tensors")] = 0,
) -> int:
    """Measure the errors of attention in 8 bits, with and without incoherent processing.

    \b
    packproof bench fp8
    packproof bench fp8 --tokens 4096
    """
    from packproof.bench import FP8_TOKENS, fp8_error_lines  # noqa: PLC0415

    for line in fp8_error_lines(tokens or FP8_TOKENS, seed):
        typer.echo(line)
    return SUCCESS
