"""Values that a kernel has in another form: base-2 logarithms, normalised, scaled, or through a sigmoid.

A conversion is a differentiable function that runs outside of the kernel, so that values and gradients are judged at
the op's own tensors. It is computed in fp32 (fp64 for fp64) and rounded once, to the dtype that the tensor had. What
this adds to the error budget, to first order:

- An fp32 tensor: a product with a rounded constant is off by 2 u, a norm, sigmoid or logarithm by a few u of what
  enters. That is a rounding of the input at which B already has its condition: the bound that is derived from a
  reference begins with an error of 1 u at every input, and K_acc admits 8 of them (32 with a magnitude op), of which
  correct kernels take 4.3 at most.
- A tensor in the dtype of the tokens: it, and the gradient that the kernel returns for it, are rounded once more to
  that dtype, as by a kernel that rounds the operands of its products. Such an adapter declares this: its promise is
  compute="operand", which adds K_op u_op B, with K_op = 4.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packproof.refs.errors import ArgumentError, UsageError
from packproof.refs.wording import article

Conversion = Callable[..., Any]


def base2_log(x: Tensor) -> Tensor:
    """Logarithms to base 2 of what x has natural ones of: x / ln 2.

    >>> import math, torch
    >>> from packproof import adapters
    >>> adapters.base2_log(torch.tensor([0.0, math.log(8)]))
    tensor([0., 3.])
    """
    return x * (1 / math.log(2))


def natural_log(x: Tensor) -> Tensor:
    """Natural logarithms of what x has base-2 ones of: x ln 2.

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

    def __post_init__(self) -> None:
        _require_number("L2Norm", "eps", self.eps, above_zero=True)

    def __call__(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + self.eps)


@dataclass(frozen=True)
class Scaled:
    """x times a number. factor: the number, or "width ** -0.5" or "width ** 0.5" of the size of the last axis.

    Raises UsageError for anything else.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.Scaled("width ** -0.5")(torch.ones(1, 4))
    tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """

    factor: float | str

    def __post_init__(self) -> None:
        if self.factor not in _WIDTHS:
            _require_number("Scaled", "factor", self.factor, or_else=" or ".join(map(repr, _WIDTHS)))

    def __call__(self, x: Tensor) -> Tensor:
        power = _WIDTHS.get(str(self.factor))
        return x * (float(self.factor) if power is None else max(x.shape[-1], 1) ** power)


_WIDTHS = {"width ** -0.5": -0.5, "width ** 0.5": 0.5}


def others_named(function: Conversion, where: str) -> tuple[str, ...]:
    """The op's arguments that a conversion takes beside the value: the names of its other parameters.

    where: begins the text of the UsageError for a function that takes no value.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature, such as torch.sigmoid
        return ()
    first, others = parameters[:1], parameters[1:]
    if not first or first[0].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
        raise UsageError(f"{where} is {describe(function)}, which takes no value; expected a function of the tensor")
    return tuple(p.name for p in others if p.default is p.empty and p.kind not in _VARIADIC)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def describe(function: Conversion) -> str:
    """As one writes it: base2_log, L2Norm(eps=1e-06)."""
    return str(getattr(function, "__name__", None) or repr(function))


def convert(function: Conversion, x: Tensor, others: Mapping[str, Any], inside: Tensor | None, where: str) -> Tensor:
    """What the function makes of x, in the dtype of x; of integers, in the dtype that it gives them. inside: the rows
    of x that belong to a sequence, (t,); the rest stays as it is, whatever it holds. ArgumentError if it returns no
    tensor, other rows, or a detached one."""
    rows = None if inside is None else inside.view(-1, *[1] * (x.ndim - 1))
    floating = x.is_floating_point()
    wide = x.to(torch.promote_types(x.dtype, torch.float32)) if floating else x
    y = function(wide if rows is None else torch.where(rows, wide, 1), **others)
    if not isinstance(y, Tensor) or y.shape != x.shape:
        came = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else article(type(y).__name__)
        raise ArgumentError(f"{where}: {describe(function)} returned {came}, expected a tensor of {tuple(x.shape)}")
    if x.requires_grad and not y.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(f"{where}: {describe(function)} returned a detached tensor, expected torch functions of x")
    y = y if rows is None else torch.where(rows, y, wide)
    return y.to(x.dtype) if floating else y


def _require_number(convention: str, name: str, value: Any, *, above_zero: bool = False, or_else: str = "") -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or (above_zero and value <= 0):
        expected = "a number above zero" if above_zero else f"a number or {or_else}"
        raise UsageError(f"{convention}: {name} is {value!r}, expected {expected}")
