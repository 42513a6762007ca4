"""Collects a kernel's operators registered with torch while it runs."""

from typing import Any

import torch

from packproof.base.light_torch import DispatchMode
from packproof.harness.process.execution.provenance.arithmetic import TORCH_NAMESPACES


class Operators(DispatchMode):
    """Collects the operators outside torch's own namespaces, each with its first arguments.

    Compiled functions stay compiled under this mode: torch.compile is off under any other.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.first_arguments: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(op, torch._ops.OpOverload) and op.namespace not in TORCH_NAMESPACES:
            self.first_arguments.setdefault(op, (tuple(args), dict(kwargs or {})))
        return op(*args, **(kwargs or {}))
