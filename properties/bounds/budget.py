"""The error budget: one formula for all ops, per element.

    |out - r| <= u_out |r| + eta_out + K_op u_op B_op + K_saved u_saved B + K_acc u_acc (B + B_E)

r is the float64 reference and B the same op on absolute values; for a gradient, r is the reference's vjp and B the vjp
of the absolute op for the absolute incoming gradients. u_out |r| + eta_out is the rounding of the stored dtype; u_op
the rounding of operands, if the kernel declares that it rounds them; u_acc that of the accumulator. B_op is what
roundings of operands do if their signs are random (`drawn_roundings`), or B where an op does not declare it. B_E is the
error of decays formed as differences of a cumulative sum, for kernels that declare it. K_op = 4; K_acc = 32, or 8
together with B_E, and where B is derived from the reference (`running_error`), which counts more terms: the constants
were calibrated on correct implementations in six data regimes and are no knobs.

u_saved, of gradients alone, is the rounding of outputs that the backward pass reads as they were stored, if the kernel
declares `saved_outputs`. A derived B is to first order what one rounding of every intermediate makes of the result, and
outputs are among them: K_saved = 1. Each intermediate may then be off by eta_out / u_saved besides, since outputs of
fp16 underflow. In the sums of absolute terms of a declared B an output enters as often as operands do: K_saved = K_op.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from packproof.properties.op import Op
from packproof.properties.promises import Promises

UNIT_ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
TF32_ROUNDOFF = 2.0**-11
# half the smallest subnormal; where the arithmetic is fp32, what a GPU flushes to zero: all below the smallest normal
SMALLEST = {torch.float64: 0.0, torch.float32: 2.0**-126, torch.float16: 2.0**-25, torch.bfloat16: 2.0**-126}
# an operand is rounded as if it were at least this: the spacing of its dtype does not shrink any further
SMALLEST_NORMAL = {torch.float64: 0.0, torch.float32: 2.0**-126, torch.float16: 2.0**-14, torch.bfloat16: 2.0**-126}
K_OP = 4.0
K_ACC = 32.0
K_ACC_WITH_CUMSUM = 8.0
K_ACC_DERIVED = 8.0
K_SAVED_DERIVED = 1.0


@dataclass(frozen=True)
class Budget:
    """The error that an element may have, term by term; tensors in float64, shaped as the element's tensor.

    stored: u_out |r| + eta_out. operands: K_op u_op B_op + K_saved u_saved B. accumulation: K_acc u_acc (B + B_E).
    vacuous: whether it is as large as what it judges, so that to be within it says nothing (`oracle`).
    """

    stored: Tensor
    operands: Tensor
    accumulation: Tensor
    vacuous: bool = False

    @property
    def total(self) -> Tensor:
        return self.stored + self.operands + self.accumulation

    def __add__(self, other: "Budget") -> "Budget":
        terms = (self.stored + other.stored, self.operands + other.operands, self.accumulation + other.accumulation)
        return Budget(*terms, self.vacuous or other.vacuous)

    def __mul__(self, factor: float) -> "Budget":
        return Budget(self.stored * factor, self.operands * factor, self.accumulation * factor, self.vacuous)

    def __getitem__(self, rows: slice) -> "Budget":
        return Budget(self.stored[rows], self.operands[rows], self.accumulation[rows], self.vacuous)

    def terms(self, index: tuple[int, ...]) -> dict[str, float]:
        """The terms at one element, by name."""
        terms = {"rounding": self.stored, "operands": self.operands, "accumulation": self.accumulation}
        return {name: float(term[index]) for name, term in terms.items()}

    def dominant(self, index: tuple[int, ...]) -> tuple[str, float]:
        """The largest term at one element: its name and value."""
        values = self.terms(index)
        name = max(values, key=lambda k: values[k])
        return name, values[name]


def accumulations(promises: Promises, *, derived: bool) -> float:
    """K_acc. derived: whether B follows from the reference itself."""
    return K_ACC_WITH_CUMSUM if promises.cumsum else K_ACC_DERIVED if derived else K_ACC


def budget(
    r: Tensor,
    absolute: Tensor,
    stored: torch.dtype,
    tokens: torch.dtype,
    op: Op,
    promises: Promises,
    *,
    derived: bool = False,
    u_saved: float = 0.0,
    of_operands: Tensor | None = None,
) -> Budget:
    """The budget of one tensor.

    r: float64 reference. absolute: B, or B + B_E where the kernel declares `cumsum`. stored: dtype of the tensor.
    tokens: dtype of the call's tokens. u_saved: of a gradient, what saved outputs were rounded by. of_operands: B_op,
    where it is not B.
    """
    u_op = operands(op, promises, tokens)
    rounded = torch.zeros_like(absolute)  # B may be infinite, and 0 times it NaN
    if u_op:
        rounded = rounded + K_OP * u_op * (absolute if of_operands is None else of_operands)
    if u_saved:
        rounded = rounded + (K_SAVED_DERIVED if derived else K_OP) * u_saved * absolute
    accumulated = accumulations(promises, derived=derived) * accumulator(tokens) * absolute
    return Budget(_stored(stored) * r.abs() + SMALLEST[stored], rounded, accumulated)


def _stored(dtype: torch.dtype) -> float:
    """u_out: an fp32 or fp64 tensor holds the accumulator itself, whose rounding is one of those that K_acc counts."""
    return 0.0 if dtype in (torch.float32, torch.float64) else UNIT_ROUNDOFF[dtype]


def saved_outputs(promises: Promises, outputs: Iterable[torch.dtype]) -> float:
    """u_saved: what outputs of these dtypes are rounded by, if the kernel's backward pass reads them."""
    return max(map(_stored, outputs), default=0.0) if promises.saved_outputs else 0.0


