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

from packproof.harness.debug.own_tensors import check_seed
from packproof.harness.debug.smooth_function import NAME, Function, checked_inputs, short_name, signed
from packproof.harness.results.failed import CheckFailed
from packproof.properties.bounds.budget import K_ACC, K_OP, SMALLEST, UNIT_ROUNDOFF, accumulator, score
from packproof.properties.bounds.running_error import bounded
from packproof.properties.call import BoundVacuous
from packproof.properties.light_torch import argmax
from packproof.refs.errors import UsageError, checked_call

_SHARE = 0.01  # of a row's value: an error of this size has to be detected
_GROUPS = 16  # groups of rows of one input
_DRAWS = 3  # draws of w where the roundoff is coarse: in one draw an error may be orthogonal to v
_SIGNS = 8  # draws of random signs for R
_STEPS = (1.0, 1 / 16)  # times h; the second one if a kink may lie inside the first


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

    Raises CheckFailed with the row, both sides and the allowed difference. Raises BoundVacuous, a PackproofError, if
    the test is inconclusive: the allowed difference is so large that a row could be off by 1% unnoticed. Functions of
    bf16 tensors that take no wider ones are inconclusive. Raises ArgumentError for inputs that cannot be
    differentiated, and for a function that returns anything but finite tensors or is not deterministic.

    >>> import torch, packproof
    >>> x = torch.linspace(-1, 1, 12).view(4, 3)
    >>> packproof.dot_product_test(torch.sin, x)
    >>> packproof.dot_product_test(torch.sin, x.bfloat16())
    >>> packproof.dot_product_test(lambda x: x.sin() * x.detach(), x)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    packproof.harness.results.failed.CheckFailed: dot product: x, row 0: <J v, w> = ...
    """
    points, names = checked_inputs(function, inputs)
    generator = torch.Generator().manual_seed(check_seed(NAME, seed))
    under_test = Function(function, points)
    wide = under_test.widened(generator)
    if wide.roundoff > UNIT_ROUNDOFF[torch.float32]:
        raise BoundVacuous(
            f"{NAME}: inconclusive: differences are lost in a roundoff of {wide.roundoff}; {under_test.way_out}"
        )
    unseen: list[str] = []
    for _ in range(1 if wide.roundoff == UNIT_ROUNDOFF[torch.float64] else _DRAWS):
        unseen += _one_draw(under_test, wide, names, generator)
    if unseen:
        raise BoundVacuous(f"{NAME}: inconclusive: {unseen[0]}; {under_test.way_out}")


def _one_draw(under_test: Function, wide: Function, names: Sequence[str], generator: torch.Generator) -> Iterator[str]:
    """Test one draw of w. Yields the reasons why it is inconclusive. Raises CheckFailed if the two sides differ."""
    w = [signed(y, generator).to(y.dtype).double() for y in under_test.outputs]
    own = under_test.pulled(w)
    gradients = own if wide is under_test else wide.pulled(w)
    spread = _spreads(wide, w, gradients, generator)
    for group in _groups(names, wide.points):
        found = _compare(wide, group, w, gradients[group.number], spread, generator)
        if not found.holds:
            raise CheckFailed(f"{NAME}: {group}: {found}")
        if found.is_vacuous:
            yield f"{group}: {found}"
    if not any(float(r.sum()) for r in spread):
        yield "no output changes with any input"
    if wide is not under_test:
        yield from _narrow(names, own, gradients, spread, _running_errors(wide, w), wide.terms)


@dataclass(frozen=True)
class _Group:
    """Consecutive rows of an input, tested together."""

    number: int
    """Index of the input."""
    name: str
    """Name of the input."""
    first: int
    """The first row."""
    last: int
    """The last row, included."""
    is_row: bool
    """Whether the input has rows; False for a scalar."""

    def __str__(self) -> str:
        if not self.is_row:
            return self.name
        return f"{self.name}, " + (
            f"row {self.first}" if self.first == self.last else f"rows {self.first} to {self.last}"
        )

    def only(self, x: Tensor) -> Tensor:
        """x with zeros in all other rows."""
        if not self.is_row:
            return x
        kept = torch.zeros_like(x)
        kept[self.first : self.last + 1] = x[self.first : self.last + 1]
        return kept


@dataclass(frozen=True)
class _Found:
    """Both sides of the identity for one group of rows."""

    pushed: float
    """<J v, w>, by differences."""
    back: float
    """<v, J' w>, by the backward pass."""
    allowed: float
    """The allowed difference of both."""
    row: float
    """The value of a typical row of the input, or the mean value of these rows if it is larger."""
    reached: bool
    """Whether any incoming gradient reaches these rows."""

    @property
    def holds(self) -> bool:
        return abs(self.pushed - self.back) <= self.allowed

    @property
    def is_vacuous(self) -> bool:
        return self.allowed > _SHARE * self.row and (self.reached or self.pushed != 0)

    def __str__(self) -> str:
        if self.holds:
            return f"the allowed difference is {self.allowed:.2g} where a row holds {self.row:.2g}"
        sides = f"<J v, w> = {self.pushed:.8g} but <v, J' w> = {self.back:.8g}"
        return f"{sides}; the allowed difference is {self.allowed:.2g}"


