"""A module for steps and culprits in its own process."""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from packproof.models.subjects.modes import Mode
from packproof.models.subjects.tested_module import ModuleCall


class CalledModule(Protocol):
    module: nn.Module
    mode: Mode

    def arguments(self, call: ModuleCall) -> dict[str, Any]:
        """The keyword arguments of a call."""
        ...

    def return_value(self, call: ModuleCall, x: Tensor, arguments: Mapping[str, Any] | None = None) -> Any:
        """The return value of forward. Raises ModuleRefused or ModuleCrashed.

        arguments: None for the call's own.
        """
        ...

    def picked(self, return_value: Any, call: ModuleCall) -> Tensor:
        """The output or the loss that the call asks for."""
        ...
