"""The error budget: one formula for all ops, per element.

    |out - r| <= u_out |r| + eta_out + K_op u_op B_op + K_saved u_saved B + K_acc u_acc (B + B_E)

r       the float64 reference; for a gradient, its vjp.
B       the magnitude op, the same op on absolute values; for a gradient, its vjp for absolute incoming gradients.
u_out   with eta_out, the rounding of the stored dtype.
u_op    the rounding of operands, if the kernel declares one.
u_acc   the rounding of the accumulator.
B_op    the effect of operand roundings of random signs (`drawn_roundings`); B where an op does not declare it. For
        the delta rule B is drawn already: B_op is B, or B without the errors of sums where a kernel declares `cumsum`.
B_E     the error of decays formed as differences of a cumulative sum, for kernels that declare `cumsum`.

K_op = 4. K_acc = 32, or 8 together with B_E. K_acc is also 8 where B is derived from the reference (`running_error`):
a derived B counts more terms. The constants were calibrated on correct implementations in six data regimes. They are
not options.

u_saved applies to gradients of kernels that declare `saved_outputs`: the backward pass reads outputs as they were
stored, hence rounded. A derived B is, to first order, the effect of one rounding of every intermediate. Outputs are
among these intermediates: K_saved = 1. Each intermediate may also be off by eta_out / u_saved, since outputs of fp16
underflow. In a declared B an output enters the absolute terms as often as an operand does: K_saved = K_op. The same
holds for operands that are rounded to fp16, such as a gradient that is stored before it is scaled.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.op import Op

UNIT_ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
TF32_ROUNDOFF = 2.0**-11
# eta_out: half the smallest subnormal; for fp32 arithmetic the smallest normal, since a GPU flushes all below to zero
UNDERFLOW_UNIT = {torch.float64: 0.0, torch.float32: 2.0**-126, torch.float16: 2.0**-25, torch.bfloat16: 2.0**-126}
# an operand is rounded as if it were at least this large: below it the spacing of the dtype stays the same
SMALLEST_NORMAL = {torch.float64: 0.0, torch.float32: 2.0**-126, torch.float16: 2.0**-14, torch.bfloat16: 2.0**-126}
K_OP = 4.0
K_ACC = 32.0
K_ACC_WITH_CUMSUM = 8.0
K_ACC_DERIVED = 8.0
K_SAVED_DERIVED = 1.0


@dataclass(frozen=True)
class Budget:
    """The error allowed at each element of a tensor, term by term. Terms are float64, in the shape of the tensor."""

    rounding: Tensor
    """u_out |r| + eta_out."""
    operand_term: Callable[[], Tensor]
    """K_op u_op B_op + K_saved u_saved B. It may be drawn (`oracle`), when it is asked for."""
    accumulation: Tensor
    """K_acc u_acc (B + B_E)."""
    vacuity: Callable[[], bool] = lambda: False
    """Whether the budget is as large as the tensor itself, as far as its terms were computed."""

    @property
    def vacuous(self) -> bool:
        """The budget is as large as the tensor itself, so that a result within it proves nothing (`oracle.is_vacuous`).

        A result that was within the other terms was judged by these: then the drawn term does not matter.
        """
        return self.vacuity()

    @property
    def operands(self) -> Tensor:
        return self.operand_term()

    @property
    def without_operands(self) -> Tensor:
        """The allowed error of a kernel that rounds no operands. It costs nothing."""
        return self.rounding + self.accumulation

    @property
    def total(self) -> Tensor:
        return self.rounding + self.operands + self.accumulation

    def __add__(self, other: "Budget") -> "Budget":
        return Budget(
            self.rounding + other.rounding,
            lambda: self.operands + other.operands,
            self.accumulation + other.accumulation,
            lambda: self.vacuous or other.vacuous,
        )

    def __mul__(self, factor: float) -> "Budget":
        return Budget(self.rounding * factor, lambda: self.operands * factor, self.accumulation * factor, self.vacuity)

    def __getitem__(self, rows: slice) -> "Budget":
        if not self.rounding.ndim:
            return self
        return Budget(self.rounding[rows], lambda: self.operands[rows], self.accumulation[rows], self.vacuity)

    def terms(self, index: tuple[int, ...]) -> dict[str, float]:
        """The terms at one element, by name."""
        terms = {"rounding": self.rounding, "operands": self.operands, "accumulation": self.accumulation}
        return {name: float(term[index]) for name, term in terms.items()}

    def dominant(self, index: tuple[int, ...]) -> tuple[str, float]:
        """The largest term at one element: its name and value."""
        terms_at_index = self.terms(index)
        name = max(terms_at_index, key=lambda k: terms_at_index[k])
        return name, terms_at_index[name]


def accumulation_constant(promises: Promises, *, derived: bool) -> float:
    """K_acc. derived: B is derived from the reference (`running_error`)."""
    return K_ACC_WITH_CUMSUM if promises.cumsum else K_ACC_DERIVED if derived else K_ACC


def budget(
    r: Tensor,
    absolute: Tensor,
    dtype: torch.dtype,
    token_dtype: torch.dtype,
    op: Op,
    promises: Promises,
    *,
    derived: bool = False,
    u_saved: float = 0.0,
    operand_bound: Tensor | None = None,
) -> Budget:
    """The budget of one tensor.

    r: float64 reference.
    absolute: B, or B + B_E where the kernel declares `cumsum`.
    dtype: dtype of the tensor.
    token_dtype: dtype of the call's tokens.
    derived: B is derived from the reference.
    u_saved: for a gradient, the roundoff of saved outputs.
    operand_bound: B_op; None where it is B.
    """
    u_op = operand_roundoff(op, promises, token_dtype)
    operand_term = torch.zeros_like(absolute)  # B may be infinite, and 0 times it NaN
    if u_op:
        operand_term = operand_term + K_OP * u_op * (absolute if operand_bound is None else operand_bound)
    if u_saved:
        operand_term = operand_term + (K_SAVED_DERIVED if derived else K_OP) * u_saved * absolute
    accumulation_term = accumulation_constant(promises, derived=derived) * accumulator_roundoff(token_dtype) * absolute
    rounding_term = _storage_roundoff(dtype) * r.abs() + UNDERFLOW_UNIT[dtype]
    return Budget(rounding_term, lambda: operand_term, accumulation_term)


def _storage_roundoff(dtype: torch.dtype) -> float:
    """u_out. Zero for an fp32 or fp64 tensor: it holds the accumulator itself, and K_acc counts its rounding."""
    return 0.0 if dtype in (torch.float32, torch.float64) else UNIT_ROUNDOFF[dtype]


def saved_output_roundoff(promises: Promises, outputs: Iterable[torch.dtype]) -> float:
    """u_saved: the roundoff of outputs of these dtypes, if the kernel's backward pass reads them."""
    return max(map(_storage_roundoff, outputs), default=0.0) if promises.saved_outputs else 0.0


