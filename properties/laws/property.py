"""A property as data: its law, its check, the cases that it is judged at, and all that others read of it."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space
from packproof.properties.declared import require
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.violation import Violation
from packproof.refs.errors import checked_init

Check = Callable[[KernelUnderTest, Case], Iterator[Violation]]
ChooseCases = Callable[[Space, Collection[Case]], list[Case]]
Shared = Literal["reference", "runs", "nothing"]


@dataclass(frozen=True)
class Illustration:
    """What the page of a property shows beside its law.

    formula: the law as an equation. first, second: two runs, each a name and its pack, as docs/properties.py writes it.
    misses: what the property cannot see. note: a rule and its reason.
    """

    formula: str
    first: tuple[str, str]
    second: tuple[str, str]
    misses: str
    note: str = ""


def every_case(_space: Space, drawn: Collection[Case]) -> list[Case]:
    """The cases as they were drawn."""
    return list(drawn)


def always_applies(_space: Space) -> str:
    return ""


def needs_gpu(why: str) -> Callable[[Space], str]:
    """A `skip_reason` that is `why` where the kernel does not run on a GPU."""
    return lambda space: "" if space.on_gpu else why


@checked_init
@dataclass(frozen=True)
class Property:
    """A law that kernels have to keep, and all that the rest of packproof has to know of it.

    name: in cells, reports and replay files. law: one sentence. check: yields what breaks the law at one case.
    cases: those of the drawn cases that it is judged at, or others in their place.
    skip_reason: why no case of a space is judged by it; "" where it applies.
    nothing_to_compare: why examples that were drawn had nothing to compare.
    dtype_independent: it compares runs of a kernel with each other, which round alike, so that the layout decides what
        shows: where calls are slow, the dtypes share its cases.
    shares: what its cells need that those of other properties need too: the reference's answers, plain runs of the
        kernel, or nothing. Properties that share run in one process, beside those that share something else.
    judges_empty_packs: its law names packs without tokens, so that it draws them for every kernel.
    varies_with_seed: what it does to a case depends on the case's seed, so that one case does not try everything.
    perturbs_with_nan: it puts NaN into other sequences, so that the map of a failure may have to as well.
    decides_mutants: mutants of a kernel's source are judged by it.
    quick: it judges few cases: a parallel test run leaves it for last.
    fills_memory: its calls take the memory of a GPU, for which others wait: in its process it comes last.
    of_the_op: which fields of an op declare that its reference keeps the law, and what to declare instead; "" for a law
        of kernels alone. A user's reference that breaks it is refused before any kernel is judged.
    illustration: for docs/properties.md.

    >>> import packproof
    >>> def finite(kernel, case):
    ...     sample = kernel.sample(case)
    ...     for key, y in kernel.run(sample, gradients=False).items():
    ...         if not y.isfinite().all():
    ...             yield packproof.properties.Violation(key, text="an output is not finite")
    >>> packproof.Property("finite", "Finite inputs have finite outputs.", finite).name
    'finite'
    """

    name: str
    law: str
    check: Check
    cases: ChooseCases = every_case
    skip_reason: Callable[[Space], str] = always_applies
    nothing_to_compare: str = "no example has anything to compare"
    dtype_independent: bool = False
    shares: Shared = "runs"
    judges_empty_packs: bool = False
    varies_with_seed: bool = False
    perturbs_with_nan: bool = False
    decides_mutants: bool = True
    quick: bool = False
    fills_memory: bool = False
    of_the_op: str = ""
    illustration: Illustration | None = None

    def __post_init__(self) -> None:
        where = f"property {self.name!r}"
        require(isinstance(self.name, str) and bool(self.name), "property", "name", self.name, "a name")
        require(isinstance(self.law, str), where, "law", self.law, "a sentence")
        require(isinstance(self.of_the_op, str), where, "of_the_op", self.of_the_op, "a sentence, or ''")
        for name in ("check", "cases", "skip_reason"):
            require(callable(getattr(self, name)), where, name, getattr(self, name), "a function")
        words = get_args(Shared)
        require(self.shares in words, where, "shares", self.shares, f"one of {', '.join(map(repr, words))}")

    def suited(self, space: Space, drawn: Collection[Case]) -> list[Case]:
        """The cases that it is judged at, each in the kernel's domain."""
        if self.skip_reason(space):
            return []
        return [case for case in map(space.fit, self.cases(space, drawn)) if case]
