"""Whether a tuner's candidate is accurate: its outputs judged by the derived budget, in place of a tolerance.

A tuner compares candidates with a baseline in their own precision. Here the float64 reference decides, so that neither
the order of a sum nor the baseline does, and a row that crosses a boundary is out by thousands of budgets.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from packproof.base.axes import Axes, is_shared
from packproof.base.errors import ArgumentError, InaccurateError, UsageError, checked_call
from packproof.base.wording import plural
from packproof.debug.own_tensors import Tool, describe_value, run_reference, sample_of_tensors
from packproof.properties.bounds import OracleAnswer, oracle_answer
from packproof.properties.calling import TensorKey
from packproof.properties.cases import Sample, dtype_of
from packproof.properties.contracts import Contract
from packproof.properties.declarations import Promises
from packproof.properties.judgement import Comparison, RowMap
from packproof.properties.ops import Op

_NAME = "accuracy"
C = TypeVar("C", bound=Hashable)


@checked_call
def accuracy(
    op: str | Op,
    inputs: Mapping[str, Tensor],
    cu_seqlens: Tensor,
    *,
    options: Mapping[str, Any] | None = None,
    promises: Promises | None = None,
    outputs: Callable[[Any], Any] | None = None,
    max_tokens: int = 4096,
) -> "Accuracy":
    """The accuracy check of one call, for an autotuner.

    op: name of the op, or an Op.
    inputs: tensors of the call by the op's names, on any device, in fp64, fp32, bf16 or fp16. They are copied.
    cu_seqlens: int32 or int64 (s + 1,).
    options: of the op, such as {"activation": "silu"}.
    promises: the precision of the kernel; by default that of `packproof contract`, for usual kernels of the op.
    outputs: a function from what the tuner passes to the op's outputs; by default a tensor, or a tuple in order.
    max_tokens: the reference computes sequences of at most this many tokens together, the shortest and longest among
        them: it goes token by token. All of them for an op with a reduction over the pack.

    Raises ArgumentError, LayoutError or UsageError for arguments that do not fit the op.

    >>> import torch
    >>> import packproof
    >>> x, weight, cu_seqlens = torch.ones(5, 3), torch.ones(3, 2), torch.tensor([0, 2, 5])
    >>> check = packproof.accuracy("causal_conv1d", {"x": x, "weight": weight}, cu_seqlens)
    >>> check.accepts(packproof.refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens))
    True
    >>> check.accepts(packproof.refs.causal_conv1d(x, weight, cu_seqlens=torch.tensor([0, 5])))
    False
    """
    if not isinstance(op, str | Op):
        raise ArgumentError(
            f"{_NAME}: op is {describe_value(op)} but the name of an op, or a packproof.Op, was expected"
        )
    if not isinstance(max_tokens, int) or max_tokens < 1:
        raise ArgumentError(f"{_NAME}: max_tokens is {describe_value(max_tokens)} but a number above 0 was expected")
    if outputs is not None and not callable(outputs):
        raise ArgumentError(f"{_NAME}: outputs is {describe_value(outputs)} but a function was expected")
    tool = Tool.of_op(_NAME, op, promises)
    sample = sample_of_tensors(tool, inputs, cu_seqlens, options)
    usual = Contract.for_op(tool.op).promises
    return Accuracy(tool, sample, promises or usual, outputs or (lambda result: result), max_tokens)


def _form(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {shape}"


@dataclass(eq=False)
class Accuracy:
    """Judges what candidates of one call return. `accuracy` makes it.

    It has the signature of Helion's `autotune_baseline_accuracy_check_fn`.

    >>> import torch
    >>> import packproof
    >>> x, cu_seqlens = torch.ones(4, 1), torch.tensor([0, 4])
    >>> check = packproof.accuracy("causal_conv1d", {"x": x, "weight": torch.ones(1, 1)}, cu_seqlens)
    >>> check.accurate([0.5, 1.0], lambda factor: x * factor)
    [1.0]
    >>> check.rejected[0.5].partition(";")[0]
    'causal_conv1d: y: sequence 0, token 0, element [0]: got 0.5, reference 1'
    """

    tool: Tool
    """The op, for messages."""
    sample: Sample
    """The tensors of the call."""
    promises: Promises
    """The precision of the kernel."""
    outputs: Callable[[Any], Any]
    """From what a tuner passes to the outputs of the op."""
    max_tokens: int
    """As in `accuracy`."""
    rejected: dict[Any, str] = field(default_factory=dict)
    """Why each configuration was rejected, by `accurate`."""

    def __call__(self, actual: Any, expected: Any = None) -> None:  # noqa: ARG002  (Helion passes it)
        """Raises InaccurateError, an AssertionError, with the worst element, unless every output is in its budget.

        expected: a tuner's baseline. It is not read: the reference decides.
        """
        for text in self._violations(self._outputs_by_name(actual)):
            raise InaccurateError(f"{self.sample.op.name}: {text}")

    def accepts(self, actual: Any) -> bool:
        """Whether every output is in its budget."""
        try:
            self(actual)
        except InaccurateError:
            return False
        return True

    def accurate(self, configurations: Sequence[C], run: Callable[[C], Any]) -> list[C]:
        """The accurate ones of these configurations, in order; `rejected` has the others, each with its reason.

        run: makes the call with one configuration, and returns its outputs. Afterwards they are filled with NaN: rows
            that the next one leaves unwritten have no old values. An error rejects its configuration.

        Raises UsageError if there is none.
        """
        accepted = []
        for configuration in configurations:
            try:
                result = run(configuration)
                self(result)
                accepted.append(configuration)
                self._poison(result)
            except InaccurateError as error:
                self.rejected[configuration] = str(error)
                self._poison(result)
            except Exception as error:  # out of resources, or no kernel for this configuration
                self.rejected[configuration] = f"{type(error).__name__}: {error}"
        if not accepted:
            reasons = "\n    ".join(f"{configuration}: {reason}" for configuration, reason in self.rejected.items())
            raise UsageError(
                f"{_NAME}: none of {plural(len(configurations), 'configuration')} is accurate\n    {reasons}"
            )
        return accepted

    def _poison(self, result: Any) -> None:
        storages = {x.untyped_storage().data_ptr() for x in self.sample.inputs.values()}
        for x in self._outputs_by_name(result).values():
            if x.untyped_storage().data_ptr() not in storages:
                x.detach().fill_(float("nan"))

    def _outputs_by_name(self, actual: Any) -> dict[str, Tensor]:
        """The outputs, with the shapes and dtypes of the op. Raises InaccurateError for others."""
        op, names = self.sample.op, list(self.sample.outputs)
        result = self.outputs(actual)
        results = (result,) if isinstance(result, Tensor) else result
        if not isinstance(results, tuple | list) or len(results) != len(names):
            number = f"{len(results)} values" if isinstance(results, tuple | list) else describe_value(results)
            raise InaccurateError(
                f"{op.name}: {number} came but {', '.join(names)} was expected; `outputs` selects them"
            )
        for name, x in zip(names, results, strict=True):
            expected = _form(dtype_of(op, name, self.sample.token_dtype_name), self.sample.shape(name))
            came = _form(x.dtype, tuple(x.shape)) if isinstance(x, Tensor) else describe_value(x)
            if came != expected:
                raise InaccurateError(f"{op.name}: {name} is {came} but {expected} was expected")
        return dict(zip(names, results, strict=True))

    def _violations(self, outputs: Mapping[str, Tensor]) -> Iterator[str]:
        part, answer = self._answer
        for name, x in outputs.items():
            key, axes, host = TensorKey(name), self.sample.axes[name], x.detach().cpu()
            rows, values, budget = self._rows(axes), answer.values[key], answer.budgets[key]
            comparisons = (
                [Comparison(key, host, values, rows, budget)]
                if part is self.sample
                else [
                    Comparison(key, host[of_all], values[of_part], rows, budget[of_part], of_all.start)
                    for i, j in enumerate(self._selected)
                    for of_all, of_part in zip(self.sample.spans(j, axes), part.spans(i, axes), strict=True)
                ]
            )
            for comparison in comparisons:
                yield from (f"{name}: {violation.lines()[0]}" for violation in comparison.violations())

    def _rows(self, axes: Axes) -> RowMap:
        return RowMap(axes, self.sample.offsets_of(axes))

    @cached_property
    def _selected(self) -> list[int]:
        """The sequences that are judged: shortest and longest first, as many as `max_tokens` holds, in order."""
        lengths = self.sample.lengths
        by_length = sorted(range(len(lengths)), key=lambda j: lengths[j])
        alternating = [j for pair in zip(by_length, reversed(by_length), strict=True) for j in pair]
        selected: dict[int, None] = {}
        for j in dict.fromkeys(alternating):
            if sum(lengths[i] for i in selected) + lengths[j] <= self.max_tokens:
                selected[j] = None
        return sorted(selected or alternating[:1])

    @cached_property
    def _answer(self) -> tuple[Sample, OracleAnswer]:
        """The reference's outputs and budgets, and the pack for which they hold."""
        op, whole = self.sample.op, self.sample
        needs_all = bool(op.reductions) or any(is_shared(whole.axes[name]) for name in whole.outputs)
        part = whole if needs_all or whole.offsets[-1] <= self.max_tokens else whole.select(self._selected)
        return part, run_reference(self.tool, lambda: oracle_answer(part, self.promises, gradients=False))
