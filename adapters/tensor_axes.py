"""The kernel's order of a tensor's axes, where it differs from the op's: states "s v k", a filter "d 1 w"."""

from dataclasses import dataclass

from torch import Tensor

from packproof.refs.axes import Axes, parse, role
from packproof.refs.errors import ArgumentError, UsageError

_ONE = "1"


@dataclass(frozen=True)
class AxisOrder:
    """The axes of one tensor in the op and in the kernel."""

    ours: Axes
    """The axes in the op's order."""
    theirs: Axes
    """The same axes in the kernel's order, with additional axes "1" of size 1."""

    @classmethod
    def of(cls, spec: str, text: str, where: str) -> "AxisOrder":
        """The order of a tensor.

        spec: its axes in the op, with alternatives.
        text: its axes in the kernel.
        context: the start of the error text.
        Raises UsageError if `text` is no permutation of any alternative.
        """
        forms = [axes for axes in parse(spec).alternatives if len({*axes}) == len(axes)]
        theirs = parse(text).alternatives[0] if isinstance(text, str) else ()
        for ours in forms:
            if sorted(ours) == sorted(a for a in theirs if a != _ONE):
                if role(ours) == "token" and theirs[0] != "t":
                    raise UsageError(f"{where} is {text!r}, expected t first; where the tokens lie is said by tokens")
                return cls(ours, theirs)
        expected = " or ".join(repr(" ".join(axes)) for axes in forms)
        raise UsageError(f"{where} is {text!r}, expected the axes of {expected} in another order, and 1 for more axes")

    def to(self, x: Tensor) -> Tensor:
        """The tensor in the kernel's order, contiguous. A tensor with another number of axes stays unchanged."""
        if x.ndim != len(self.ours):
            return x
        x = x.permute([self.ours.index(a) for a in self.theirs if a != _ONE])
        for at, axis in enumerate(self.theirs):
            x = x.unsqueeze(at) if axis == _ONE else x
        return x.contiguous()

    def back(self, y: Tensor, where: str) -> Tensor:
        """A result of the kernel in the op's order. Raises ArgumentError for other axes."""
        ones = [at for at, axis in enumerate(self.theirs) if axis == _ONE]
        if y.ndim != len(self.theirs) or any(y.shape[at] != 1 for at in ones):
            raise ArgumentError(f"{where}: the kernel returned {tuple(y.shape)}, expected axes {' '.join(self.theirs)}")
        moved = [a for a in self.theirs if a != _ONE]
        y = y.squeeze(ones) if ones else y
        return y.permute([moved.index(a) for a in self.ours])
