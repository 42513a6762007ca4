"""The dot-product test of a vjp, which needs no reference: <J v, w> = <v, J' w>, row by row.

J v comes from differences of the function itself, in float64 if it takes float64, and J' w from its backward pass. Both
are summed in float64. The two sides may differ by the budgets of their elements (`properties.bounds.budget`):

    |<J v, w> - <v, J' w>|  <=  3/2 sum_j |w_j| e_j / h  +  truncation  +  sum_i |v_i| b_i

    e_j = K_acc u |y_j|             error of an output; u |y_j| for an output without any bit changed by the steps
    truncation = |d(h) - d(2h)|     d: central difference; J v is extrapolated as (4 d(h) - d(2h)) / 3
    b_i = K_acc u_acc sqrt(n) R_i   error of a gradient; B_i = sum_j |w_j J_ji| <= sqrt(n) R_i

R_i is the root mean square of the gradient for incoming gradients +-w of random signs, and n is the number of outputs:
the last line is Cauchy's inequality. u is the measured roundoff of the function (`smooth_function`). With
h = (K_acc u) ** (1/3) the first two terms have the same size.

v is drawn with the signs of J' w, for one group of rows at a time. The value is then the sum of |v_i J' w_i|, as large
as the terms of the bound. A random sum would cancel below any bound, and other rows would dilute a wrong one. As in
`oracle`, the test is inconclusive if a row could be off by 1% unnoticed. If a kink may lie between the steps, smaller
steps are taken, and the bound grows by the difference of the slopes on both sides.

If the dtype of the inputs is narrower, the gradient in this dtype is then compared with the wide one, element by
element: |g - r| <= u_out |r| + eta_out + u_op B + K_acc u_acc (B + sqrt(n) R). B is the running error of the function's
operators (`running_error`), and at least K_op R. It is K_op R if the operators cannot be observed: the roundings of n
terms have random signs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packproof.base.errors import UsageError, checked_call
from packproof.base.light_torch import argmax
from packproof.debug.own_tensors import check_seed
from packproof.debug.smooth_function import NAME, Function, check_inputs, random_signed, short_name
from packproof.harness.report import CheckFailed
from packproof.properties.bounds import (
    K_ACC,
    K_OP,
    UNDERFLOW_UNIT,
    UNIT_ROUNDOFF,
    accumulator_roundoff,
    run_with_error_bounds,
    score,
)
from packproof.properties.calling import VacuousBound

_DETECTABLE_SHARE = 0.01  # of a row's value: an error of this size has to be detected
_MAX_GROUPS = 16  # groups of rows of one input
_DRAWS = 3  # draws of w where the roundoff is coarse: in one draw an error may be orthogonal to v
_SIGN_DRAWS = 8  # draws of random signs for R
_STEP_FACTORS = (1.0, 1 / 16)  # times h; the second one if a kink may lie inside the first


@checked_call
def dot_product_test(function: Callable[..., Any], *inputs: Tensor, seed: int = 0) -> None:
    """Check a backward pass without any reference: <J v, w> = <v, J' w>, J v from differences of the function itself.

    function: takes the tensors and returns a tensor, or a tuple of tensors. Pass all tensors of the computation as
        inputs, so that it can run in float64 too.
    inputs: finite fp64, fp32, bf16 or fp16 tensors to differentiate.
    seed: seed of the random directions.

    Every row of every input is tested, for a direction in which its terms add up; many rows are tested in groups. The
    allowed difference is the sum of the error budgets of all elements of both sides, derived in the docstring of this
    module. A function of bf16 or fp16 tensors also runs in float64, and the gradients are compared.

    Raises CheckFailed with the row, both sides and the allowed difference. Raises VacuousBound, a PackproofError, if
    the test is inconclusive: the allowed difference is so large that a row could be off by 1% unnoticed. Functions of
    bf16 tensors that take no wider ones are inconclusive. Raises ArgumentError for inputs that cannot be
    differentiated, and for a function that returns anything but finite tensors or is not deterministic.

    >>> import torch, packproof
    >>> x = torch.linspace(-1, 1, 12).view(4, 3)
    >>> packproof.dot_product_test(torch.sin, x)
    >>> packproof.dot_product_test(torch.sin, x.bfloat16())
    >>> packproof.dot_product_test(lambda x: x.sin() * x.detach(), x)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    packproof.harness.report.failed.CheckFailed: dot product: x, row 0: <J v, w> = ...
    """
    points, names = check_inputs(function, inputs)
    generator = torch.Generator().manual_seed(check_seed(NAME, seed))
    under_test = Function(function, points)
    wide = under_test.widen(generator)
    if wide.roundoff > UNIT_ROUNDOFF[torch.float32]:
        raise VacuousBound(
            f"{NAME}: inconclusive: differences are lost in a roundoff of {wide.roundoff}; {under_test.advice}"
        )
    inconclusive: list[str] = []
    for _ in range(1 if wide.roundoff == UNIT_ROUNDOFF[torch.float64] else _DRAWS):
        inconclusive += _test_one_draw(under_test, wide, names, generator)
    if inconclusive:
        raise VacuousBound(f"{NAME}: inconclusive: {inconclusive[0]}; {under_test.advice}")


def _test_one_draw(
    under_test: Function, wide: Function, names: Sequence[str], generator: torch.Generator
) -> Iterator[str]:
    """Test one draw of w. Yields the reasons why it is inconclusive. Raises CheckFailed if the two sides differ."""
    w = [random_signed(y, generator).to(y.dtype).double() for y in under_test.outputs]
    own_gradients = under_test.vjp(w)
    wide_gradients = own_gradients if wide is under_test else wide.vjp(w)
    rms = _gradient_rms(wide, w, wide_gradients, generator)
    for group in _row_groups(names, wide.points):
        comparison = _compare(wide, group, w, wide_gradients[group.number], rms, generator)
        if not comparison.holds:
            raise CheckFailed(f"{NAME}: {group}: {comparison}")
        if comparison.is_vacuous:
            yield f"{group}: {comparison}"
    if not any(float(r.sum()) for r in rms):
        yield "no output changes with any input"
    if wide is not under_test:
        yield from _check_narrow_gradients(
            names, own_gradients, wide_gradients, rms, _running_errors(wide, w), wide.n_outputs
        )


@dataclass(frozen=True)
class _Group:
    """Consecutive rows of an input, tested together."""

    number: int
    """Index of the input."""
    name: str
    """Name of the input."""
    first_row: int
    """The first row."""
    last_row: int
    """The last row, included."""
    is_row: bool
    """Whether the input has rows; False for a scalar."""

    def __str__(self) -> str:
        if not self.is_row:
            return self.name
        return f"{self.name}, " + (
            f"row {self.first_row}" if self.first_row == self.last_row else f"rows {self.first_row} to {self.last_row}"
        )

    def mask_rows(self, x: Tensor) -> Tensor:
        """x with zeros in all other rows."""
        if not self.is_row:
            return x
        masked = torch.zeros_like(x)
        masked[self.first_row : self.last_row + 1] = x[self.first_row : self.last_row + 1]
        return masked


@dataclass(frozen=True)
class _Comparison:
    """Both sides of the identity for one group of rows."""

    jvp_side: float
    """<J v, w>, by differences."""
    vjp_side: float
    """<v, J' w>, by the backward pass."""
    bound: float
    """The allowed difference of both."""
    row_value: float
    """The value of a typical row of the input, or the mean value of these rows if it is larger."""
    has_gradient: bool
    """Whether any incoming gradient reaches these rows."""

    @property
    def holds(self) -> bool:
        return abs(self.jvp_side - self.vjp_side) <= self.bound

    @property
    def is_vacuous(self) -> bool:
        return self.bound > _DETECTABLE_SHARE * self.row_value and (self.has_gradient or self.jvp_side != 0)

    def __str__(self) -> str:
        if self.holds:
            return f"the allowed difference is {self.bound:.2g} where a row holds {self.row_value:.2g}"
        sides = f"<J v, w> = {self.jvp_side:.8g} but <v, J' w> = {self.vjp_side:.8g}"
        return f"{sides}; the allowed difference is {self.bound:.2g}"


