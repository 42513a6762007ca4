"""Packed equals alone: the outputs of each document, and the summed gradients of parameters.

The budget is derived from the module itself. It runs at two precisions. Their difference, over the ratio of their unit
roundoffs, estimates the rounding of this output at the higher precision. The pack and the documents alone may each
differ by as much, and sums may run in another order. A safety factor covers the spread of rounding beyond one sample.

Many models compute norms and rotations in fp32 whatever their dtype. In float64 both runs would share these roundings,
and the budget would miss them. Such models are judged in float32.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from packproof.base.light_torch import DispatchMode
from packproof.models.choices import Choice, Choices, TieBreaker
from packproof.models.conventions import Convention
from packproof.models.isolation import max_abs
from packproof.models.pack import FIRST_LENGTHS, PADDING, Pack
from packproof.models.subject import ModuleRefused, Subject

_SAFETY = 32  # the largest rounding error varies by a few times between samples
_VACUOUS = 0.1


@dataclass(frozen=True)
class Difference:
    """A difference between the pack and its documents alone, for one document's output or one gradient."""

    name: str
    """Its name: "document 2", or "gradient of layers.0.weight"."""
    max_difference: float
    """The largest difference."""
    allowed: float
    """The largest difference that rounding explains."""
    scale: float
    """The largest value."""
    reference_scale: float
    """Of a gradient, the largest value of all gradients: a gradient may be nothing but rounding, as softmax cancels
    that of a key's bias. Of an output, the same as `scale`; if that is 0, the largest value of all documents alone."""
    document: int | None = None
    """The document of the output, None for a gradient."""

    @property
    def inconclusive_reason(self) -> str:
        """Why the difference says nothing, "" if it does say something.

        Either the document alone has NaN; or rounding explains a tenth of the values, because a choice fell the other
        way.
        """
        if not math.isfinite(self.allowed):
            return f"{self.name} is not finite, of the documents alone either"
        if self.allowed > _VACUOUS * self.reference_scale:
            return f"{self.name}: rounding changes it as much as a wrong choice: a tie"
        return ""

    @property
    def fails(self) -> bool:
        return not self.inconclusive_reason and not self.max_difference <= self.allowed

    def roundings(self, dtype: torch.dtype) -> float:
        """The allowed difference of an output, in roundings of its largest value. If every document alone is 0, the
        output says nothing about rounding: the safety factor remains."""
        if not self.reference_scale:
            return 2 * _SAFETY
        return self.allowed / (self.reference_scale * torch.finfo(dtype).eps / 2)

    def __str__(self) -> str:
        rounding = f"rounding explains {self.allowed:.3g}"
        if not self.scale:
            return f"{self.name}: values of up to {self.max_difference:.3g}, where the document alone has 0; {rounding}"
        return (
            f"{self.name}: off by {self.max_difference:.3g} from the document alone, in values of up to "
            f"{self.scale:.3g}; {rounding}"
        )


@dataclass(frozen=True)
class PackedComparison:
    """The comparison of a pack with its documents alone."""

    differences: Sequence[Difference]
    """One for each document, and one for each parameter with a gradient."""
    ties: int = 0
    """Near ties that the pack decided differently from its documents alone, and that were fixed to the same choice."""

    @property
    def first_failure(self) -> Difference | None:
        return next((difference for difference in self.differences if difference.fails), None)

    @property
    def inconclusive_reasons(self) -> list[str]:
        return [difference.inconclusive_reason for difference in self.differences if difference.inconclusive_reason]


