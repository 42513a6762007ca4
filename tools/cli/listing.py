"""The command `packproof list`: everything with a name, without importing torch."""

from collections.abc import Mapping

from packproof.adapters.peers import PEERS, Peer
from packproof.base.law_names import LAWS
from packproof.base.names import SHORT_DTYPES
from packproof.base.signatures import SIGNATURES
from packproof.cli.ending import SUCCESS
from packproof.cli.printing import section
from packproof.harness.check import PROFILES
from packproof.harness.check.targets import BUILTIN_KERNELS


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
