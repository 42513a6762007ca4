"""`packproof peers`: checks the installed third-party kernels, for promised and unpromised properties."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from packproof.adapters.peers import PEERS, Peer
from packproof.base.errors import UsageError
from packproof.base.machine import available_cores
from packproof.base.names import FINDINGS, require_known, short_dtype
from packproof.harness.check import CheckRequest, Unit, plan, run_plan, validate
from packproof.harness.check.targets import CheckTarget, open_target, worker_for
from packproof.harness.process import Worker
from packproof.harness.report import Event, Verdict
from packproof.properties.cases import Case, Domain
from packproof.properties.declarations import OF_PEERS
from packproof.properties.ops import OPS

_COMPILE_TIMEOUT = 600.0  # seconds: with every core busy, compiling many large kernels in a first call takes minutes


@dataclass(frozen=True)
class PeerRequest:
    """A peer to check."""

    peer: Peer
    version: str
    targets: tuple[CheckTarget, ...] = ()
    """The kernel with its own promises, then once more for each unpromised property. Empty if it cannot be checked."""
    reason: str = ""
    """Why it cannot be checked, "" if it can."""
    not_offered: tuple[str, ...] = ()
    """Requested arguments, dtypes or gradients that the peer does not take or compute."""


def open_peers(request: CheckRequest, names: Sequence[str]) -> list[PeerRequest]:
    """The peers with these names, or all, with their targets on this machine.

    request: the settings for each peer; its target is ignored, and its op selects among all peers.

    Raises UsageError for an invalid request or name.
    """
    validate(request)
    if request.op is not None:
        require_known("op", str(request.op), OPS)
    for name in names:
        require_known("peer", name, PEERS, "packproof list")
        if not PEERS[name].packed:
            raise UsageError(f"{name} does not keep sequences apart: it can be timed (packproof bench) but not checked")
        if request.op not in (None, PEERS[name].op):
            raise UsageError(f"--op: {name} computes {PEERS[name].op}, not {request.op}")
    candidates = [PEERS[n] for n in names] if names else [p for p in PEERS.values() if p.packed]
    selected_peers = [peer for peer in candidates if request.op in (None, peer.op)]
    cores = available_cores()
    return [
        entry
        for k in range(0, len(selected_peers), cores)
        for entry in _peer_requests(selected_peers[k : k + cores], request)
    ]


def check_peers(request: CheckRequest, entries: Sequence[PeerRequest]) -> Iterator[Event]:
    """Check every peer with targets, as events: first the promised properties of each peer, then the others.

    The first unit of each peer and dtype starts before the second of any: it compiles the kernels, and later units find
    them in the cache.
    """
    most_targets = max((len(entry.targets) for entry in entries), default=0)
    planned = plan(request, [e.targets[k] for k in range(most_targets) for e in entries if k < len(e.targets)])
    unit_counts: Counter[tuple[str, str]] = Counter()

    def ordinal(unit: Unit) -> int:
        unit_counts[key := (unit.target.name, unit.cells[0].dtype)] += 1
        return unit_counts[key]

    return run_plan(replace(planned, units=tuple(sorted(planned.units, key=ordinal))))


def golden_classes(target: CheckTarget, verdict: Verdict, golden: Sequence[Case]) -> frozenset[str]:
    """The golden boundary classes that count for a property: judged, missed, or outside the inferred domain.

    golden: the golden cases within the peer's declaration.
    """
    if verdict.cell.property in FINDINGS:
        return frozenset()  # of slack, it is of one class, wherever it was met
    space, law = target.space(verdict.cell.dtype), target.request.laws[verdict.cell.property]
    all_classes = frozenset().union(*map(space.boundary_classes, golden))
    inferred = Domain.of(verdict.domain)
    outside = (case for case in law.suited(space, golden) if not inferred.allows(target.op, case)) if inferred else ()
    return all_classes & frozenset().union(verdict.classes, verdict.missing, *map(space.boundary_classes, outside))


def _peer_requests(peers: Sequence[Peer], request: CheckRequest) -> Iterator[PeerRequest]:
    """A request for each peer. The workers start together, since importing a package takes seconds."""
    timeout = request.timeout or (_COMPILE_TIMEOUT if request.device == "cuda" else None)
    usable = [peer for peer in peers if peer.installed and peer.runs_on(request.device)]
    with ExitStack() as stack:
        open_workers: dict[str, tuple[CheckRequest, Worker]] = {}
        for peer in usable:
            check_request = replace(
                request,
                target=peer.name,
                op=peer.op,
                domain=request.domain or _sizes(peer, request),
                timeout=timeout,
                draw_configs=True,
                questions=False,
            )
            open_workers[peer.name] = check_request, stack.enter_context(worker_for(check_request, peer.name))
            open_workers[peer.name][1].begin(warm=False)
        for peer in peers:
            if peer.name in open_workers:
                yield _peer_request(peer, *open_workers[peer.name])
            else:
                version, reason = (peer.version, "needs a GPU") if peer.installed else ("", "not installed")
                yield PeerRequest(peer, version, reason=reason)


def _sizes(peer: Peer, request: CheckRequest) -> tuple[str, ...]:
    """The domain of the sizes to ask a peer for; () for all."""
    is_limited = request.profile == "quick" and request.device == "cuda" and peer.sizes
    return (peer.sizes,) if is_limited else ()


def _peer_request(peer: Peer, request: CheckRequest, worker: Worker) -> PeerRequest:
    entry = PeerRequest(peer, peer.version)
    try:
        target = replace(open_target(request, worker=worker), empty_packs=False)
    except UsageError as error:
        return replace(entry, reason=f"cannot be used here: {str(error).partition(chr(10))[0]}")
    declaration = target.declared
    dtypes = tuple(d for d in target.dtypes if d in declaration.dtypes)
    if not dtypes:
        return replace(entry, reason=f"takes {', '.join(map(short_dtype, declaration.dtypes))} only")
    forward_only = request.forward_only or (peer.cpu == "forward" and request.device == "cpu")
    target = replace(target, request=replace(request, dtypes=dtypes, forward_only=forward_only))
    not_offered = [*target.missing_features, *(short_dtype(d) for d in request.dtypes or () if d not in dtypes)]
    not_offered += [] if target.gradients else ["gradients"]
    return replace(entry, targets=(target, *_unpromised_targets(target)), not_offered=tuple(not_offered))


def _unpromised_targets(target: CheckTarget) -> Iterator[CheckTarget]:
    """The target again for each unpromised property, with a declaration that promises it."""
    for question in OF_PEERS:
        with_promise = question.with_promise(target.declared)
        if with_promise is not None and question.property in target.request.laws:
            question_request = replace(target.request, properties=(question.property,))
            yield replace(target, request=question_request, declared=with_promise, unpromised=question.label)
