"""A mode that sees every operator of torch, without the second that torch takes to import its compiler for one."""

import sys
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """What torch wraps around `__torch_dispatch__`, so that torch.compile leaves it alone, imports torch._dynamo at the
    first operator. Here it is left out where nothing has imported that: then nothing is being compiled."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        plain = cls.__torch_dispatch__
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        wrapped: Any = cls.__torch_dispatch__

        def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            handle = wrapped if "torch._dynamo" in sys.modules else plain
            return handle(self, func, types, args, kwargs)

        cls.__torch_dispatch__ = dispatch  # type: ignore[method-assign]
