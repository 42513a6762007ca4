"""The tensors of a call by name and kind: what results, comparisons and violations are keyed by."""

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
    """An output, an input, or a gradient of one. name: in the op's declaration. As text it is what reports show.

    >>> from packproof.properties import TensorKey
    >>> print(TensorKey("B", "gradient"))
    gradient of B
    """

    name: str
    kind: TensorKind = "output"

    def __str__(self) -> str:
        return _PREFIXES[self.kind] + self.name

    @property
    def is_gradient(self) -> bool:
        """Whether it is the first gradient of an input."""
        return self.kind == "gradient"


def gradient(name: str) -> TensorKey:
    """The gradient of the input of this name."""
    return TensorKey(name, "gradient")
