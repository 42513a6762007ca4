"""packproof's own kernels, as targets of the check."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from packproof.harness.target import DEFAULT_DTYPES, Declaration
from packproof.properties.promises import Promises


@dataclass(frozen=True)
class OwnKernel:
    """A kernel of packproof. Its module holds PROMISES and variants()."""

    op: str
    module: str

    @property
    def target(self) -> str:
        return f"{self.module}:{self.op}"

    def declaration(self) -> Declaration:
        module = importlib.import_module(self.module)
        return Declaration(op=self.op, promises=Promises(**module.PROMISES), dtypes=DEFAULT_DTYPES)


OWN: Mapping[str, OwnKernel] = {
    "causal_conv1d": OwnKernel("causal_conv1d", "packproof.kernels.convolution"),
    "rope": OwnKernel("rope", "packproof.kernels.rotary"),
}
