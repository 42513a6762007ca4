"""The kernel under test, for properties: run a sample, compare it with the oracle or with another run."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from packproof.properties.bounds.budget import UNIT_ROUNDOFF, Budget
from packproof.properties.bounds.oracle import OracleAnswer, is_derived, oracle_answer
from packproof.properties.call import (
    BoundVacuous,
    KernelFault,
    MachineLimit,
    NotCompiled,
    OutsideDomain,
    Refusal,
    Result,
    Runner,
)
from packproof.properties.cases.case import SHORT_DTYPES, Case, shorten
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.drawing import draw, dtype_of
from packproof.properties.cases.fitting import find_filler
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.tuned import Tuned, merge_tuned
from packproof.properties.comparison import Comparison, RowMap
from packproof.properties.op import Op
from packproof.properties.promises import Promises
from packproof.properties.stopwatch import span
from packproof.properties.tensor_key import TensorKey, gradient
from packproof.properties.violation import Violation
from packproof.refs.axes import Axes, is_shared, role

T = TypeVar("T")
Tensors = Mapping[TensorKey, Tensor]
_EVERYTHING = Domain()
_REMEMBERED = 256


@dataclass(frozen=True)
class Origin:
    """The origin of compared rows. The budget of its sample applies to them.

    >>> from packproof.properties import Origin
    >>> def last_alone(kernel, case):
    ...     sample = kernel.sample(case)
    ...     packed, alone = kernel.run(sample), kernel.run(sample.alone(-1))
    ...     for key, y in alone.items():
    ...         start = sample.offsets[-2]
    ...         rows = packed[key][start : sample.offsets[-1]]
    ...         yield from kernel.agree(key, rows, y, Origin(sample, start), other="alone")
    """

    sample: Sample
    """The sample with these rows."""
    start: int = 0
    """The first of them in the sample."""


class KernelUnderTest:
    """A kernel with its op and promises, called by a runner.

    op: the op that it computes.
    runner: runs its calls.
    promises: the guarantees of its design.
    gradients: whether it is differentiated.
    domain: the supported calls.
    conventions: alternative conventions of its adapter, as texts.
    takes_cuts: whether it takes `cuts`, the positions at which it cuts the pack over ranks of its own.

    Results of plain runs and the oracle's answers are cached, since several properties need the same ones.

    >>> from packproof.properties import Origin
    >>> def same_again(kernel, case):  # the check of a packproof.Property is given one
    ...     sample = kernel.sample(case)
    ...     first, second = kernel.run(sample), kernel.run(sample)
    ...     for key, y in second.items():
    ...         yield from kernel.agree(key, y, first[key], Origin(sample), other="again")
    """

    def __init__(
        self,
        op: Op,
        runner: Runner,
        promises: Promises,
        *,
        gradients: bool = True,
        domain: Domain = _EVERYTHING,
        conventions: tuple[str, ...] = (),
        takes_cuts: bool = False,
    ) -> None:
        self.op = op
        self.runner = runner
        self.promises = promises
        self.gradients = gradients
        self.domain = domain
        self.conventions = conventions
        self.takes_cuts = takes_cuts
        self.convention = ""
        self.interpreted = False
        self.refusals: list[Refusal] = []
        self.tuned: dict[int, tuple[Tuned, ...]] = {}  # the autotuned kernels by the number of their configuration
        self._samples: OrderedDict[Hashable, Sample] = OrderedDict()
        self._results: OrderedDict[Hashable, Tensors] = OrderedDict()
        self._expected: OrderedDict[Hashable, OracleAnswer] = OrderedDict()
        self._reruns: OrderedDict[Hashable, Tensors] = OrderedDict()

    def sample(self, case: Case) -> Sample:
        with span("draw"):
            return _remember(self._samples, case, lambda: draw(self.op, case))

    def run(self, sample: Sample, *, gradients: bool | None = None, **flags: Any) -> Tensors:
        """Outputs and gradients by key. Raises KernelFault, also for a wrong shape or dtype, and Refused."""
        return self.results(sample, gradients=gradients, **flags)[0]

    def results(
        self, sample: Sample, *, gradients: bool | None = None, note: str = "", **flags: Any
    ) -> tuple[Tensors, Result]:
        """As `run`, with the whole result.

        note: how a property has changed the pack, for the text of a fault.
        """
        with_gradients = self.gradients if gradients is None else gradients
        try:
            result = self.call(sample, gradients=with_gradients, **flags)
            return self._checked_form(sample, result, with_gradients), result
        except (KernelFault, Refusal) as fault:
            fault.note = note
            raise

    def call(self, sample: Sample, **flags: Any) -> Result:
        """Run the kernel. Raises KernelFault and Refusal.

        If its domain requires more rows than the sample has, such as a multiple, zeros are appended, and their results
        are cut off.
        """
        more = find_filler(self.op, self.domain, sample, copies=flags.get("copies", 1))
        if more is None:
            text = f"no pack of lengths {shorten(sample.lengths)} is in the kernel's domain"
            raise OutsideDomain(f"{text}: {'; '.join(self.domain.texts)}")
        filled = sample.followed_by(*more) if any(more) else sample
        with span("kernel"):
            result = self.runner.run(filled.call(**flags, convention=self.convention))
        self.interpreted |= result.interpreted
        if result.tuned:
            self.tuned[sample.configuration] = merge_tuned(self.tuned.get(sample.configuration, ()), result.tuned)
        return _cut(sample, result) if any(more) else result

    @contextmanager
    def optional(self, note: str = "") -> Iterator[None]:
        """An optional part of a property. If the kernel declines it, the property continues after it."""
        try:
            yield
        except Refusal as refused:
            if refused.backward or isinstance(refused, MachineLimit | NotCompiled):
                raise
            refused.note = refused.note or note
            self.refusals.append(refused)

    def with_promises(self, promises: Promises) -> "KernelUnderTest":
        """The same kernel with other promises. Cached results and answers of the oracle are kept."""
        other = self._alike(promises)
        other._samples, other._results, other._reruns = self._samples, self._results, self._reruns
        if not promises.cumsum:
            other._expected = self._expected
        return other

    def in_convention(self, words: str, domain: Domain) -> "KernelUnderTest":
        """The same kernel in another convention ("": its own), with this domain. The oracle's answers are kept."""
        other = self._alike(self.promises)
        other.convention, other.domain = words, domain
        other._samples, other._expected = self._samples, self._expected
        return other

    def _alike(self, promises: Promises) -> "KernelUnderTest":
        other = KernelUnderTest(
            self.op,
            self.runner,
            promises,
            gradients=self.gradients,
            domain=self.domain,
            conventions=self.conventions,
            takes_cuts=self.takes_cuts,
        )
        other.tuned = self.tuned
        return other

    @property
    def values_only(self) -> "KernelUnderTest":
        """The same kernel without gradients."""
        self._values_only.domain = self.domain
        return self._values_only

    @cached_property
    def _values_only(self) -> "KernelUnderTest":
        other = KernelUnderTest(self.op, self.runner, self.promises, gradients=False, takes_cuts=self.takes_cuts)
        other.convention, other._samples, other.tuned = self.convention, self._samples, self.tuned
        return other

    def remembered(self, sample: Sample) -> Tensors:
        """As `run` for a plain call, cached."""
        return _remember(self._results, (sample.digest, sample.configuration), lambda: self.run(sample))

    def rerun(self, case: Case, make: Callable[[], Tensors]) -> Tensors:
        """The result of a second run of a case, cached.

        `determinism` compares it twice if the kernel does not promise equal bits.
        """
        return _remember(self._reruns, case, make)

    def expect(self, sample: Sample) -> OracleAnswer:
        """The oracle's answer. Raises BoundVacuous if the budgets of all outputs are as large as their values."""
        with span("reference"):
            key = (sample.digest, self.gradients)
            answer = _remember(
                self._expected, key, lambda: oracle_answer(sample, self.promises, gradients=self.gradients)
            )
        if answer.vacuous and all(TensorKey(name) in answer.vacuous for name in sample.outputs):
            derived = is_derived(self.op, self.promises)
            bound, way_out = (
                (f"derived from {self.op.name}'s reference", "declare `absolute`")
                if derived
                else (f"that {self.op.name} declares", "leave out `absolute`, or sum fewer terms in it")
            )
            raise BoundVacuous(
                f"the error bound {bound} is so large for {', '.join(map(str, answer.vacuous))} that it cannot judge "
                f"a kernel; {way_out}"
            )
        return answer

    def renew(self) -> None:
        """Discard the kernel's results, as for another kernel. The oracle's answers are kept."""
        self._results.clear()
        self._reruns.clear()

    def _checked_form(self, sample: Sample, result: Result, gradients: bool) -> Tensors:
        """The result's tensors by key. Raises KernelFault for a wrong shape or dtype, or if outputs are detached."""
        tokens = str(sample.inputs[next(iter(self.op.inputs))].dtype).removeprefix("torch.")
        found: dict[TensorKey, Tensor] = {}
        for name in sample.outputs:
            y, want = result.outputs[name], dtype_of(self.op, name, tokens)
            axes = " ".join(sample.axes[name])
            if tuple(y.shape) != sample.shape(name):
                raise KernelFault(
                    "malformed", f"{name} has shape {tuple(y.shape)}, expected {sample.shape(name)} ({axes})"
                )
            if y.dtype != want:
                raise KernelFault("malformed", f"{name} is {_plain(y.dtype)}, expected {_plain(want)}")
            found[TensorKey(name)] = y
        if gradients and sample.wrt and sum(sample.lengths) and not result.gradients:
            raise KernelFault(
                "malformed",
                f"{' and '.join(sample.outputs)} came back detached: no gradient reaches any input; one without a "
                "backward pass takes --forward-only, or declares gradients=False",
            )
        for name in sample.wrt if gradients else ():
            g = result.gradients.get(name)
            found[gradient(name)] = torch.zeros_like(sample.inputs[name]) if g is None else g
        return found

    def row_map(self, key: TensorKey, sample: Sample) -> RowMap:
        return RowMap(sample.axes[key.name], sample.offsets_of(sample.axes[key.name]))

    def shared(self, key: TensorKey, sample: Sample) -> bool:
        """Whether all sequences share the tensor."""
        return is_shared(sample.axes[key.name])

    def agree(
        self,
        key: TensorKey,
        got: Tensor,
        want: Tensor,
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
        got, want: the rows of both runs.
        origin: the origin of `got`.
        against: the origin of `want`, if its sample has a budget of its own.
        other: the source of `want` in reports.
        note: how a property has changed the pack.
        exact: whether bits must be equal; None: if the kernel promises elements independent of the pack. A shared
        gradient is always compared within the budget, since the order of its sum may change with the pack.
        summands: as in `budget`.
        """

        def allowed() -> Budget:
            mine = self._budget_of(key, origin, len(got), summands)
            return mine + (self._budget_of(key, against, len(got)) if against and self.pack_decides else mine)

        bitwise = (self.promises.independent if exact is None else exact) and not self.shared(key, origin.sample)
        rows = self.row_map(key, origin.sample)
        compared = Comparison(key, got, want, rows, None if bitwise else allowed, origin.start, other, note)
        for violation in compared.violations():
            yield self.beside_the_reference(violation, origin.sample)

    def _budget_of(self, key: TensorKey, origin: Origin, rows: int, summands: Sequence[Tensor] = ()) -> Budget:
        return self.budget(key, origin.sample, summands=summands)[slice(origin.start, origin.start + rows)]

    def beside_the_reference(self, violation: Violation, sample: Sample, *, pieces: int = 0) -> Violation:
        """The violation with the value of the reference, which tells the incorrect run.

        pieces: as in `budget`.
        """
        key = violation.tensor
        assert key is not None
        try:
            answer = self.expect(sample)
        except Refusal:
            return violation
        leading = self.row_map(key, sample).index(violation.sequence, violation.position)
        index = (leading if violation.slot < 0 else (violation.slot,)) + violation.index
        value, allowed = answer.values[key][index], self.budget(key, sample, pieces=pieces).total[index]
        return violation if value.isnan() else replace(violation, expected=float(value), allowed=float(allowed))

    @property
    def pack_decides(self) -> bool:
        """Whether an element's budget depends on the rest of the pack: its chunks share cumulative sums."""
        return self.promises.cumsum and not self.promises.independent

    def budget(self, key: TensorKey, sample: Sample, *, pieces: int = 0, summands: Sequence[Tensor] = ()) -> Budget:
        """The budget of a tensor in a comparison of two runs.

        It adds two roundings to the budget of a comparison with the reference. The first is for a shared gradient: the
        other run stored its summands or its sum. The second is for a state, or its gradient, stored at each hand-over:
        it reaches an element with the weight of the state's terms, bounded by B.

        pieces: the number of hand-overs.
        summands: the stored summands of a shared gradient; empty if only the sum was stored.
        """
        answer = self.expect(sample)
        allowed, absolute = answer.budgets[key], answer.magnitudes[key]
        stored = allowed.rounding
        if self.shared(key, sample):
            parts = [x.double().abs() for x in summands] or [answer.values[key].abs()]
            stored = stored + UNIT_ROUNDOFF[sample.inputs[key.name].dtype] * torch.stack(parts).sum(0)
        if pieces:
            assert self.op.carried_names is not None
            given = {**sample.cotangents, **sample.inputs}
            tokens = str(sample.inputs[next(iter(self.op.inputs))].dtype).removeprefix("torch.")
            dtypes = (given[n].dtype if n in given else dtype_of(self.op, n, tokens) for n in self.op.carried_names)
            stored = stored + pieces * max(UNIT_ROUNDOFF[dtype] for dtype in dtypes) * absolute
        return replace(allowed, rounding=stored)


def _cut(sample: Sample, result: Result) -> Result:
    """The result of the sample, without appended rows and sequences."""
    n = len(sample.lengths)

    def cut(tensors: Mapping[str, Tensor], prefix: str = "") -> Mapping[str, Tensor]:
        def end(axes: Axes) -> int | None:
            return {"token": sample.offsets_of(axes)[-1] + sample.slack, "sequence": n, "shared": None}[role(axes)]

        return {name: x[: end(sample.axes[name.removeprefix(prefix)])] for name, x in tensors.items()}

    after = {name: x for name, x in result.inputs_after.items() if name not in sample.metadata}
    offsets = {name: result.inputs_after[name][: n + 1] for name in sample.metadata if name in result.inputs_after}
    return replace(
        result,
        outputs=cut(result.outputs),
        outliers={
            name: (k, cut({name.partition(":")[2]: x})[name.partition(":")[2]])
            for name, (k, x) in result.outliers.items()
        },
        gradients=cut(result.gradients, "cotangent:"),
        inputs_after={**cut(after, "cotangent:"), **offsets} if after else {},
    )


def _plain(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return SHORT_DTYPES.get(name, name)


def _remember(store: OrderedDict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    if key not in store:
        store[key] = make()
        while len(store) > _REMEMBERED:
            store.popitem(last=False)
    store.move_to_end(key)
    return store[key]