def _compare(
    wide: Function,
    group: _Group,
    w: Sequence[Tensor],
    gradient: Tensor,
    rms: Sequence[Tensor],
    generator: torch.Generator,
) -> _Comparison:
    """Compare both sides for a direction v in which the terms of these rows add up."""
    x, g = wide.points[group.number], gradient.double()
    scale = float(x.double().square().mean().sqrt()) or 1.0
    random_v = random_signed(x, generator)
    v = group.mask_rows(torch.where(g == 0, random_v, random_v.abs() * g.sign()) * scale)
    terms = float((v.abs() * rms[group.number]).sum())
    rounding = K_ACC * wide.accumulator * wide.n_outputs**0.5 * terms
    rows = group.last_row - group.first_row + 1
    row_value = max(
        float((g.abs() * scale).sum()) * 1.5 / max(len(g) if group.is_row else 1, 1), float((v * g).sum()) / rows
    )
    for i_step, factor in enumerate(_STEP_FACTORS):
        h = factor * (K_ACC * wide.roundoff) ** (1 / 3)
        slope, error, rounded_v = _slope(wide, group.number, v, w, h, kinks=i_step > 0)
        comparison = _Comparison(
            slope, float((rounded_v * g).sum()), error + rounding, row_value, has_gradient=terms > 0
        )
        if comparison.holds and not comparison.is_vacuous:
            break
    return comparison


