"""The implementations in a bench: kernels under test, packproof's own or a user's, and the baselines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from packproof.adapters.peers import PEERS, Peer
from packproof.base.errors import UsageError
from packproof.base.names import require_known, short_dtype
from packproof.bench.kernels.settings import Setting
from packproof.harness.check import CheckRequest
from packproof.harness.check.targets import BUILTIN_KERNELS, BuiltinKernel, CheckTarget, open_target
from packproof.properties.declarations import Declaration
from packproof.properties.ops import OPS, Op

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
    def is_absent(self) -> bool:
        """Whether it is a peer that is not installed."""
        return self.peer is not None and not self.peer.installed

    @property
    def is_packed(self) -> bool:
        """Whether it keeps sequences apart. If not, it cannot be proven and is only timed."""
        return self.peer is None or self.peer.packed

    def unsupported_reason(self, setting: Setting, dtype: str) -> str:
        """Why it cannot run this setting, "" if it can."""
        declaration = self.job.declared
        if dtype not in declaration.dtypes:
            return f"takes {', '.join(map(short_dtype, declaration.dtypes))} only: choose with --dtype"
        unsupported = self.unsupported_arguments(setting)
        if not unsupported:
            return ""
        names_by_option = {"--inputs": setting.present, "--options": setting.options}
        options = [option for option, names in names_by_option.items() if set(unsupported) & set(names)]
        return f"does not take {', '.join(unsupported)}; without that in {' and '.join(options)} it can be timed"

    def unsupported_arguments(self, setting: Setting) -> list[str]:
        """The optional inputs and options of the setting that the implementation does not take."""
        parameters = self.job.declared.parameters
        return [name for name in setting.arguments if parameters is not None and name not in parameters]


def implementations(
    targets: Sequence[str], op: str | None, baselines: Sequence[str] | None, device: str
) -> Iterator[tuple[Op, list[Implementation]]]:
    """By op, the implementations under test, then the baselines. UsageError for an unknown target, op or baseline."""
    for name in baselines or ():
        require_known("baseline", name, [REFERENCE, *PEERS], "packproof list")
    kernels_under_test = list(_user_kernels(targets, op, device)) or list(_builtin_kernels(op, device))
    ops = {c.job.op.name: c.job.op for c in kernels_under_test}
    if not ops:
        assert op is not None
        ops = {op: OPS[require_known("op", op, OPS)]}
    for name in baselines or ():
        if name in PEERS and PEERS[name].op not in ops:
            raise UsageError(f"--against: {name} computes {PEERS[name].op}, but this bench times {', '.join(ops)}")
    for name, declared_op in ops.items():
        if declared_op.pool:
            raise UsageError(
                f"{name}: its states lie in a pool, which a bench does not draw; time the packed op instead"
            )
        op_kernels = [c for c in kernels_under_test if c.job.op.name == name]
        group = [*op_kernels, *_baselines(declared_op, baselines, device)]
        if not group:
            raise UsageError(f"nothing to time for {name}: packproof has no kernel for it; add --against {REFERENCE}")
        yield declared_op, group


def _user_kernels(targets: Sequence[str], op: str | None, device: str) -> Iterator[Implementation]:
    """The targets, called by file name alone unless two have the same."""
    file_names = {target: target.rpartition("/")[2] for target in targets}
    for target, name in file_names.items():
        is_unique = list(file_names.values()).count(name) == 1
        yield Implementation(
            name if is_unique else target, open_target(CheckRequest(target=target, op=op, device=device))
        )


def _builtin_kernels(op: str | None, device: str) -> Iterator[Implementation]:
    if op is not None:
        require_known("op", op, OPS)
    for builtin in BUILTIN_KERNELS.values():
        if op in (None, builtin.op) and builtin.runs_on(device):
            yield Implementation(builtin_name(builtin), open_target(CheckRequest(device=device), builtin))


def builtin_name(builtin: BuiltinKernel) -> str:
    """The name "packproof", or for example "packproof triton" if an op has several implementations."""
    return f"packproof {builtin.function.removeprefix(builtin.op + '_')}".strip()


def _baselines(op: Op, baselines: Sequence[str] | None, device: str) -> Iterator[Implementation]:
    """The requested baselines. By default the reference on a CPU, and every peer on a GPU.

    On a GPU the reference would take minutes, because it goes token by token.
    """
    baseline_names = baselines if baselines is not None else [REFERENCE] if device == "cpu" else list(PEERS)
    for name in dict.fromkeys(baseline_names):
        if name == REFERENCE:
            yield Implementation(name, _open_target(op.reference, op, device))
        elif PEERS[name].op == op.name:
            yield Implementation(name, _open_peer(PEERS[name], op, device), PEERS[name])


def _open_peer(peer: Peer, op: Op, device: str) -> CheckTarget:
    """The target of a peer; with an empty declaration if it is not installed."""
    if peer.installed:
        return _open_target(peer.name, op, device)
    return CheckTarget(CheckRequest(device=device), peer.name, peer.name, op, op.name, Declaration())


def _open_target(target: Any, op: Op, device: str) -> CheckTarget:
    return open_target(CheckRequest(target=target, op=op, device=device))


def is_baseline(name: str) -> bool:
    """Whether an implementation is only a baseline, and not under test."""
    return name == REFERENCE or name in PEERS
