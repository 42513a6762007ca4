"""The kernel's order of a tensor's axes, where it differs from the op's: states "s v k", a filter "d 1 w"."""

from dataclasses import dataclass

from torch import Tensor

from packproof.base.axes import Axes, parse, role
from packproof.base.errors import ArgumentError, UsageError

_UNIT_AXIS = "1"


@dataclass(frozen=True)
class AxisOrder:
    """The axes of one tensor in the op and in the kernel."""

    op_axes: Axes
    """The axes in the op's order."""
    kernel_axes: Axes
    """The same axes in the kernel's order, with additional axes "1" of size 1."""

    @classmethod
    def from_spec(cls, spec: str, text: str, context: str) -> "AxisOrder":
        """The order of a tensor.

        spec: its axes in the op, with alternatives.
        text: its axes in the kernel.
        context: the start of the error text.
        Raises UsageError if `text` is no permutation of any alternative.
        """
        alternatives = [axes for axes in parse(spec).alternatives if len({*axes}) == len(axes)]
        kernel_axes = parse(text).alternatives[0] if isinstance(text, str) else ()
        for op_axes in alternatives:
            if sorted(op_axes) == sorted(a for a in kernel_axes if a != _UNIT_AXIS):
                if role(op_axes) == "token" and kernel_axes[0] != "t":
                    raise UsageError(f"{context} is {text!r}, expected t first; where the tokens lie is said by tokens")
                return cls(op_axes, kernel_axes)
        expected = " or ".join(repr(" ".join(axes)) for axes in alternatives)
        raise UsageError(
            f"{context} is {text!r}, expected the axes of {expected} in another order, and 1 for more axes"
        )

    def to(self, x: Tensor) -> Tensor:
        """The tensor in the kernel's order, contiguous. A tensor with another number of axes stays unchanged."""
        if x.ndim != len(self.op_axes):
            return x
        x = x.permute([self.op_axes.index(a) for a in self.kernel_axes if a != _UNIT_AXIS])
        for i, axis in enumerate(self.kernel_axes):
            x = x.unsqueeze(i) if axis == _UNIT_AXIS else x
        return x.contiguous()

    def back(self, y: Tensor, context: str) -> Tensor:
        """A result of the kernel in the op's order. Raises ArgumentError for other axes."""
        unit_axes = [i for i, axis in enumerate(self.kernel_axes) if axis == _UNIT_AXIS]
        if y.ndim != len(self.kernel_axes) or any(y.shape[i] != 1 for i in unit_axes):
            raise ArgumentError(
                f"{context}: the kernel returned {tuple(y.shape)}, expected axes {' '.join(self.kernel_axes)}"
            )
        kernel_order = [a for a in self.kernel_axes if a != _UNIT_AXIS]
        y = y.squeeze(unit_axes) if unit_axes else y
        return y.permute([kernel_order.index(a) for a in self.op_axes])