def _slope(
    wide: Function, number: int, v: Tensor, w: Sequence[Tensor], h: float, *, kinks: bool
) -> tuple[float, float, Tensor]:
    """<J v, w> by differences, its error bound, and v after the rounding of input +- h v.

    kinks: whether to add the difference of the slopes on both sides to the bound.
    """

    def moved_input(t: float) -> Tensor:
        return (wide.points[number].double() + t * v).to(wide.points[number].dtype)

    def outputs_at(t: float) -> list[Tensor]:
        points = [moved_input(t) if i == number else x for i, x in enumerate(wide.points)]
        return [y.double() for y in wide.evaluate(points)]

    def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
        return sum(float(((y - z) * u).sum()) for y, z, u in zip(a, b, w, strict=True))

    up, down, up2, down2 = outputs_at(h), outputs_at(-h), outputs_at(2 * h), outputs_at(-2 * h)
    slope_h, slope_2h = dot(up, down) / (2 * h), dot(up2, down2) / (4 * h)
    scale = 0.0
    for y, u, *steps in zip(wide.values, w, up, down, up2, down2, strict=True):
        changed = torch.stack([z != y for z in steps]).any(0)
        scale += float(((u * y).abs() * torch.where(changed, K_ACC, 1.0)).sum())
    error = abs(slope_h - slope_2h) + 1.5 * wide.roundoff * scale / h
    if kinks:
        steps_and_values = zip(up, down, wide.values, w, strict=True)
        error += sum(float(((a + b - 2 * y) * u).abs().sum()) for a, b, y, u in steps_and_values) / h
    return (4 * slope_h - slope_2h) / 3, error, (moved_input(h).double() - moved_input(-h).double()) / (2 * h)


def _gradient_rms(
    wide: Function, w: Sequence[Tensor], gradients: Sequence[Tensor], generator: torch.Generator
) -> list[Tensor]:
    """R of each input: the root mean square of its gradient over incoming gradients of random signs."""
    squares = [g.double().square() for g in gradients]
    for _ in range(_SIGN_DRAWS):
        random_gradients = wide.vjp([u * random_signed(u, generator).sign() for u in w])
        squares = [s + g.double().square() for s, g in zip(squares, random_gradients, strict=True)]
    return [(s / (_SIGN_DRAWS + 1)).sqrt() for s in squares]


def _running_errors(wide: Function, w: Sequence[Tensor]) -> list[Tensor] | None:
    """The running error of each input's gradient. None if an operator has no rule."""
    try:
        _, errors = run_with_error_bounds(lambda: dict(enumerate(wide.vjp(w))))
    except UsageError:
        return None
    return list(errors.values())


def _check_narrow_gradients(
    names: Sequence[str],
    own_gradients: Sequence[Tensor],
    wide_gradients: Sequence[Tensor],
    rms: Sequence[Tensor],
    errors: Sequence[Tensor] | None,
    n_outputs: int,
) -> Iterator[str]:
    """Compare the gradients in the dtype of the inputs with the wide ones, element by element.

    Yields a reason for each inconclusive input: its budget is as large as its gradient. Raises CheckFailed if an
    element differs by more than its budget.

    errors: the running errors of the wide gradients; None if the operators cannot be observed.
    """
    minimum_errors = [K_OP * R for R in rms]
    bounded_errors = errors or minimum_errors
    B_of_inputs = [torch.maximum(E, smallest) for E, smallest in zip(bounded_errors, minimum_errors, strict=True)]
    for name, g, wide, R, B in zip(names, own_gradients, wide_gradients, rms, B_of_inputs, strict=True):
        r, dtype, wide_dtype = wide.double(), short_name(g.dtype), short_name(wide.dtype)
        bound = _narrow_gradient_bound(g.dtype, r, R, B, n_outputs)
        ratio = score(g, r, bound)
        if ratio.numel() and float(ratio.max()) > 1:
            index = argmax(ratio)
            raise CheckFailed(
                f"{NAME}: the gradient of {name} at {list(index)} is {float(g[index]):.6g} in {dtype} but "
                f"{float(r[index]):.6g} in {wide_dtype}; the allowed difference is {float(bound[index]):.2g}"
            )
        if float(bound.sum()) >= float(r.abs().sum()) > 0:
            yield f"the error budget of {dtype} is as large as the gradient of {name}, which holds in {wide_dtype}"


def _narrow_gradient_bound(dtype: torch.dtype, r: Tensor, R: Tensor, B: Tensor, n_outputs: int) -> Tensor:
    """u_out |r| + eta_out + u_op B + K_acc u_acc (B + sqrt(n) R), the last bound in the docstring of this module."""
    # an fp32 tensor holds the accumulator itself, so nothing is rounded but the sums
    u = UNIT_ROUNDOFF[dtype] if dtype in (torch.bfloat16, torch.float16) else 0.0  # u_out and u_op
    sums_error: Tensor = K_ACC * accumulator_roundoff(dtype) * (B + n_outputs**0.5 * R)
    return u * (r.abs() + B) + UNDERFLOW_UNIT[dtype] + sums_error


def _row_groups(names: Sequence[str], points: Sequence[Tensor]) -> Iterator[_Group]:
    for number, (name, x) in enumerate(zip(names, points, strict=True)):
        rows = len(x) if x.ndim else 1
        group_size = -(-rows // _MAX_GROUPS) or 1
        for first_row in range(0, rows, group_size):
            yield _Group(number, name, first_row, min(first_row + group_size, rows) - 1, x.ndim > 0)
