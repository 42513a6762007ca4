"""libdevice for Triton's interpreter: functions by name, computed by torch; the rest raise NotImplementedError."""

from collections.abc import Callable
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.runtime import interpreter as shipped

_SAME_NAME_IN_TORCH = (
    *(
        "abs",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "ceil",
        "copysign",
        "cos",
        "cosh",
        "erf",
        "erfc",
    ),
    *(
        "erfinv",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "fmod",
        "hypot",
        "isinf",
        "isnan",
        "lgamma",
        "log",
        "log10",
        "log1p",
        "log2",
    ),
    *("nextafter", "pow", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {name: getattr(torch, name) for name in _SAME_NAME_IN_TORCH} | {
    "add_rn": torch.add,
    "div_rn": torch.div,
    "fast_cosf": torch.cos,
    "fast_dividef": torch.div,
    "fast_expf": torch.exp,
    "fast_log2f": torch.log2,
    "fast_logf": torch.log,
    "fast_powf": torch.pow,
    "fast_sinf": torch.sin,
    "fast_tanhf": torch.tanh,
    "finitef": torch.isfinite,
    "mul_rn": torch.mul,
    "nearbyint": torch.round,
    "rint": torch.round,
    "rsqrt_rn": torch.rsqrt,
    "sqrt_rn": torch.sqrt,
    "sub_rn": torch.sub,
}


def repair() -> None:
    """Replace the functions of `triton.language.extra.libdevice` (and of the one under `cuda`) by ones on the CPU."""
    for module in (libdevice, cuda_libdevice):
        for name in [name for name, member in vars(module).items() if callable(member) and not name.startswith("_")]:
            setattr(module, name, _interpreted_function(name, _FUNCTIONS.get(name)))


def _interpreted_function(name: str, function: Callable[..., Tensor] | None) -> Callable[..., Any]:
    if function is None:

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(f"libdevice.{name} is not modelled by packproof: check this kernel on a GPU")

        return refuse

    def elementwise(*args: Any, _semantic: Any = None) -> Any:
        semantic = shipped.interpreter_semantic
        operands = [semantic.to_tensor(arg) for arg in args]
        for i in range(1, len(operands)):
            operands[0], operands[i] = semantic.broadcast_impl_value(operands[0], operands[i])
        for operand in operands:
            if operand.dtype not in (tl.float32, tl.float64):
                raise TypeError(f"libdevice.{name} takes float32 or float64, got {operand.dtype}")
        result = function(*[torch.from_numpy(operand.handle.data.copy()) for operand in operands]).numpy()
        scalar = tl.int1 if result.dtype == bool else operands[0].dtype
        kind = tl.block_type(scalar, list(result.shape)) if operands[0].type.is_block() else scalar
        return tl.core.tensor(shipped.TensorHandle(result, scalar), kind)

    return elementwise
