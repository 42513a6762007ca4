"""One compiled form of a Triton kernel that a wrapper can choose: all that is needed to build it without a GPU."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    """A kernel with everything that is known at compile time.

    name: readable and unique within the op, such as "fwd-bfloat16-w4-silu".
    kernel: the `triton.jit` function.
    signature: Triton types by argument name ("*bf16", "i32", "i64"); constexpr arguments are "constexpr".
    constexprs: values of the constexpr arguments.
    divisible: arguments specialised as multiples of 16.
    num_warps, num_stages, options: launch options.
    targets: those that the wrapper chooses it for, such as "sm_90"; all if empty.
    spills: bytes that it may spill; the reason stands where it is declared.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    divisible: tuple[str, ...] = ()
    num_warps: int = 4
    num_stages: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    spills: int = 0
