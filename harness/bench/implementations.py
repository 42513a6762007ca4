"""The implementations in a bench: kernels under test, packproof's own or a user's, and the baselines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from packproof.adapters.registry import PEERS, Peer
from packproof.harness.bench.settings import Setting
from packproof.harness.engine.request import CheckRequest
from packproof.harness.engine.target import CheckTarget, open_target
from packproof.harness.results.names import known, short
from packproof.harness.targets.builtin_kernels import BUILTIN_KERNELS, BuiltinKernel
from packproof.properties.declaration import Declaration
from packproof.properties.op import Op
from packproof.properties.ops import OPS
from packproof.refs.errors import UsageError

REFERENCE = "reference"


@dataclass(frozen=True)
class Implementation:
    """An implementation of an op."""

    name: str
    job: CheckTarget
    """The opened kernel, its op and its declaration."""
    peer: Peer | None = None
    """The peer, if the implementation is one."""

    @property
    def absent(self) -> bool:
        """Whether it is a peer that is not installed."""
        return self.peer is not None and not self.peer.installed

    @property
    def packed(self) -> bool:
        """Whether it keeps sequences apart. If not, it cannot be proven and is only timed."""
        return self.peer is None or self.peer.packed

    def unfit(self, setting: Setting, dtype: str) -> str:
        """Why it cannot run this setting, "" if it can."""
        declared = self.job.declared
        if dtype not in declared.dtypes:
            return f"takes {', '.join(map(short, declared.dtypes))} only: choose with --dtype"
        missing = self.missing(setting)
        if not missing:
            return ""
        of = {"--inputs": setting.present, "--options": setting.options}
        places = [option for option, names in of.items() if set(missing) & set(names)]
        return f"does not take {', '.join(missing)}; without that in {' and '.join(places)} it can be timed"

    def missing(self, setting: Setting) -> list[str]:
        """The optional inputs and options of the setting that the implementation does not take."""
        taken = self.job.declared.parameters
        return [name for name in setting.arguments if taken is not None and name not in taken]


def implementations(
    targets: Sequence[str], op: str | None, against: Sequence[str] | None, device: str
) -> Iterator[tuple[Op, list[Implementation]]]:
    """By op, the implementations under test, then the baselines. UsageError for an unknown target, op or baseline."""
    for name in against or ():
        known("baseline", name, [REFERENCE, *PEERS], "packproof list")
    tested = list(_users(targets, op, device)) or list(_own(op, device))
    ops = {c.job.op.name: c.job.op for c in tested}
    if not ops:
        assert op is not None
        ops = {op: OPS[known("op", op, OPS)]}
    for name in against or ():
        if name in PEERS and PEERS[name].op not in ops:
            raise UsageError(f"--against: {name} computes {PEERS[name].op}, but this bench times {', '.join(ops)}")
    for name, declared in ops.items():
        if declared.pool:
            raise UsageError(
                f"{name}: its states lie in a pool, which a bench does not draw; time the packed op instead"
            )
        mine = [c for c in tested if c.job.op.name == name]
        group = [*mine, *_baselines(declared, against, device)]
        if not group:
            raise UsageError(f"nothing to time for {name}: packproof has no kernel for it; add --against {REFERENCE}")
        yield declared, group


def _users(targets: Sequence[str], op: str | None, device: str) -> Iterator[Implementation]:
    """The targets, called by file name alone unless two have the same."""
    last = {target: target.rpartition("/")[2] for target in targets}
    for target, name in last.items():
        alone = list(last.values()).count(name) == 1
        yield Implementation(name if alone else target, open_target(CheckRequest(target=target, op=op, device=device)))


def _own(op: str | None, device: str) -> Iterator[Implementation]:
    if op is not None:
        known("op", op, OPS)
    for own in BUILTIN_KERNELS.values():
        if op in (None, own.op) and own.runs_on(device):
            yield Implementation(own_name(own), open_target(CheckRequest(device=device), own))


def own_name(own: BuiltinKernel) -> str:
    """The name "packproof", or for example "packproof triton" if an op has several implementations."""
    return f"packproof {own.function.removeprefix(own.op + '_')}".strip()


def _baselines(op: Op, against: Sequence[str] | None, device: str) -> Iterator[Implementation]:
    """The requested baselines. By default the reference on a CPU, and every peer on a GPU.

    On a GPU the reference would take minutes, because it goes token by token.
    """
    wanted = against if against is not None else [REFERENCE] if device == "cpu" else list(PEERS)
    for name in dict.fromkeys(wanted):
        if name == REFERENCE:
            yield Implementation(name, _job(op.reference, op, device))
        elif PEERS[name].op == op.name:
            yield Implementation(name, _peer_job(PEERS[name], op, device), PEERS[name])


def _peer_job(peer: Peer, op: Op, device: str) -> CheckTarget:
    """The target of a peer; with an empty declaration if it is not installed."""
    if peer.installed:
        return _job(peer.name, op, device)
    return CheckTarget(CheckRequest(device=device), peer.name, peer.name, op, op.name, Declaration())


def _job(target: Any, op: Op, device: str) -> CheckTarget:
    return open_target(CheckRequest(target=target, op=op, device=device))


def is_baseline(name: str) -> bool:
    """Whether an implementation is only a baseline, and not under test."""
    return name == REFERENCE or name in PEERS
