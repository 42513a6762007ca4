"""The request to check a packer, a collator, a sampler or a stream."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from packproof.base.errors import ArgumentError, UsageError
from packproof.base.importing import one_line_reason
from packproof.base.names import SEED, is_seed, require_known
from packproof.harness.process.naming import Location
from packproof.harness.report import Cell
from packproof.packers.documents import CAPACITIES, DocumentCase, golden_documents, unusual_documents
from packproof.packers.kinds import PACKER_KINDS, Law, kind_of
from packproof.packers.packings import Declared

N_DRAWN = {"quick": 20, "standard": 200, "thorough": 2000}
"""The number of drawn cases after the golden ones, by profile."""
_MOST_SHOWN = 24  # lengths in the line that runs a case again


@dataclass(frozen=True)
class PackerRequest:
    """A function under test with its declarations, and the documents to check it with."""

    function: Callable[..., Any]
    name: str
    """Its name in reports."""
    kind: str
    """A key of PACKER_KINDS."""
    capacities: tuple[int, ...] = CAPACITIES
    """Rows of a pack."""
    declared: Declared = field(default_factory=Declared)
    lengths: tuple[int, ...] | None = None
    """The lengths of one case to judge at each capacity; None for golden and drawn ones."""
    profile: str = "standard"
    seed: int = 0
    timeout: float = 60.0
    """Seconds without an event before the process of a law is ended."""
    target: str = ""
    """Its name on a command line; "" without one."""
    properties: tuple[str, ...] = ()
    """The laws to judge; () for all."""
    separators: tuple[int, ...] = ()
    """Ids that documents hold inside."""

    @property
    def laws(self) -> Mapping[str, Law]:
        """The laws to judge, by name."""
        return {
            name: law
            for name, law in PACKER_KINDS[self.kind].laws.items()
            if name in self.properties or not self.properties
        }

    def cells(self) -> tuple[Cell, ...]:
        """One cell for each law."""
        return tuple(Cell(self.kind, self.name, law, "all", "cpu") for law in self.laws)

    def golden(self) -> Iterator[DocumentCase]:
        """The documents of every check, small ones first; unusual ones, for the function to take or refuse, last."""
        if self.lengths is not None:
            for capacity in self.capacities:
                yield self.as_called(DocumentCase(self.lengths, capacity))
                yield self.as_called(DocumentCase(self.lengths, capacity, labelled=True))
            return
        cases = chain(golden_documents(self.capacities, self.seed), unusual_documents(self.capacities))
        yield from dict.fromkeys(map(self.as_called, cases))

    def as_called(self, documents: DocumentCase) -> DocumentCase:
        """The documents of one call; a collator gets one pack."""
        if not PACKER_KINDS[self.kind].one_pack:
            return documents
        one_pack = documents if self.lengths is not None else documents.of_one_pack()
        return replace(one_pack, separators=self.separators)

    def replay_line(self, documents: DocumentCase) -> str:
        """The command to judge these documents alone."""
        if not self.target or len(documents.lengths) > _MOST_SHOWN:
            return ""
        lengths = ",".join(map(str, documents.lengths))
        words = ["packproof packs check", self.target, "--kind", self.kind, f"--lengths '{lengths}'"]
        inside = [f"--separators {','.join(map(str, self.separators))}"] if self.separators else []
        return " ".join([*words, f"--capacity {documents.capacity}", *inside])


def packer_request(
    function: Callable[..., Any],
    *,
    kind: str | None = None,
    capacity: int | Sequence[int] | None = None,
    keeps_order: bool = False,
    excess: float = 0.1,
    lengths: tuple[int, ...] | None = None,
    properties: Sequence[str] | None = None,
    separators: Sequence[int] = (),
    profile: str = "standard",
    seed: int = 0,
    timeout: float = 60.0,
    target: str = "",
) -> PackerRequest:
    """The request of a user's arguments. Raises ArgumentError or UsageError for a wrong one."""
    capacities = CAPACITIES if capacity is None else (capacity,) if isinstance(capacity, int) else tuple(capacity)
    if not capacities or not all(type(n) is int and n > 0 for n in capacities):
        raise ArgumentError(f"capacity: {capacity!r}, expected a positive number of rows, or several")
    if not excess >= 0:
        raise ArgumentError(f"excess: {excess!r}, expected a share of at least 0")
    if not is_seed(seed):
        raise ArgumentError(f"seed: {seed!r}, expected {SEED}")
    kind_name = require_known("kind", kind, PACKER_KINDS) if kind else kind_of(function)
    if not all(type(n) is int and n >= 0 for n in separators):
        raise ArgumentError(f"separators: {separators!r}, expected ids of tokens")
    if separators and not PACKER_KINDS[kind_name].one_pack:
        raise UsageError(f"separators: a {kind_name} has none; they are for a collator, which sees the tokens")
    return PackerRequest(
        function,
        target or getattr(function, "__name__", type(function).__name__),
        kind_name,
        capacities,
        Declared(keeps_order, excess),
        lengths,
        require_known("profile", profile, N_DRAWN),
        seed,
        timeout,
        target,
        tuple(require_known("property", name, PACKER_KINDS[kind_name].laws) for name in properties or ()),
        tuple(separators),
    )


def load_function(target: str) -> Callable[..., Any]:
    """The packer or collator of a command line. A class is one without arguments. Raises UsageError."""
    function: Any = Location.parse(target).find()
    if isinstance(function, type):
        try:
            function = function()
        except Exception as error:
            reason = one_line_reason(error)
            raise UsageError(
                f"target {target!r}: it is a class, and cannot be made without arguments: {reason}"
            ) from error
    if not callable(function):
        raise UsageError(f"target {target!r}: {type(function).__name__}, expected a function")
    return function  # type: ignore[no-any-return]
