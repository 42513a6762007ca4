"""A property as data: its law, its check, its cases, and all attributes that other modules read."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from packproof.base.declared import require
from packproof.base.errors import checked_init
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.violation import Violation

Check = Callable[[KernelUnderTest, Case], Iterator[Violation]]
ChooseCases = Callable[[Space, Collection[Case]], list[Case]]
SharedResults = Literal["reference", "runs", "nothing"]


@dataclass(frozen=True)
class Illustration:
    """The entry of a property in docs/properties.md, beside its law."""

    formula: str
    """The law as an equation."""
    original_run: tuple[str, str]
    """The original run: its name and its pack, in the notation of docs/properties.py."""
    changed_run: tuple[str, str]
    """The changed run: its name and its pack."""
    misses: str
    """Bugs that the property cannot detect."""
    note: str = ""
    """A rule and its reason."""


def all_drawn_cases(_space: Space, drawn_cases: Collection[Case]) -> list[Case]:
    """The drawn cases, unchanged."""
    return list(drawn_cases)


def always_applies(_space: Space) -> str:
    return ""


def needs_gpu(reason: str) -> Callable[[Space], str]:
    """A `skip_reason`: `reason` for a kernel that does not run on a GPU."""
    return lambda space: "" if space.on_gpu else reason


@checked_init
@dataclass(frozen=True)
class Property:
    """A law of kernels: its check, its cases, and how packproof runs and reports it.

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
    """Its name in reports and replay files."""
    law: str
    """The law in one sentence."""
    check: Check
    """Yields the violations of the law at one case."""
    cases: ChooseCases = all_drawn_cases
    """Selects among the drawn cases, or returns others instead."""
    skip_reason: Callable[[Space], str] = always_applies
    """Why the law does not apply to a space of cases; "" where it applies."""
    nothing_to_compare: str = "no example has anything to compare"
    """The reason to report where no example had anything to compare."""
    dtype_independent: bool = False
    """It compares runs of a kernel with each other. Their rounding is the same, so the layout decides. Where calls are
    slow, the dtypes share its cases.
    """
    shares: SharedResults = "runs"
    """The results that it has in common with other properties: "reference" (the reference's answers), "runs" (plain
    runs of the kernel) or "nothing". Properties with the same value run in one process.
    """
    crosses_thresholds: bool = False
    """It also judges cases past the constants of the kernel's source and past powers of two, in one dtype."""
    judges_empty_packs: bool = False
    """Its law names packs without tokens: it draws them for every kernel."""
    varies_with_seed: bool = False
    """Its check depends on the case's seed, so one case does not test everything."""
    perturbs_with_nan: bool = False
    """It puts NaN into other sequences; the map of a failure may need NaN too."""
    decides_mutants: bool = True
    """It judges mutants of a kernel's source."""
    quick: bool = False
    """It judges few cases; a parallel test run starts it last."""
    fills_memory: bool = False
    """Its calls take the memory of a GPU, and other calls wait; in its process it runs last."""
    of_the_op: str = ""
    """The fields by which an op declares that its reference keeps the law, and the alternative; "" for a law of kernels
    alone. A user's reference that breaks the law is refused before any kernel is judged.
    """
    illustration: Illustration | None = None
    """Its entry in docs/properties.md."""

    def __post_init__(self) -> None:
        location = f"property {self.name!r}"
        require(isinstance(self.name, str) and bool(self.name), "property", "name", self.name, "a name")
        require(isinstance(self.law, str), location, "law", self.law, "a sentence")
        require(isinstance(self.of_the_op, str), location, "of_the_op", self.of_the_op, "a sentence, or ''")
        for name in ("check", "cases", "skip_reason"):
            require(callable(getattr(self, name)), location, name, getattr(self, name), "a function")
        allowed_words = get_args(SharedResults)
        require(
            self.shares in allowed_words,
            location,
            "shares",
            self.shares,
            f"one of {', '.join(map(repr, allowed_words))}",
        )

    def suited(self, space: Space, drawn_cases: Collection[Case]) -> list[Case]:
        """The cases for its check, each in the kernel's domain."""
        if self.skip_reason(space):
            return []
        return [case for case in map(space.fit, self.cases(space, drawn_cases)) if case]
