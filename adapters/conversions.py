"""Conversions of values between the op's form and the kernel's: base-2 logarithms, norms, scales, sigmoids.

A conversion is a differentiable function outside of the kernel. So values and gradients are judged at the op's own
tensors. It is computed in fp32 (fp64 for fp64) and rounded once, to the dtype of the tensor. Its error, to first order:

- For an fp32 tensor: 2 u for a product with a rounded constant, a few u of the input for a norm, sigmoid or logarithm.
  This is a rounding of the input, and B already covers its condition: the bound derived from a reference starts with an
  error of 1 u at every input. K_acc admits 8 of them (32 with a magnitude op); correct kernels need 4.3 at most.
- For a tensor in the dtype of the tokens: the tensor and its gradient are rounded to this dtype once more, as by a
  kernel with rounded operands of its products. Such an adapter therefore promises compute="operand", and its budget
  grows by K_op u_op B, with K_op = 4.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packproof.base.errors import ArgumentError, UsageError
from packproof.base.wording import article

Conversion = Callable[..., Any]


def base2_log(x: Tensor) -> Tensor:
    """Natural logarithms x as logarithms to base 2: x / ln 2.

    >>> import math, torch
    >>> from packproof import adapters
    >>> adapters.base2_log(torch.tensor([0.0, math.log(8)]))
    tensor([0., 3.])
    """
    return x * (1 / math.log(2))


def natural_log(x: Tensor) -> Tensor:
    """Logarithms x to base 2 as natural logarithms: x ln 2.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.natural_log(torch.tensor([0.0, 3.0])).exp()
    tensor([1., 8.])
    """
    return x * math.log(2)


@dataclass(frozen=True)
class L2Norm:
    """x / sqrt(sum(x^2) + eps) along the last axis. Raises UsageError unless eps is above zero.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.L2Norm()(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """

    eps: float = 1e-6
    """Added to the sum of squares."""

    def __post_init__(self) -> None:
        _require_number("L2Norm", "eps", self.eps, above_zero=True)

    def __call__(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + self.eps)


@dataclass(frozen=True)
class Scaled:
    """x times a factor.

    Raises UsageError for anything else.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.Scaled("width ** -0.5")(torch.ones(1, 4))
    tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """

    factor: float | str
    """A number, or "width ** -0.5" or "width ** 0.5", a power of the size of the last axis."""

    def __post_init__(self) -> None:
        if self.factor not in WIDTH_POWERS:
            _require_number("Scaled", "factor", self.factor, alternatives=" or ".join(map(repr, WIDTH_POWERS)))

    def __call__(self, x: Tensor) -> Tensor:
        power = WIDTH_POWERS.get(str(self.factor))
        return x * (float(self.factor) if power is None else max(x.shape[-1], 1) ** power)


WIDTH_POWERS = {"width ** -0.5": -0.5, "width ** 0.5": 0.5}


def extra_argument_names(function: Conversion, context: str) -> tuple[str, ...]:
    """The names of the op's arguments needed by a conversion: its parameters after the value.

    context: the start of the error text.
    Raises UsageError for a function without a parameter for the value.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature, such as torch.sigmoid
        return ()
    value_parameters, extra_parameters = parameters[:1], parameters[1:]
    if not value_parameters or value_parameters[0].kind in (
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    ):
        raise UsageError(
            f"{context} is {conversion_text(function)}, which takes no value; expected a function of the tensor"
        )
    return tuple(p.name for p in extra_parameters if p.default is p.empty and p.kind not in _VARIADIC)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def conversion_text(function: Conversion) -> str:
    """The conversion as source text: base2_log, L2Norm(eps=1e-06)."""
    return str(getattr(function, "__name__", None) or repr(function))


def convert(
    function: Conversion, x: Tensor, extra_arguments: Mapping[str, Any], token_mask: Tensor | None, context: str
) -> Tensor:
    """Apply the function to x. The result has the dtype of x; for integers it has the dtype returned by the function.

    token_mask: (t,) bool, the rows of x that belong to a sequence. Other rows stay unchanged, NaN included.
    context: the start of the error text.
    Raises ArgumentError if the result is no tensor, has another shape, or is detached from x.
    """
    rows = None if token_mask is None else token_mask.view(-1, *[1] * (x.ndim - 1))
    is_floating = x.is_floating_point()
    wide = x.to(torch.promote_types(x.dtype, torch.float32)) if is_floating else x
    # 1 instead of slack: a gradient through NaN would be NaN, even for rows that are selected away below
    y = function(wide if rows is None else torch.where(rows, wide, 1), **extra_arguments)
    if not isinstance(y, Tensor) or y.shape != x.shape:
        actual = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else article(type(y).__name__)
        raise ArgumentError(
            f"{context}: {conversion_text(function)} returned {actual}, expected a tensor of {tuple(x.shape)}"
        )
    if x.requires_grad and not y.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(
            f"{context}: {conversion_text(function)} returned a detached tensor, expected torch functions of x"
        )
    y = y if rows is None else torch.where(rows, y, wide)
    return y.to(x.dtype) if is_floating else y


def _require_number(
    convention: str, name: str, value: Any, *, above_zero: bool = False, alternatives: str = ""
) -> None:
    is_finite_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_finite_number or (above_zero and value <= 0):
        expected = "a number above zero" if above_zero else f"a number or {alternatives}"
        raise UsageError(f"{convention}: {name} is {value!r}, expected {expected}")
