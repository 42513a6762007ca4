"""What packproof knows: `packproof list` names everything, `packproof explain` has an op as data or a failing call."""

import json as json_format
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from packproof.adapters.peers import PEERS, Peer
from packproof.base.errors import UsageError
from packproof.base.law_names import LAWS
from packproof.base.names import SHORT_DTYPES
from packproof.base.signatures import SIGNATURES
from packproof.cli.ending import SUCCESS
from packproof.cli.printing import section
from packproof.harness.check import PROFILES
from packproof.harness.check.targets import BUILTIN_KERNELS
from packproof.harness.process.start import fast_imports


def list_everything() -> int:
    """List the ops with their tensors, the kernels that packproof ships, the peers, properties, profiles and dtypes."""
    section(
        "ops",
        {op: f"{_tensors(signature.inputs)} -> {_tensors(signature.outputs)}" for op, signature in SIGNATURES.items()},
    )
    section("kernels", {name: builtin.target for name, builtin in BUILTIN_KERNELS.items()})
    section("peers", {peer.name: f"{peer.op}, {_installation(peer)}" for peer in PEERS.values()})
    section("properties", LAWS)
    section("profiles", dict.fromkeys(PROFILES, ""))
    section("dtypes", {short: name for name, short in SHORT_DTYPES.items()})
    return SUCCESS


def _tensors(specs: Mapping[str, str]) -> str:
    return ", ".join(f"{name}[{spec}]" for name, spec in specs.items())


def _installation(peer: Peer) -> str:
    """The installed version of a peer, or how to install it."""
    return f"{peer.distributions[0]} {peer.version}" if peer.installed else f"pip install {peer.distributions[0]}"


def explain(
    op: Annotated[
        str | None, typer.Argument(help="an op; `packproof list` shows them. Or module:NAME of one of your own")
    ] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="print the record as JSON")] = False,
    replay: Annotated[
        str | None, typer.Option(help="instead: the failing call of this replay file, as a script without packproof")
    ] = None,
    skill: Annotated[
        bool, typer.Option("--skill", help="instead: how an agent asks packproof, as a skill file")
    ] = False,
) -> int:
    """Explain an op: its tensors, options, layouts and laws, and the error that a kernel of it may have.

    \b
    packproof explain causal_conv1d
    packproof explain ssd --json
    packproof explain --replay .packproof/ssd-packing-5ca1aecb.json > failing.py
    packproof explain --skill > SKILL.md

    The terms by which a kernel is judged are those of `packproof contract OP`.
    """
    if [op is None, replay is None, not skill].count(False) != 1:
        raise UsageError("explain: name one op (`packproof list` shows them), a file with --replay, or --skill alone")
    if json and op is None:
        raise UsageError("explain: --json prints the record of an op: name one (`packproof list` shows them)")
    if skill:
        typer.echo(Path(__file__).with_name("SKILL.md").read_text(), nl=False)
        return SUCCESS
    if replay is not None:
        return _print_script(replay)
    with fast_imports():
        from packproof.debug import op_record, op_text  # noqa: PLC0415  (torch)
        from packproof.harness.check.targets import resolve_op  # noqa: PLC0415
        from packproof.properties.declarations import Declaration  # noqa: PLC0415

    record = op_record(resolve_op(op, Declaration(), "explain"))
    if json:
        typer.echo(json_format.dumps(record, indent=1))
    else:
        section(record["op"], op_text(record))
    return SUCCESS


def _print_script(path: str) -> int:
    with fast_imports():
        from packproof.harness.check.diagnosis import script_of_replay  # noqa: PLC0415  (torch)

    typer.echo(script_of_replay(path), nl=False)
    return SUCCESS
