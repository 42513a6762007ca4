"""Keys of a call's tensors, by name and kind, used by results, comparisons and violations."""

from dataclasses import dataclass
from typing import Literal

TensorKind = Literal["input", "output", "gradient", "second gradient", "second gradient of incoming"]

_PREFIXES: dict[TensorKind, str] = {
    "input": "",
    "output": "",
    "gradient": "gradient of ",
    "second gradient": "second gradient of ",
    "second gradient of incoming": "second gradient of the incoming gradient of ",
}


@dataclass(frozen=True)
class TensorKey:
    """An output, an input, or a gradient of one. Its text is the one in reports.

    >>> from packproof.properties import TensorKey
    >>> print(TensorKey("B", "gradient"))
    gradient of B
    """

    name: str
    """The tensor's name in the op's declaration."""
    kind: TensorKind = "output"
    """One of "output", "input", "gradient" (of an input), or a second gradient."""

    def __str__(self) -> str:
        return _PREFIXES[self.kind] + self.name

    @property
    def is_gradient(self) -> bool:
        """Whether it is the first gradient of an input."""
        return self.kind == "gradient"


def gradient(name: str) -> TensorKey:
    """The gradient of the input of this name."""
    return TensorKey(name, "gradient")
