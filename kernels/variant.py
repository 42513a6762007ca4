"""One compiled form of a Triton kernel: all that is needed to build it without a GPU."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    """A kernel with everything known at compile time. A wrapper chooses between such forms."""

    name: str
    """Readable and unique within the op, such as "fwd-bfloat16-w4-silu"."""
    kernel: Any
    """The `triton.jit` function."""
    signature: Mapping[str, str]
    """Triton types by argument name ("*bf16", "i32", "i64"); constexpr arguments are "constexpr"."""
    constexprs: Mapping[str, Any]
    """Values of the constexpr arguments."""
    divisible: tuple[str, ...] = ()
    """Arguments specialized as multiples of 16."""
    num_warps: int = 4
    """A launch option, as are `num_stages` and `options`."""
    num_stages: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    """The targets for which the wrapper chooses this form, such as "sm_90"; all if empty."""
    spills: int = 0
    """Bytes of registers that it may spill. The reason stands beside the declaration."""