@dataclass(frozen=True)
class PackedAndAlone:
    """Compares packs of a module with their documents alone."""

    subject: Subject
    high_precision: Subject
    """The module in the highest precision of all its computations."""
    low_precision: Subject
    """The module in a lower precision."""
    convention: Convention
    seed: int

    @classmethod
    def at_two_precisions(cls, subject: Subject, convention: Convention, seed: int) -> "PackedAndAlone":
        """Find the two precisions. Raises ModuleRefused."""
        return cls(subject, *_precisions(subject, convention, seed), convention, seed)

    def __call__(self, pack: Pack) -> PackedComparison:
        """Compare the pack with its documents alone. Raises ModuleRefused.

        Near ties are aligned only in a second comparison, if the first one fails or is inconclusive: it costs time, and
        few modules choose.
        """
        comparison = self._compare(pack, align_ties=False)
        if (comparison.first_failure or comparison.inconclusive_reasons) and not self.high_precision.mode.compiled:
            aligned_comparison = self._compare(pack, align_ties=True)
            return aligned_comparison if aligned_comparison.ties or not aligned_comparison.first_failure else comparison
        return comparison

    def _compare(self, pack: Pack, *, align_ties: bool) -> PackedComparison:
        high_subject, low_subject = self.high_precision, self.low_precision
        units = torch.finfo(high_subject.dtype).eps, torch.finfo(low_subject.dtype).eps
        alone_pass = self._run_documents_alone(high_subject, pack, align_ties=align_ties)
        low_pass = self._run_documents_alone(low_subject, pack, reference_pass=alone_pass, align_ties=align_ties)

        def allowed_change(number: int, choice: Choice) -> float:
            low_choice = low_pass.choices[number] if number < len(low_pass.choices) else None
            return (
                _SAFETY * _rounding(choice.scores, low_choice.scores, *units)
                if low_choice and low_choice.has_shape_of(choice)
                else 0.0
            )

        rows = (pack.document != PADDING).nonzero().flatten().cpu()
        choices = TieBreaker(pack.tokens, alone_pass.choices, allowed_change, rows) if align_ties else None
        packed_pass = self._run(high_subject, high_subject.pack(pack.lengths, pack.gaps), pack, slice(None), choices)
        outputs = packed_pass.output[rows]
        differences, start = [], 0
        largest_output = max_abs(alone_pass.output)
        for j, length in enumerate(pack.lengths):
            part = slice(start, start := start + length)
            alone_output = alone_pass.output[part]
            reference_scale = max_abs(alone_output) or largest_output
            difference = _difference(
                f"document {j}", outputs[part], alone_output, low_pass.output[part], *units, reference_scale
            )
            differences.append(replace(difference, document=j))
        names = [name for name in alone_pass.gradients if name in packed_pass.gradients and name in low_pass.gradients]
        grads = [(alone_pass.gradients[n], low_pass.gradients[n]) for n in names]
        largest_gradient = max((max_abs(grad) for grad, _ in grads), default=0.0)
        usual_rounding = _median(
            [_rounding(grad, low_grad, *units) / max_abs(grad) for grad, low_grad in grads if max_abs(grad)]
        )
        for name, (grad, low_grad) in zip(names, grads, strict=True):
            label = f"gradient of {name}"
            differences.append(
                _difference(
                    label, packed_pass.gradients[name], grad, low_grad, *units, largest_gradient, usual_rounding
                )
            )
        return PackedComparison(differences, choices.ties + low_pass.ties if choices else 0)

    def _run(self, subject: Subject, called_pack: Pack, pack: Pack, rows: slice, choices: TieBreaker | None) -> "_Pass":
        """Outputs, and by parameter the gradients of a random sum of the documents' outputs.

        called_pack: the layout of the call: the whole pack, or one document alone.
        rows: its tokens in the whole pack.
        """
        x = _cast(self.subject.input(pack.tokens, self.seed)[:, rows], subject)
        with torch.enable_grad(), choices or nullcontext():
            out = subject.call(x, self.convention, called_pack)
            if choices:
                choices.in_forward_pass = False
            weight = _weight((pack.tokens, *out.shape[1:]), self.seed)[rows].to(out)
            is_document = called_pack.document != PADDING
            parameters = {n: p for n, p in subject.module.named_parameters() if p.requires_grad}
            grads: Sequence[Tensor | None] = ()
            if parameters and out.requires_grad:
                loss = (out[is_document] * weight[is_document]).sum()
                grads = subject.differentiate(loss, list(parameters.values()))
        gradients = {n: g for n, g in zip(parameters, grads, strict=False) if g is not None}
        return _Pass(out.detach(), gradients, choices.choices if choices else (), choices.ties if choices else 0)

    def _run_documents_alone(
        self, subject: Subject, pack: Pack, *, reference_pass: "_Pass | None" = None, align_ties: bool
    ) -> "_Pass":
        """The outputs of each document alone, concatenated, and the sums of their gradients.

        reference_pass: the same in another precision; its choices are repeated.
        """
        runs, total, start = list[_Pass](), dict[str, Tensor](), 0
        for j, length in enumerate(pack.lengths):
            document_rows = slice(start, start := start + length)
            reference_choices = (
                [choice and choice.at_rows(document_rows) for choice in reference_pass.choices]
                if reference_pass
                else []
            )
            choices = TieBreaker(length, reference_choices, lambda *_: float("inf")) if align_ties else None
            runs.append(self._run(subject, subject.pack((length,)), pack, pack.rows(j), choices))
            for name, grad in runs[-1].gradients.items():
                total[name] = total[name] + grad if name in total else grad
        choices_by_document = [run.choices for run, length in zip(runs, pack.lengths, strict=True) if length]
        joined_choices = [Choice.concatenate(parts) for parts in zip(*choices_by_document, strict=False)]
        return _Pass(torch.cat([run.output for run in runs]), total, joined_choices, sum(run.ties for run in runs))


