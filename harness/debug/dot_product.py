"""The dot-product test of a vjp, which needs no reference: <J v, w> = <v, J' w>, row by row.

J v comes from differences of the function itself, in float64 where it takes that, J' w from its backward pass. Both are
summed in float64. The two sides may differ by the budgets of their elements (`properties.bounds.budget`):

    |<J v, w> - <v, J' w>|  <=  3/2 sum_j |w_j| e_j / h  +  truncation  +  sum_i |v_i| b_i

    e_j = K_acc u |y_j|             what an output may be off by; u |y_j| where no step changes a bit of it
    truncation = |d(h) - d(2h)|     of the central differences that (4 d(h) - d(2h)) / 3 is extrapolated from
    b_i = K_acc u_acc sqrt(n) R_i   what a gradient may be off by; B_i = sum_j |w_j J_ji| <= sqrt(n) R_i

R_i is the root mean square of the gradient for incoming gradients +-w of random signs, and n the number of outputs, so
that the last line is Cauchy's inequality; u is the roundoff that the function is found to compute with
(`smooth_function`), and h = (K_acc u) ** (1/3), where the first two terms are of one size. v is drawn with the signs of
J' w, one group of rows at a time: so the value is the sum of |v_i J' w_i|, as large as the terms of the bound, and no
random sum that any bound exceeds; and a wrong row is not diluted by the others. As in `oracle`, 1% decides: where a row
that is off by as much need not show, the test is inconclusive. Where a kink may lie between the steps, smaller ones are
taken, and what the slopes on both sides differ by is added.

The gradient in the dtype of the inputs, if that is narrower, is then held to the wide one, element by element, by the
same budget: |g - r| <= u_out |r| + eta_out + u_op B + K_acc u_acc (B + sqrt(n) R). B is the running error of the
function's operators (`running_error`), but K_op R at least, as where they cannot be seen: the roundings of n terms have
random signs.
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

_SHARE = 0.01  # of a row's value: an error as large has to show
_GROUPS = 16  # of rows of one input
_DRAWS = 3  # of w where the roundoff is coarse: in one of them an error may be across v
_SIGNS = 8  # draws of random signs
_STEPS = (1.0, 1 / 16)  # times h; the second where a kink may lie inside the first


@checked_call
def dot_product_test(function: Callable[..., Any], *inputs: Tensor, seed: int = 0) -> None:
    """Check a backward pass without any reference: <J v, w> = <v, J' w>, J v from differences of the function itself.

    function: takes the tensors and returns a tensor, or a tuple of tensors. Give every tensor that it computes with as
    an input, so that it can be run in float64 too. inputs: fp64, fp32, bf16 or fp16 tensors to differentiate, finite.
    seed: of the directions.

    Every row of every input is tested (with many rows, several together), for a direction in which its terms add up.
    The allowed difference is the sum of the error budgets of all elements of both sides; their derivation is in the
    docstring of this module. In bf16 and fp16 the function is run in float64 besides, and its gradients are compared.

    Raises CheckFailed with the row, both sides and the allowed difference. Where the allowed difference is so large
    that a row could be off by 1% unseen, the test is inconclusive and raises BoundVacuous, a PackproofError; as for
    functions of bf16 tensors that take no wider ones. Raises ArgumentError for inputs that cannot be differentiated,
    and for a function that returns anything but finite tensors, or something else each time.

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
    """What one draw of w cannot tell, in words. Raises CheckFailed where the two sides differ."""
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
    """Rows [first, last] of an input."""

    number: int
    name: str
    first: int
    last: int
    is_row: bool

    def __str__(self) -> str:
        if not self.is_row:
            return self.name
        return f"{self.name}, " + (
            f"row {self.first}" if self.first == self.last else f"rows {self.first} to {self.last}"
        )

    def only(self, x: Tensor) -> Tensor:
        """x in these rows, zeros elsewhere."""
        if not self.is_row:
            return x
        kept = torch.zeros_like(x)
        kept[self.first : self.last + 1] = x[self.first : self.last + 1]
        return kept


@dataclass(frozen=True)
class _Found:
    """Both sides of the identity for one group. row: the value of a typical row, or of one of these. reached: whether
    any incoming gradient reaches these rows."""

    pushed: float
    back: float
    allowed: float
    row: float
    reached: bool

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
    """Both sides for a direction in which the terms of these rows add up."""
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
    """<J v, w> by differences, what it may be off by, and v as it was rounded together with the input."""

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
    """R of each input."""
    squares = [g.double().square() for g in gradients]
    for _ in range(_SIGNS):
        drawn = wide.pulled([u * signed(u, generator).sign() for u in w])
        squares = [s + g.double().square() for s, g in zip(squares, drawn, strict=True)]
    return [(s / (_SIGNS + 1)).sqrt() for s in squares]


def _running_errors(wide: Function, w: Sequence[Tensor]) -> list[Tensor] | None:
    """E of the gradient of each input, None for operators of which no rule is known."""
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
    """Inputs at which the budget of the gradient in its own dtype is as large as the gradient. Raises CheckFailed where
    an element is further from the wide one than its budget."""
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