def saved_underflow(promises: Promises, outputs: Iterable[torch.dtype]) -> float:
    """eta_out / u_out, what such an output loses by underflow in units of its roundoff: of fp16 outputs, above all."""
    rounded = [dtype for dtype in outputs if _stored(dtype)] if promises.saved_outputs else []
    return max((SMALLEST[dtype] / _stored(dtype) for dtype in rounded), default=0.0)


def operands(op: Op, promises: Promises, tokens: torch.dtype) -> float:
    """u_op: what operands are rounded by, as the kernel declares or as is usual for the op."""
    compute = promises.compute or ("operand" if op.matmul else "fp32")
    return {"fp32": 0.0, "tf32": TF32_ROUNDOFF, "operand": UNIT_ROUNDOFF[tokens]}[compute]


def accumulator(tokens: torch.dtype) -> float:
    """u_acc: sums over tokens of this dtype are fp32, of fp64 tokens fp64."""
    return UNIT_ROUNDOFF[torch.float64 if tokens == torch.float64 else torch.float32]


def score(got: Tensor, want: Tensor, allowed: Tensor) -> Tensor:
    """Error as a multiple of the budget, element by element, in float64; NaN and Inf score infinity unless wanted.

    An element that the stored dtype cannot hold may come back as the infinity of its sign.
    """
    largest = torch.finfo(got.dtype).max
    exact = got.double()
    error = (exact - want).abs()
    ratio = torch.where(error == 0, 0.0, error / allowed)
    overflow = (want.abs() > largest * 0.99) & (exact == torch.copysign(torch.full_like(exact, float("inf")), want))
    bad = ~torch.isfinite(exact) | torch.isnan(ratio) | (allowed < 0)
    return torch.where(overflow, 0.0, torch.where(bad, float("inf"), ratio))


def same_bits(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise bitwise equality; -0 equals +0, and a NaN equals a NaN of the same pattern."""
    integer = {8: torch.int64, 4: torch.int32, 2: torch.int16}[a.element_size()]
    return (a.contiguous().view(integer) == b.contiguous().view(integer)) | (a == b)