@dataclass(frozen=True)
class _Pass:
    output: Tensor
    gradients: Mapping[str, Tensor]
    choices: Choices = ()
    ties: int = 0


class _LowPrecisionDetector(DispatchMode):
    """Detects any computation in a lower precision than float64."""

    supports_higher_order_operators = True  # such as flex attention
    has_low_precision = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            self.has_low_precision |= isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
        return out


def _precisions(subject: Subject, convention: Convention, seed: int) -> tuple[Subject, Subject]:
    """The module in the highest precision of all its computations, and in a lower one. Raises ModuleRefused."""
    pairs = ((torch.float64, torch.float32), (torch.float32, torch.bfloat16))
    for high_dtype, low_dtype in pairs:
        exact = subject.to_dtype(high_dtype)
        uncompiled, pack = exact.uncompiled(), exact.pack(FIRST_LENGTHS)
        x = _cast(subject.input(pack.tokens, seed), uncompiled)  # drawn in fp32, before the detector looks
        try:
            with torch.no_grad(), _LowPrecisionDetector() as detector:  # type: ignore[no-untyped-call]
                uncompiled.call(x, convention, pack)
        except ModuleRefused:
            if high_dtype is pairs[-1][0]:
                raise
            continue
        if high_dtype is pairs[-1][0] or not detector.has_low_precision:
            return exact, subject.to_dtype(low_dtype)
    raise AssertionError


def _difference(
    name: str,
    packed_tensor: Tensor,
    alone_tensor: Tensor,
    low_tensor: Tensor,
    high_unit: float,
    low_unit: float,
    reference_scale: float,
    usual_rounding: float = 0.0,
) -> Difference:
    """Compare one tensor of the pack with the same tensor of the documents alone.

    A gradient may be zero because its terms cancel, such as that of a router of one expert whose weights add up to 1.
    The result is then the rounding of terms as large as the largest of all gradients.

    usual_rounding: rounding of tensors of this kind, relative to their largest value; the rounding of a single number
        may be 0 by chance.
    """
    scale = max_abs(alone_tensor)
    allowed = _SAFETY * max(
        _rounding(alone_tensor, low_tensor, high_unit, low_unit), usual_rounding * scale, high_unit * reference_scale
    )
    difference = torch.where(packed_tensor == alone_tensor, 0.0, packed_tensor - alone_tensor)  # inf - inf is NaN
    return Difference(name, max_abs(difference), allowed, scale, reference_scale)


def _rounding(high_tensor: Tensor, low_tensor: Tensor, high_unit: float, low_unit: float) -> float:
    difference = torch.where(
        high_tensor == low_tensor, 0.0, low_tensor.double() - high_tensor.double()
    )  # inf - inf is NaN
    return max(max_abs(difference) * high_unit / low_unit, high_unit * max_abs(high_tensor[high_tensor.isfinite()]))


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def _cast(x: Tensor, subject: Subject) -> Tensor:
    return x.to(subject.dtype) if x.is_floating_point() else x


def _weight(shape: tuple[int, ...], seed: int) -> Tensor:
    """The same numbers in every precision."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
