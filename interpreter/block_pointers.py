"""Loads through block pointers: past a checked boundary they give zeros where no padding is named.

Triton leaves the value open, and most kernels with block pointers multiply such blocks without a mask. Compiled loads
give zeros: in the PTX of triton 3.7.1 a register is zeroed before the load that a predicate may skip. Lanes that a
`mask=` leaves out stay undefined (`sanitizer`).
"""

from collections.abc import Callable
from typing import Any

from triton._C.libtriton import ir
from triton.runtime import interpreter as shipped

from packproof.interpreter.patch import replace


def repair() -> None:
    """Make zeros the padding of a load that names none. Triton 3.9 has no block pointers."""
    if hasattr(shipped.InterpreterBuilder, "create_tensor_pointer_load"):
        replace(shipped.InterpreterBuilder, "create_tensor_pointer_load", _pad_with_zeros)


def _pad_with_zeros(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(self: Any, pointer: Any, boundary_check: Any, padding_option: Any, *args: Any) -> Any:
        padding = ir.PADDING_OPTION.PAD_ZERO if padding_option is None else padding_option
        return original(self, pointer, boundary_check, padding, *args)

    return load
