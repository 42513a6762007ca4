"""Tests of promises that a kernel does not make. They are reported and do not fail the run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from packproof.properties.cases.domain import Domain
from packproof.properties.declaration import Declaration
from packproof.properties.laws.call_contract import DETERMINISM, MEMORY
from packproof.properties.laws.invariance import ISOLATION, PACKING


@dataclass(frozen=True)
class Question:
    """A promise to test any kernel for."""

    word: str
    """The label in the names of cells."""
    property: str
    """The property that tests the promise."""
    meaning: str
    """The promise in words, as reports have it."""
    raised: Callable[[Declaration], Declaration | None]
    """Adds the promise to a declaration. None if the declaration has it already."""


def _isolated(own: Declaration) -> Declaration | None:
    return None if own.promises.isolated else replace(own, promises=replace(own.promises, isolated=True))


def _independent(own: Declaration) -> Declaration | None:
    return None if own.promises.independent else replace(own, promises=replace(own.promises, grid="sequence"))


def _deterministic(own: Declaration) -> Declaration | None:
    return None if own.promises.deterministic else replace(own, promises=replace(own.promises, deterministic=True))


def _with_slack(own: Declaration) -> Declaration | None:
    if own.domain.allows_slack:
        return None
    return replace(own, domain=Domain(tuple(c for c in own.domain.conditions if c.names != {"slack"})))


NAN = Question("NaN", ISOLATION.name, "NaN, Inf and huge values in one sequence reach no other", _isolated)
ALONE = Question("same bits", PACKING.name, "a sequence has the same bits alone and in a pack", _independent)
TWICE = Question("same bits", DETERMINISM.name, "the same call gives the same bits", _deterministic)
SLACK = Question(
    "slack", MEMORY.name, "rows past the last sequence come back as zeros, and reach no sequence", _with_slack
)

OF_KERNELS = (NAN, ALONE, TWICE)
OF_PEERS = (NAN, TWICE, SLACK)


def open_questions(declared: Declaration) -> Iterator[tuple[Question, Declaration]]:
    """The promises missing from a kernel's declaration, each with the declaration that includes it."""
    for question in OF_KERNELS:
        raised = question.raised(declared)
        if raised is not None:
            yield question, raised


def question_of(prop: str, word: str) -> Question:
    """The question of a cell with this property and label."""
    return next(q for q in (*OF_KERNELS, *OF_PEERS) if (q.property, q.word) == (prop, word))
