"""The kernel under test, for properties: run a sample, compare it with the oracle or another run, judge a case."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Protocol

from torch import Tensor

from packproof.base.axes import is_shared
from packproof.base.errors import KernelFault
from packproof.base.provenance.computed import Computed
from packproof.base.stopwatch import span
from packproof.base.tuned import Tuned, merge_tuned
from packproof.properties.bounds.budget import Budget
from packproof.properties.bounds.oracle import OracleAnswer, oracle_answer, reference_fits, require_decisive
from packproof.properties.bounds.repeated_packs import repeated_answer, repeats_itself
from packproof.properties.bounds.two_runs import budget_of_two_runs
from packproof.properties.calling.call import (
    FailedCompilation,
    MachineLimit,
    MissingModule,
    OutsideDomain,
    Refusal,
    Result,
    Runner,
    VacuousBound,
)
from packproof.properties.calling.tensor_key import TensorKey
from packproof.properties.cases.case import Case, shorten
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.fitting import find_filler
from packproof.properties.cases.result_tensors import Tensors, tensors_by_key, without_filler
from packproof.properties.cases.sample import Sample
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.comparison import Comparison, Origin, RowMap, add_reference_value
from packproof.properties.judgement.run_cache import RunCache
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.op import Op

_EVERYTHING = Domain()
_REFUSED = "the kernel refuses this call, and its contract has it"


@dataclass(eq=False)
class KernelUnderTest:
    """A kernel with its op and promises, called by a runner.

    `dataclasses.replace` makes a copy with other promises, or without gradients. Both share one cache and one list of
    refusals. A copy with another runner or convention takes `cache.without_results()`.

    >>> from packproof.properties import Origin
    >>> def same_again(kernel, case):  # the check of a packproof.Property is given one
    ...     sample = kernel.sample(case)
    ...     first, second = kernel.run(sample), kernel.run(sample)
    ...     for key, y in second.items():
    ...         yield from kernel.agree(key, y, first[key], Origin(sample), other="again")
    """

    op: Op
    """The op that it computes."""
    runner: Runner
    """Runs its calls."""
    promises: Promises
    """The guarantees of its design."""
    _: KW_ONLY
    gradients: bool = True
    """Whether it is differentiated."""
    domain: Domain = _EVERYTHING
    """The supported calls."""
    fixed: Collection[str] = ()
    """Options for which it has no argument."""
    conventions: tuple[str, ...] = ()
    """Alternative conventions of its adapter, as texts."""
    page_sizes: tuple[int, ...] = ()
    """The rows of a page, where its keys or slots lie in the pages of a cache."""
    takes_cuts: bool = False
    """Whether it takes `cuts`, the positions at which it cuts the pack over ranks of its own."""
    may_refuse: bool = True
    """Whether it may decline calls in its domain. Otherwise a refusal is a violation, as an error is."""
    convention: str = ""
    """The convention of its calls; "" for its own."""
    interpreted: bool = False
    """Whether a call ran Triton programs in the interpreter."""
    refusals: list[Refusal] = field(default_factory=list)
    """Declined calls of optional parts of a property."""
    change: str = ""
    """The change of the pack that a replay asks for, as the violation's note has it; "" for all of a property. `size`
    then runs this part alone."""
    slow_calls_until: float = math.inf
    """The time until which properties that fill the memory may make calls of many seconds, by time.monotonic."""
    tuned: dict[int, tuple[Tuned, ...]] = field(default_factory=dict)
    """The autotuned kernels by the number of their configuration."""
    computed: dict[Computed, None] = field(default_factory=dict)
    """Who computed its traced calls, in the order of the first one."""
    perturbed_calls: Counter[str] = field(default_factory=Counter)
    """The calls made under perturbation, by the property that made them."""
    cache: RunCache = field(default_factory=RunCache)
    """Samples, results and answers of the oracle that were computed for it."""

    @property
    def values_only(self) -> "KernelUnderTest":
        """The same kernel without gradients."""
        return replace(self, gradients=False)

    def sample(self, case: Case) -> Sample:
        """The tensors of a case, cached."""
        with span("draw"):
            return self.cache.samples.get(case, lambda: draw(self.op, case))

    def run(self, sample: Sample, *, gradients: bool | Collection[str] | None = None, **flags: Any) -> Tensors:
        """Outputs and gradients by key. Raises KernelFault, also for a wrong shape or dtype, and Refusal.

        gradients: whether it is differentiated, or the inputs by which it is; None: whether the kernel is.
        """
        return self.run_with_result(sample, gradients=gradients, **flags)[0]

    def run_with_result(
        self, sample: Sample, *, gradients: bool | Collection[str] | None = None, note: str = "", **flags: Any
    ) -> tuple[Tensors, Result]:
        """As `run`, with the whole result.

        note: how a property has changed the pack, for the text of a fault.
        """
        with_gradients = self.gradients if gradients is None else gradients
        try:
            result = self.call(sample, gradients=with_gradients, **flags)
            return tensors_by_key(sample, result, gradients=with_gradients), result
        except (KernelFault, Refusal) as fault:
            fault.note = note
            raise

    def call(self, sample: Sample, **flags: Any) -> Result:
        """Run the kernel. Raises KernelFault and Refusal.

        If its domain requires more rows than the sample has, such as a multiple, zeros are appended, and their results
        are cut off.
        """
        filler = find_filler(self.op, self.domain, sample, copies=flags.get("copies", 1))
        if filler is None:
            text = f"no pack of lengths {shorten(sample.lengths)} is in the kernel's domain"
            raise OutsideDomain(f"{text}: {'; '.join(self.domain.texts)}")
        filled = sample.followed_by(*filler) if any(filler) else sample
        with span("kernel"):
            result = self._run(filled, **flags)
        self.interpreted |= result.interpreted
        self.computed.update(dict.fromkeys(result.computed))
        if result.tuned:
            self.tuned[sample.configuration] = merge_tuned(self.tuned.get(sample.configuration, ()), result.tuned)
        return without_filler(sample, result) if any(filler) else result

    def _run(self, sample: Sample, **flags: Any) -> Result:
        """Run the kernel. An exception for want of an input is no fault: its default may only follow another one's."""
        try:
            return self.runner.run(sample.call(**flags, convention=self.convention))
        except OutsideDomain as outside:  # said by its adapter, or by the kernel itself
            raise outside if self.may_refuse else Refusal(str(outside)) from None
        except KernelFault as fault:
            if sample.omitted and fault.kind == "raised":
                raise OutsideDomain(f"it cannot do without {', '.join(sample.omitted)}: {fault}") from fault
            raise

    @contextmanager
    def optional(self, note: str = "", *, backward: bool = False, words: tuple[str, ...] = ()) -> Iterator[None]:
        """An optional part of a property. If the kernel declines it, the property continues after it.

        backward: also if it declines to differentiate there.
        words: an error that has one of them declines it, too.
        """
        try:
            yield
        except KernelFault as fault:
            if not fault.refuses(*words):
                raise
            self._decline(Refusal(str(fault)), note)
        except Refusal as refusal:
            if (refusal.backward and not backward) or isinstance(
                refusal, MachineLimit | FailedCompilation | MissingModule
            ):
                raise
            self._decline(refusal, note)

    def _decline(self, refusal: Refusal, note: str) -> None:
        refusal.note = refusal.note or note
        self.refusals.append(refusal)

    def cached_run(self, sample: Sample) -> Tensors:
        """As `run` for a plain call, cached."""
        key = (sample.digest, sample.configuration, self.gradients)
        return self.cache.results.get(key, lambda: self.run(sample))

    def cached_rerun(self, case: Case, make: Callable[[], Tensors]) -> Tensors:
        """The result of a second run of a case, cached.

        `determinism` compares it twice if the kernel does not promise equal bits.
        """
        return self.cache.reruns.get((case, self.gradients), make)

    def expect(self, sample: Sample, copies: int | None = None) -> OracleAnswer:
        """The oracle's answer. Raises VacuousBound if the budgets of all outputs are as large as their values.

        copies: see `oracle_answer`.
        """
        with span("reference"):
            key = (sample.digest, self.gradients, self._budget_promises, copies)
            answer = self.cache.answers.get(key, lambda: self._answer(sample, copies))
        require_decisive(answer, sample, self.promises)
        return answer

    def _answer(self, sample: Sample, copies: int | None) -> OracleAnswer:
        if repeats_itself(sample):
            return repeated_answer(sample, self.promises, lambda part: self.expect(part, copies))
        with reference_fits():
            return oracle_answer(sample, self.promises, gradients=self.gradients, copies=copies)

    @property
    def _budget_promises(self) -> Hashable:
        """The promises that decide on budgets. Where chunks start matters only for cumulative sums."""
        return self.promises if self.promises.cumsum else (self.promises.compute, self.promises.saved_outputs)

    def row_map(self, key: TensorKey, sample: Sample) -> RowMap:
        """The sequence and position of each row of a tensor."""
        return RowMap(sample.axes[key.name], sample.offsets_of(sample.axes[key.name]))

    def is_shared(self, key: TensorKey, sample: Sample) -> bool:
        """Whether all sequences share the tensor."""
        return is_shared(sample.axes[key.name])

    def agree(
        self,
        key: TensorKey,
        actual: Tensor,
        baseline: Tensor,
        origin: Origin,
        *,
        against: Origin | None = None,
        other: str,
        note: str = "",
        exact: bool | None = None,
        summands: Sequence[Tensor] = (),
    ) -> Iterator[Violation]:
        """Compare rows of a tensor in two runs of the kernel.

        key: the tensor.
        actual, baseline: the rows of both runs.
        origin: the origin of `actual`.
        against: the origin of `baseline`, if its sample has a budget of its own.
        other: the source of `baseline` in reports.
        note: how a property has changed the pack.
        exact: whether bits must be equal; None: if the kernel promises elements independent of the pack. A shared
        gradient is always compared within the budget, since the order of its sum may change with the pack, and so is
        a reduction over the pack. The share of a sequence in it is rounded, and with it each gradient.
        summands: as in `budget`.
        """

        def row_budget(at: Origin, summands: Sequence[Tensor] = ()) -> Budget:
            rows = slice(at.start, at.start + (len(actual) if actual.ndim else 1))
            return self.budget(key, at.sample, summands=summands)[rows]

        def allowed() -> Budget:
            budget = row_budget(origin, summands)
            return budget + (row_budget(against) if against and self.budget_depends_on_pack else budget)

        by_default = self.promises.independent and not (self.op.reductions and key.is_gradient)
        bitwise = (by_default if exact is None else exact) and not self.is_shared(key, origin.sample)
        rows = self.row_map(key, origin.sample)
        budget = None if bitwise else allowed
        comparison = Comparison(key, actual, baseline, rows, budget, origin.start, other, note)
        for violation in comparison.violations():
            yield self.with_reference_value(violation, origin.sample)

    def with_reference_value(self, violation: Violation, sample: Sample, *, handovers: int = 0) -> Violation:
        """The violation with the value of the reference, to tell which run is incorrect.

        handovers: as in `budget`.
        """
        key = violation.tensor
        assert key is not None
        try:
            answer, budget = self.expect(sample), self.budget(key, sample, handovers=handovers)
        except Refusal:
            return violation
        return add_reference_value(violation, answer, budget, self.row_map(key, sample))

    @property
    def budget_depends_on_pack(self) -> bool:
        """Whether an element's budget depends on the rest of the pack: its chunks share cumulative sums."""
        return self.promises.cumsum and not self.promises.independent

    def budget(self, key: TensorKey, sample: Sample, *, handovers: int = 0, summands: Sequence[Tensor] = ()) -> Budget:
        """The budget of a tensor in a comparison of two runs.

        handovers: how often a state is stored and handed on.
        summands: the stored summands of a shared gradient; empty if only its sum was stored.
        """
        return budget_of_two_runs(self.expect(sample), key, sample, handovers=handovers, summands=summands)


