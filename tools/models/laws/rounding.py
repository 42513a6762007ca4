"""What rounding explains: the budget of a comparison, derived from the module itself.

It runs at two precisions. Their difference, over the ratio of their unit roundoffs, estimates the rounding of a tensor
at the higher precision. The pack and the documents alone may each differ by as much, and sums may run in another order.
A safety factor covers the spread of rounding beyond one sample.

Many models compute norms and rotations in fp32 whatever their dtype. In float64 both runs would share these roundings,
and the budget would miss them. Such models are judged in float32.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from packproof.models.laws.isolation import max_abs
from packproof.models.subjects.refusals import ModuleRefused
from packproof.models.subjects.subject import Subject
from packproof.models.subjects.tested_module import ModuleCall

SAFETY = 32  # the largest rounding error varies by a few times between samples
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
    baseline: str = "the document alone"
    """What it is compared with."""
    vacuous: float = _VACUOUS
    """The share of the values at which rounding explains too much."""

    @property
    def inconclusive_reason(self) -> str:
        """Why the difference says nothing, "" if it does say something.

        Either the document alone has NaN; or rounding explains a tenth of the values, because a choice fell the other
        way.
        """
        if not math.isfinite(self.allowed):
            return f"{self.name} is not finite, of {self.baseline} either"
        if self.allowed > self.vacuous * self.reference_scale:
            return f"{self.name}: rounding changes it as much as a wrong choice: a tie"
        return ""

    @property
    def fails(self) -> bool:
        return not self.inconclusive_reason and not self.max_difference <= self.allowed

    def roundings(self, dtype: torch.dtype) -> float:
        """The allowed difference of an output, in roundings of its largest value. If every document alone is 0, the
        output says nothing about rounding: the safety factor remains."""
        if not self.reference_scale:
            return 2 * SAFETY
        return self.allowed / (self.reference_scale * torch.finfo(dtype).eps / 2)

    def __str__(self) -> str:
        rounding = f"rounding explains {self.allowed:.3g}"
        if not self.scale:
            return f"{self.name}: values of up to {self.max_difference:.3g}, where {self.baseline} has 0; {rounding}"
        return (
            f"{self.name}: off by {self.max_difference:.3g} from {self.baseline}, in values of up to "
            f"{self.scale:.3g}; {rounding}"
        )


def two_precisions(subject: Subject, call: ModuleCall) -> tuple[Subject, Subject]:
    """The module in the highest precision of all its computations, and in a lower one. Raises ModuleRefused.

    call: any call of it.
    """
    pairs = ((torch.float64, torch.float32), (torch.float32, torch.bfloat16))
    for high_dtype, low_dtype in pairs:
        exact = subject.to_dtype(high_dtype)
        exact_call = replace(call, x=cast(call.x, exact), looks_for_low_precision=True)
        try:
            result = exact.uncompiled().result(exact_call)
        except ModuleRefused:
            if high_dtype is pairs[-1][0]:
                raise
            continue
        if high_dtype is pairs[-1][0] or not result.has_low_precision:
            return exact, subject.to_dtype(low_dtype)
    raise AssertionError


def cast(x: Tensor, subject: Subject) -> Tensor:
    """The input in the precision of the subject."""
    return x.to(subject.dtype) if x.is_floating_point() else x


def difference_of(
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
    allowed = SAFETY * max(
        rounding_of(alone_tensor, low_tensor, high_unit, low_unit), usual_rounding * scale, high_unit * reference_scale
    )
    difference = torch.where(packed_tensor == alone_tensor, 0.0, packed_tensor - alone_tensor)  # inf - inf is NaN
    return Difference(name, max_abs(difference), allowed, scale, reference_scale)


def rounding_of(high_tensor: Tensor, low_tensor: Tensor, high_unit: float, low_unit: float) -> float:
    difference = torch.where(
        high_tensor == low_tensor, 0.0, low_tensor.double() - high_tensor.double()
    )  # inf - inf is NaN
    return max(max_abs(difference) * high_unit / low_unit, high_unit * max_abs(high_tensor[high_tensor.isfinite()]))


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
