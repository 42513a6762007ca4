"""The order of a tensor's axes, where a kernel has another than the op: states "s v k", a filter "d 1 w"."""

from dataclasses import dataclass

from torch import Tensor

from packproof.refs.axes import Axes, parse, role
from packproof.refs.errors import ArgumentError, UsageError

_ONE = "1"


@dataclass(frozen=True)
class AxisOrder:
    """ours, theirs: the axes of one tensor, the same but for their order, and axes of size 1 that the kernel adds."""

    ours: Axes
    theirs: Axes

    @classmethod
    def of(cls, spec: str, text: str, where: str) -> "AxisOrder":
        """That of a tensor with this spec in the op. UsageError for axes that are not those of any of its forms."""
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
        """The tensor as the kernel has it, contiguous; in another form than `ours` as it is."""
        if x.ndim != len(self.ours):
            return x
        x = x.permute([self.ours.index(a) for a in self.theirs if a != _ONE])
        for at, axis in enumerate(self.theirs):
            x = x.unsqueeze(at) if axis == _ONE else x
        return x.contiguous()

    def back(self, y: Tensor, where: str) -> Tensor:
        """What the kernel returned, as the op has it. ArgumentError if it has other axes."""
        ones = [at for at, axis in enumerate(self.theirs) if axis == _ONE]
        if y.ndim != len(self.theirs) or any(y.shape[at] != 1 for at in ones):
            raise ArgumentError(f"{where}: the kernel returned {tuple(y.shape)}, expected axes {' '.join(self.theirs)}")
        moved = [a for a in self.theirs if a != _ONE]
        y = y.squeeze(ones) if ones else y
        return y.permute([moved.index(a) for a in self.ours])