class Law(Protocol):
    """The part of a property that judges a case."""

    @property
    def check(self) -> Callable[[KernelUnderTest, Case], Iterator[Violation]]:
        """Yields the violations at one case."""


def first_violation(kernel: KernelUnderTest, law: Law, case: Case, like: Violation | None = None) -> Violation | None:
    """The first violation of a property at a case, or None. A fault of the kernel violates every property.

    like: the violation at a larger case, to look for one of its kind; None for any.
    """
    try:
        violations = (v for v in law.check(kernel, case) if like is None or v.is_like(like))
        return next(violations, None)
    except KernelFault as fault:
        violation = Violation(text=str(fault), note=fault.note, fault=fault.kind)
        return violation if like is None or violation.is_like(like) else None


def judge_case(
    kernel: KernelUnderTest, law: Law, case: Case, like: Violation | None = None
) -> tuple[Violation | None, Refusal | None]:
    """The first violation of a property at a case, and the refusal that kept it from being judged.

    like: as in `first_violation`.

    If the kernel refuses to differentiate, its values are judged. If a derived bound is vacuous for wild data, plain
    data of the same layout are judged.
    """
    violation, refusal = _judge_answer(kernel, law, case, like)
    if violation is None and type(refusal) is Refusal and not kernel.may_refuse:
        refused = Violation(text=f"{refusal}\n{_REFUSED}", note=refusal.note, fault="raised")
        return (refused if like is None or refused.is_like(like) else None), None
    return violation, refusal


def _judge_answer(
    kernel: KernelUnderTest, law: Law, case: Case, like: Violation | None
) -> tuple[Violation | None, Refusal | None]:
    """As `judge_case`, whether or not the kernel may refuse."""
    try:
        return first_violation(kernel, law, case, like), None
    except VacuousBound as vacuous:
        plain_case = case.replace(regime="normal")
        return (None, vacuous) if case == plain_case else _judge_answer(kernel, law, plain_case, like)
    except Refusal as refused:
        if not refused.backward:
            return None, refused
        backward_refusal = refused
    try:
        return first_violation(kernel.values_only, law, case, like), backward_refusal
    except Refusal as refused:
        return None, refused
