"""The check of a packer, a collator, a sampler or a stream, at golden and drawn documents; failures are shrunk."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample

from packproof.base.errors import checked_call
from packproof.base.importing import one_line_reason
from packproof.harness.check import errors_as_verdicts
from packproof.harness.process import run_on_every_core
from packproof.harness.report import (
    Cell,
    CellFinished,
    CellStarted,
    CheckFailed,
    Event,
    Failure,
    Progress,
    RunFinished,
    RunStarted,
    Status,
    Verdict,
)
from packproof.harness.report.wording import failure_texts
from packproof.packers.documents import DocumentCase, drawn_documents
from packproof.packers.kinds import NotApplicable
from packproof.packers.packings import NoPacks
from packproof.packers.refusals import is_refusal
from packproof.packers.request import N_DRAWN, PackerRequest, packer_request
from packproof.properties.cases import shorten


@checked_call
def check_packs(
    function: Callable[..., Any],
    *,
    kind: str | None = None,
    capacity: int | Sequence[int] | None = None,
    keeps_order: bool = False,
    excess: float = 0.1,
    fixed_shapes: bool = False,
    properties: Sequence[str] | None = None,
    separators: Sequence[int] = (),
    profile: str = "standard",
    seed: int = 0,
) -> tuple[Verdict, ...]:
    """Prove that packs lose no token, repeat none and say where each document begins.

    function: a packer, `pack(lengths, capacity)`, returns packs of numbers of documents, or of pieces (document, start,
        stop). A collator, `collate(documents)`, returns a batch of one row. A sampler, `make(lengths, capacity, rank,
        ranks)`, and a stream, `make(documents, capacity)`, return an iterable of packs.
    kind: "packer", "collator", "sampler" or "stream"; None for what its parameters say.
    capacity: rows of a pack, one number or several; None for seven from 1 to 1,000.
    keeps_order: whether the packer promises packs in the order of arrival.
    excess: how many more packs than first fit a packer may make, as a share.
    fixed_shapes: whether all batches of a collator or a stream have the same shapes, as a captured step needs.
    properties: the laws to judge by name; None for all.
    separators: ids that documents of a collator hold inside too, such as the end of a turn.
    profile: "quick", "standard" or "thorough": how many documents are drawn.

    Returns the verdicts. Raises CheckFailed, with the smallest documents, if a law does not hold; ArgumentError for a
    wrong argument.

    >>> import packproof
    >>> def one_by_one(lengths, capacity):
    ...     return [[j] for j in range(len(lengths))]
    >>> [v.cell.property for v in packproof.check_packs(one_by_one, excess=100.0, profile="quick")]
    ['complete', 'capacity', 'order', 'fill', 'refusal', 'repeated']
    """
    request = packer_request(
        function,
        kind=kind,
        capacity=capacity,
        keeps_order=keeps_order,
        excess=excess,
        fixed_shapes=fixed_shapes,
        properties=properties,
        separators=separators,
        profile=profile,
        seed=seed,
    )
    *_, end = run_packer_check(request)
    assert isinstance(end, RunFinished)
    if not {verdict.status for verdict in end.verdicts} <= {"passed", "skipped"}:
        raise CheckFailed("\n\n".join(_reasons(end.verdicts)), end.verdicts)
    return end.verdicts


def _reasons(verdicts: Sequence[Verdict]) -> Iterator[str]:
    yield from failure_texts([verdict for verdict in verdicts if verdict.failure])
    for verdict in verdicts:
        if verdict.status in ("inconclusive", "error"):
            yield f"{verdict.cell.target} · {verdict.cell.law} was not judged: {verdict.reason}"


def run_packer_check(request: PackerRequest, *, in_own_processes: bool = False) -> Iterator[Event]:
    """Judge each law, event by event.

    in_own_processes: judge each in its own process, in parallel, and end one that hangs.
    """
    start, cells = time.monotonic(), request.cells()
    yield RunStarted(cells, request.profile, request.seed)
    units = [partial(_judge, request, cell) for cell in cells]
    last_documents: dict[Cell, Progress] = {}

    def report_lost_law(number: int, text: str) -> Callable[[], Iterator[Event]]:
        cell = cells[number]
        progress = last_documents.get(cell)
        failure = Failure(progress.lengths if progress else (), "", (text,), progress.examples if progress else 0, 0)
        verdict = Verdict(cell, "eager", "failed", failure.example, request.timeout, failure=failure)

        def report() -> Iterator[Event]:
            yield CellFinished(verdict)

        return report

    run_apart = partial(
        run_on_every_core, units, "cpu", record_type=Event, retry=report_lost_law, max_silence=request.timeout
    )
    verdicts: dict[Cell, Verdict] = {}
    for event in run_apart() if in_own_processes else chain(*(unit() for unit in units)):
        if isinstance(event, Progress):
            last_documents[event.cell] = event
        if isinstance(event, CellFinished):
            verdicts[event.verdict.cell] = event.verdict
        yield event
    yield RunFinished(tuple(verdicts[cell] for cell in cells if cell in verdicts), time.monotonic() - start)


def _judge(request: PackerRequest, cell: Cell) -> Iterator[Event]:
    yield CellStarted(cell)
    yield from errors_as_verdicts(cell, _LawCheck(request, cell).events())


class _LawCheck:
    """One law at golden documents, then at drawn ones."""

    def __init__(self, request: PackerRequest, cell: Cell) -> None:
        self._request, self._cell = request, cell
        self._law = request.laws[cell.property]
        self._refusals: dict[str, DocumentCase] = {}
        self._violations: dict[DocumentCase, tuple[str, ...]] = {}  # a function may break a law at the first call alone
        self._examples = self._refused = 0
        self._start = time.monotonic()

    def events(self) -> Iterator[Event]:
        try:
            for documents in self._request.golden():
                yield Progress(self._cell, self._examples, lengths=documents.lengths)
                if self._violation(documents):
                    yield self._finished(self._failure(documents))
                    return
            n_drawn = N_DRAWN[self._request.profile]
            drawn = None if self._request.lengths is not None else self._find(n_drawn, self._request.capacities)
            yield self._finished(self._failure_at(drawn, self._examples) if drawn else None)
        except NotApplicable as reason:
            yield CellFinished(Verdict(self._cell, "eager", "skipped", 0, 0.0, reason=str(reason)))

    def _violation(self, documents: DocumentCase) -> tuple[str, ...]:
        """The lines of the first violation at these documents, () for none and for a refusal."""
        self._examples += 1
        lines = self._judge(documents)
        if lines:
            self._violations[documents] = lines
        return lines

    def _judge(self, documents: DocumentCase) -> tuple[str, ...]:
        try:
            return tuple(self._law(self._request.function, documents, self._request.declared))
        except NoPacks as reason:
            return (str(reason),)
        except NotApplicable:
            raise
        except Exception as error:
            if documents.are_ordinary and not is_refusal(error):
                return (f"it crashed: {one_line_reason(error)}",)
            self._refused += 1
            if documents.are_ordinary or not self._refusals:
                self._refusals.setdefault(one_line_reason(error), documents)
            return ()

    def _find(self, n_examples: int, capacities: Sequence[int]) -> DocumentCase | None:
        """Documents with a violation, as small as Hypothesis makes them; None if none were drawn."""
        limits = settings(
            max_examples=n_examples,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            deadline=None,
        )
        try:
            return find(
                drawn_documents(capacities).map(self._request.as_called),
                lambda documents: bool(self._violation(documents)),
                settings=limits,
                random=random.Random(self._request.seed),
            )
        except NoSuchExample:
            return None

    def _failure(self, documents: DocumentCase) -> Failure:
        """The failure at the smallest documents with a violation, beginning from these."""
        first_example, smallest = self._examples, documents
        if documents.are_ordinary and self._request.lengths is None:
            smallest = min(
                filter(None, [documents, self._find(N_DRAWN["standard"], [documents.capacity])]),
                key=lambda d: (len(d.lengths), sum(d.lengths)),
            )
        return self._failure_at(smallest, first_example)

    def _failure_at(self, documents: DocumentCase, first_example: int) -> Failure:
        replay_line = self._request.replay_line(documents)
        lines = (documents.text(), *self._violations[documents], *filter(None, [replay_line]))
        unusual = documents.unusual
        cause = f"{unusual}: {lines[1]}" if unusual else ""
        n_shrinks = self._examples - first_example
        return Failure(documents.lengths, unusual, lines, first_example, n_shrinks, cause=cause)

    def _finished(self, failure: Failure | None) -> CellFinished:
        status: Status = "failed"
        reason = ""
        if failure is None:
            status, reason = self._outcome()
        n_judged = self._examples - self._refused
        seconds = time.monotonic() - self._start
        return CellFinished(
            Verdict(
                self._cell,
                "eager",
                status,
                self._examples,
                seconds,
                judged=n_judged,
                refused=self._refused,
                reason=reason,
                failure=failure,
            )
        )

    def _outcome(self) -> tuple[Status, str]:
        """Passed, with the refusal if there was one; inconclusive if ordinary documents were refused."""
        if not self._refusals:
            return "passed", ""
        ordinary = [text for text, documents in self._refusals.items() if documents.are_ordinary]
        text = (ordinary or list(self._refusals))[0]
        documents = self._refusals[text]
        reason = f"refused lengths {shorten(documents.lengths)}, {documents.text()}: {text}"
        return ("inconclusive" if ordinary else "passed"), reason
