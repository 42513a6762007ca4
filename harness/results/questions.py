"""What a kernel is asked though it does not promise it: reported, and not held against it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from packproof.properties.call_contract import DETERMINISM, MEMORY
from packproof.properties.declaration import Declaration
from packproof.properties.domain import Domain
from packproof.properties.invariance import ISOLATION, PACKING


@dataclass(frozen=True)
class Question:
    """A promise that may be asked of any kernel.

    word: in the names of cells. property: asks it. meaning: what holds where it is kept.
    raised: the declaration that promises it, or None where the kernel's own does.
    """

    word: str
    property: str
    meaning: str
    raised: Callable[[Declaration], Declaration | None]


def _isolated(said: Declaration) -> Declaration | None:
    return None if said.promises.isolated else replace(said, promises=replace(said.promises, isolated=True))


def _independent(said: Declaration) -> Declaration | None:
    return None if said.promises.independent else replace(said, promises=replace(said.promises, grid="sequence"))


def _deterministic(said: Declaration) -> Declaration | None:
    return None if said.promises.deterministic else replace(said, promises=replace(said.promises, deterministic=True))


def _with_slack(said: Declaration) -> Declaration | None:
    if said.domain.allows_slack:
        return None
    return replace(said, domain=Domain(tuple(c for c in said.domain.conditions if c.names != {"slack"})))


NAN = Question("NaN", ISOLATION.name, "NaN, Inf and huge values in one sequence reach no other", _isolated)
ALONE = Question("same bits", PACKING.name, "a sequence has the same bits alone and in a pack", _independent)
TWICE = Question("same bits", DETERMINISM.name, "the same call gives the same bits", _deterministic)
SLACK = Question(
    "slack", MEMORY.name, "rows past the last sequence come back as zeros, and reach no sequence", _with_slack
)

OF_KERNELS = (NAN, ALONE, TWICE)
OF_PEERS = (NAN, TWICE, SLACK)


def open_questions(declared: Declaration) -> Iterator[tuple[Question, Declaration]]:
    """What a kernel's declaration does not promise, each with the declaration that does."""
    for question in OF_KERNELS:
        raised = question.raised(declared)
        if raised is not None:
            yield question, raised


def question_of(prop: str, word: str) -> Question:
    """The question that a cell of this property with this word asks."""
    return next(q for q in (*OF_KERNELS, *OF_PEERS) if (q.property, q.word) == (prop, word))