def _compare(
    wide: Function,
    group: _Group,
    w: Sequence[Tensor],
    gradient: Tensor,
    spread: Sequence[Tensor],
    generator: torch.Generator,
) -> _Found:
    """Compare both sides for a direction v in which the terms of these rows add up."""
    x, g = wide.points[group.number], gradient.double()
    size = float(x.double().square().mean().sqrt()) or 1.0
    drawn = signed(x, generator)
    v = group.only(torch.where(g == 0, drawn, drawn.abs() * g.sign()) * size)
    terms = float((v.abs() * spread[group.number]).sum())
    rounding = K_ACC * wide.accumulator * wide.terms**0.5 * terms
    rows = group.last - group.first + 1
    row = max(float((g.abs() * size).sum()) * 1.5 / max(len(g) if group.is_row else 1, 1), float((v * g).sum()) / rows)
    for nth, factor in enumerate(_STEPS):
        h = factor * (K_ACC * wide.roundoff) ** (1 / 3)
        slope, error, moved = _slope(wide, group.number, v, w, h, kinks=nth > 0)
        found = _Found(slope, float((moved * g).sum()), error + rounding, row, reached=terms > 0)
        if found.holds and not found.is_vacuous:
            break
    return found


def _slope(
    wide: Function, number: int, v: Tensor, w: Sequence[Tensor], h: float, *, kinks: bool
) -> tuple[float, float, Tensor]:
    """<J v, w> by differences, its error bound, and v after the rounding of input +- h v.

    kinks: whether to add the difference of the slopes on both sides to the bound.
    """

    def moved(t: float) -> Tensor:
        return (wide.points[number].double() + t * v).to(wide.points[number].dtype)

    def at(t: float) -> list[Tensor]:
        points = [moved(t) if i == number else x for i, x in enumerate(wide.points)]
        return [y.double() for y in wide.at(points)]

    def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
        return sum(float(((y - z) * u).sum()) for y, z, u in zip(a, b, w, strict=True))

    up, down, up2, down2 = at(h), at(-h), at(2 * h), at(-2 * h)
    near, far = dot(up, down) / (2 * h), dot(up2, down2) / (4 * h)
    scale = 0.0
    for y, u, *steps in zip(wide.values, w, up, down, up2, down2, strict=True):
        changed = torch.stack([z != y for z in steps]).any(0)
        scale += float(((u * y).abs() * torch.where(changed, K_ACC, 1.0)).sum())
    error = abs(near - far) + 1.5 * wide.roundoff * scale / h
    if kinks:
        bends = zip(up, down, wide.values, w, strict=True)
        error += sum(float(((a + b - 2 * y) * u).abs().sum()) for a, b, y, u in bends) / h
    return (4 * near - far) / 3, error, (moved(h).double() - moved(-h).double()) / (2 * h)


def _spreads(
    wide: Function, w: Sequence[Tensor], gradients: Sequence[Tensor], generator: torch.Generator
) -> list[Tensor]:
    """R of each input: the root mean square of its gradient over incoming gradients of random signs."""
    squares = [g.double().square() for g in gradients]
    for _ in range(_SIGNS):
        drawn = wide.pulled([u * signed(u, generator).sign() for u in w])
        squares = [s + g.double().square() for s, g in zip(squares, drawn, strict=True)]
    return [(s / (_SIGNS + 1)).sqrt() for s in squares]


def _running_errors(wide: Function, w: Sequence[Tensor]) -> list[Tensor] | None:
    """The running error of each input's gradient. None if an operator has no rule."""
    try:
        _, errors = bounded(lambda: dict(enumerate(wide.pulled(w))))
    except UsageError:
        return None
    return list(errors.values())


def _narrow(
    names: Sequence[str],
    own: Sequence[Tensor],
    wide: Sequence[Tensor],
    spread: Sequence[Tensor],
    errors: Sequence[Tensor] | None,
    terms: int,
) -> Iterator[str]:
    """Compare the gradients in the dtype of the inputs with the wide ones. Yields a reason for each inconclusive input:
    its budget is as large as its gradient. Raises CheckFailed if an element differs by more than its budget."""
    for name, g, r, R, E in zip(names, own, wide, spread, errors or spread, strict=True):
        want, B, narrow = r.double(), torch.maximum(E, K_OP * R), g.dtype in (torch.bfloat16, torch.float16)
        u = UNIT_ROUNDOFF[g.dtype] if narrow else 0.0  # an fp32 tensor holds the accumulator itself
        allowed = u * (want.abs() + B) + SMALLEST[g.dtype] + K_ACC * accumulator(g.dtype) * (B + terms**0.5 * R)
        ratio = score(g, want, allowed)
        if ratio.numel() and float(ratio.max()) > 1:
            index = argmax(ratio)
            sides = (
                f"{float(g[index]):.6g} in {short_name(g.dtype)} but {float(want[index]):.6g} in {short_name(r.dtype)}"
            )
            raise CheckFailed(
                f"{NAME}: the gradient of {name} at {list(index)} is {sides}; the allowed difference is "
                f"{float(allowed[index]):.2g}"
            )
        if float(allowed.sum()) >= float(want.abs().sum()) > 0:
            sides = f"the error budget of {short_name(g.dtype)} is as large as the gradient of {name}"
            yield f"{sides}, which holds in {short_name(r.dtype)}"


def _groups(names: Sequence[str], points: Sequence[Tensor]) -> Iterator[_Group]:
    for number, (name, x) in enumerate(zip(names, points, strict=True)):
        rows = len(x) if x.ndim else 1
        step = -(-rows // _GROUPS) or 1
        for first in range(0, rows, step):
            yield _Group(number, name, first, min(first + step, rows) - 1, x.ndim > 0)
