"""`packproof peers`: checks the installed third-party kernels, for promised and unpromised properties."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from packproof.adapters.registry import PEERS, Peer
from packproof.harness.engine.plan import Unit, plan
from packproof.harness.engine.request import CheckRequest, validate
from packproof.harness.engine.schedule import run_plan
from packproof.harness.engine.target import CheckTarget, open_target, worker_for
from packproof.harness.results.events import Event, Verdict
from packproof.harness.results.names import known, short
from packproof.harness.results.questions import OF_PEERS
from packproof.harness.worker.worker import Worker
from packproof.properties.cases.case import Case
from packproof.properties.cases.domain import Domain
from packproof.properties.ops import OPS
from packproof.refs.errors import UsageError

_COMPILING = 600.0  # seconds: with every core busy, compiling many large kernels in a first call takes minutes


@dataclass(frozen=True)
class PeerRequest:
    """A peer to check."""

    peer: Peer
    version: str
    targets: tuple[CheckTarget, ...] = ()
    """The kernel with its own promises, then once more for each unpromised property. Empty if it cannot be checked."""
    reason: str = ""
    """Why it cannot be checked, "" if it can."""
    offers_no: tuple[str, ...] = ()
    """Requested arguments, dtypes or gradients that the peer does not take or compute."""


def open_peers(request: CheckRequest, names: Sequence[str]) -> list[PeerRequest]:
    """The peers with these names, or all, with their targets on this machine.

    request: the settings for each peer; its target is ignored, and its op selects among all peers.

    Raises UsageError for an invalid request or name.
    """
    validate(request)
    if request.op is not None:
        known("op", str(request.op), OPS)
    for name in names:
        known("peer", name, PEERS, "packproof list")
        if not PEERS[name].packed:
            raise UsageError(f"{name} does not keep sequences apart: it can be timed (packproof bench) but not checked")
        if request.op not in (None, PEERS[name].op):
            raise UsageError(f"--op: {name} computes {PEERS[name].op}, not {request.op}")
    chosen = [PEERS[n] for n in names] if names else [p for p in PEERS.values() if p.packed]
    of_op = [peer for peer in chosen if request.op in (None, peer.op)]
    cores = os.cpu_count() or 1
    return [entry for k in range(0, len(of_op), cores) for entry in _entries(of_op[k : k + cores], request)]


def check_peers(request: CheckRequest, entries: Sequence[PeerRequest]) -> Iterator[Event]:
    """Check every peer with targets, as events: first the promised properties of each peer, then the others.

    The first unit of each peer and dtype starts before the second of any: it compiles the kernels, and later units find
    them in the cache.
    """
    most = max((len(entry.targets) for entry in entries), default=0)
    planned = plan(request, [e.targets[k] for k in range(most) for e in entries if k < len(e.targets)])
    met: Counter[tuple[str, str]] = Counter()

    def place(unit: Unit) -> int:
        met[key := (unit.target.name, unit.cells[0].dtype)] += 1
        return met[key]

    return run_plan(replace(planned, units=tuple(sorted(planned.units, key=place))))


def golden_classes(target: CheckTarget, verdict: Verdict, golden: Sequence[Case]) -> frozenset[str]:
    """The golden boundary classes that count for a property: judged, missed, or outside the inferred domain.

    golden: the golden cases within the peer's declaration.
    """
    space, law = target.space(verdict.cell.dtype), target.request.laws[verdict.cell.property]
    every = frozenset().union(*map(space.classes, golden))
    found = Domain.of(verdict.domain)
    refused = (case for case in law.suited(space, golden) if not found.allows(target.op, case)) if found else ()
    return every & frozenset().union(verdict.classes, verdict.missing, *map(space.classes, refused))


def _entries(peers: Sequence[Peer], request: CheckRequest) -> Iterator[PeerRequest]:
    """A request for each peer. The workers start together, since importing a package takes seconds."""
    timeout = request.timeout or (_COMPILING if request.device == "cuda" else None)
    usable = [peer for peer in peers if peer.installed and peer.runs_on(request.device)]
    with ExitStack() as stack:
        begun: dict[str, tuple[CheckRequest, Worker]] = {}
        for peer in usable:
            own = replace(request, target=peer.name, op=peer.op, timeout=timeout, draw_configs=True, questions=False)
            begun[peer.name] = own, stack.enter_context(worker_for(own, peer.name))
            begun[peer.name][1].begin(warm=False)
        for peer in peers:
            if peer.name in begun:
                yield _entry(peer, *begun[peer.name])
            else:
                version, why = (peer.version, "needs a GPU") if peer.installed else ("", "not installed")
                yield PeerRequest(peer, version, reason=why)


def _entry(peer: Peer, request: CheckRequest, worker: Worker) -> PeerRequest:
    entry = PeerRequest(peer, peer.version)
    try:
        target = replace(open_target(request, worker=worker), empty_packs=False)
    except UsageError as error:
        return replace(entry, reason=f"cannot be used here: {str(error).partition(chr(10))[0]}")
    declared = target.declared
    dtypes = tuple(d for d in target.dtypes if d in declared.dtypes)
    if not dtypes:
        return replace(entry, reason=f"takes {', '.join(map(short, declared.dtypes))} only")
    forward_only = request.forward_only or (peer.cpu == "forward" and request.device == "cpu")
    target = replace(target, request=replace(request, dtypes=dtypes, forward_only=forward_only))
    lacking = [*target.not_offered, *(short(d) for d in request.dtypes or () if d not in dtypes)]
    lacking += [] if target.gradients else ["gradients"]
    return replace(entry, targets=(target, *_unpromised(target)), offers_no=tuple(lacking))


def _unpromised(target: CheckTarget) -> Iterator[CheckTarget]:
    """The target again for each unpromised property, with a declaration that promises it."""
    for question in OF_PEERS:
        raised = question.raised(target.declared)
        if raised is not None and question.property in target.request.laws:
            only = replace(target.request, properties=(question.property,))
            yield replace(target, request=only, declared=raised, beyond=question.word)
