"""The command `packproof contract`: the default contract of an op, for the author of a contest to start from."""

from typing import Annotated

import typer

from packproof.base.names import require_known
from packproof.base.signatures import SIGNATURES
from packproof.cli.ending import SUCCESS
from packproof.harness.process.start import fast_imports


def contract(op: Annotated[str, typer.Argument(help="the op that the kernels compute; see `packproof list`")]) -> int:
    """Print the default contract of an op as JSON: all of its calls, dtypes and gradients, in its usual error budget.

    \b
    packproof contract causal_conv1d > conv.json
    packproof check kernel.py:conv --contract conv.json
    """
    require_known("op", op, SIGNATURES, "packproof list")
    with fast_imports():
        from packproof.properties.declarations import Contract, contract_text  # noqa: PLC0415
        from packproof.properties.ops import OPS  # noqa: PLC0415  (torch)

    typer.echo(contract_text(Contract.for_op(OPS[op])), nl=False)
    return SUCCESS
