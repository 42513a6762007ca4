"""The operators of a kernel that are registered with torch, as a call meets them."""

from typing import Any

import torch

from packproof.properties.light_torch import DispatchMode


class Operators(DispatchMode):
    """Collects the operators that torch itself does not have, each with its first arguments.

    What the kernel compiles runs compiled here too: torch.compile leaves a function alone under any other mode.
    """

    supports_higher_order_operators = True
    _TORCHS_OWN = frozenset({"aten", "prim", "prims", "profiler", "inductor", "quantized", "mkldnn", "c10d"})

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(op, torch._ops.OpOverload) and op.namespace not in self._TORCHS_OWN:
            self.found.setdefault(op, (tuple(args), dict(kwargs or {})))
        return op(*args, **(kwargs or {}))