def intermediate_underflow(
    op: Op, promises: Promises, token_dtype: torch.dtype, outputs: Iterable[torch.dtype]
) -> float:
    """eta / u: the underflow of what a kernel computes with further, in units of its roundoff. It matters for fp16.

    That are outputs of these dtypes which the backward pass reads, and operands that are rounded to the tokens' dtype.
    """
    rounded_dtypes = [dtype for dtype in outputs if promises.saved_outputs]
    if operand_roundoff(op, promises, token_dtype) == UNIT_ROUNDOFF[token_dtype]:
        rounded_dtypes.append(token_dtype)
    return max((UNDERFLOW_UNIT[x] / _storage_roundoff(x) for x in rounded_dtypes if _storage_roundoff(x)), default=0.0)


def operand_roundoff(op: Op, promises: Promises, token_dtype: torch.dtype) -> float:
    """u_op: the roundoff of operands, as the kernel declares it, else as is usual for the op."""
    compute = promises.compute or op.usual_compute
    return {"fp32": 0.0, "tf32": TF32_ROUNDOFF, "operand": UNIT_ROUNDOFF[token_dtype]}[compute]


def accumulator_roundoff(token_dtype: torch.dtype) -> float:
    """u_acc: sums over tokens are fp32, or fp64 for fp64 tokens."""
    return UNIT_ROUNDOFF[torch.float64 if token_dtype == torch.float64 else torch.float32]


def score(actual: Tensor, expected: Tensor, allowed_error: Tensor) -> Tensor:
    """Error as a multiple of the budget, element by element, in float64. NaN and Inf score infinity.

    Where the expected value is too large for the stored dtype, the infinity of its sign scores 0.
    """
    largest_finite = torch.finfo(actual.dtype).max
    exact = actual.double()
    error = (exact - expected).abs()
    ratio = torch.where(error == 0, 0.0, error / allowed_error)
    overflow = (expected.abs() > largest_finite * 0.99) & (
        exact == torch.copysign(torch.full_like(exact, float("inf")), expected)
    )
    invalid = ~torch.isfinite(exact) | torch.isnan(ratio) | (allowed_error < 0)
    return torch.where(overflow, 0.0, torch.where(invalid, float("inf"), ratio))


def same_bits(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise bitwise equality. -0 equals +0, and a NaN equals a NaN with the same bits."""
    integer_dtype = {8: torch.int64, 4: torch.int32, 2: torch.int16}[a.element_size()]
    return (a.contiguous().view(integer_dtype) == b.contiguous().view(integer_dtype)) | (a == b)
