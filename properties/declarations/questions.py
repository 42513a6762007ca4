"""Tests of promises that a kernel does not make. They are reported and do not fail the run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from packproof.properties.cases.domain import Domain
from packproof.properties.declarations.declaration import Declaration
from packproof.properties.laws.call_contract import DETERMINISM, MEMORY
from packproof.properties.laws.invariance import ISOLATION, PACKING
from packproof.properties.steadiness.law import STEADY


@dataclass(frozen=True)
class Question:
    """A promise to test any kernel for."""

    label: str
    """The label in the names of cells."""
    property: str
    """The property that tests the promise."""
    meaning: str
    """The promise in words, as reports have it."""
    with_promise: Callable[[Declaration], Declaration | None]
    """Adds the promise to a declaration. None if the declaration has it already."""


def _promise_isolation(declaration: Declaration) -> Declaration | None:
    return (
        None
        if declaration.promises.isolated
        else replace(declaration, promises=replace(declaration.promises, isolated=True))
    )


def _promise_independence(declaration: Declaration) -> Declaration | None:
    return (
        None
        if declaration.promises.independent
        else replace(declaration, promises=replace(declaration.promises, grid="sequence"))
    )


def _promise_determinism(declaration: Declaration) -> Declaration | None:
    return (
        None
        if declaration.promises.deterministic
        else replace(declaration, promises=replace(declaration.promises, deterministic=True))
    )


def _allow_slack(declaration: Declaration) -> Declaration | None:
    if declaration.domain.allows_slack:
        return None
    return replace(declaration, domain=Domain(tuple(c for c in declaration.domain.conditions if c.names != {"slack"})))


def _promise_steadiness(declaration: Declaration) -> Declaration | None:
    return (
        None
        if declaration.promises.steady
        else replace(declaration, promises=replace(declaration.promises, steady=True))
    )


NAN_ISOLATION = Question(
    "NaN", ISOLATION.name, "NaN, Inf and huge values in one sequence reach no other", _promise_isolation
)
PACKED_BITS = Question(
    "same bits", PACKING.name, "a sequence has the same bits alone and in a pack", _promise_independence
)
REPEATED_BITS = Question("same bits", DETERMINISM.name, "the same call gives the same bits", _promise_determinism)
SLACK_ROWS = Question(
    "slack", MEMORY.name, "rows past the last sequence come back as zeros, and reach no sequence", _allow_slack
)
NEW_LAYOUTS = Question(
    "new layouts",
    STEADY.name,
    "a new layout of known shapes makes the host compile, tune and read nothing, and keeps no memory",
    _promise_steadiness,
)

OF_KERNELS = (NAN_ISOLATION, PACKED_BITS, REPEATED_BITS, NEW_LAYOUTS)
OF_PEERS = (NAN_ISOLATION, REPEATED_BITS, SLACK_ROWS)


def open_questions(declaration: Declaration) -> Iterator[tuple[Question, Declaration]]:
    """The promises missing from a kernel's declaration, each with the declaration that includes it."""
    for question in OF_KERNELS:
        with_promise = question.with_promise(declaration)
        if with_promise is not None:
            yield question, with_promise


def find_question(prop: str, label: str) -> Question:
    """The question of a cell with this property and label."""
    return next(q for q in (*OF_KERNELS, *OF_PEERS) if (q.property, q.label) == (prop, label))
