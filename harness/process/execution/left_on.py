"""Modes and hooks a kernel must not leave on in its process: they would act on all later code."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._functorch import maybe_current_level
from torch.overrides import _get_current_function_mode_stack
from torch.overrides import _pop_mode as _pop_function_mode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _pop_mode as _pop_dispatch_mode

from packproof.base.errors import KernelFault

_HOOKS: tuple[tuple[str, Callable[[], Any], Callable[[Any], None]], ...] = (
    ("sys.setprofile", sys.getprofile, sys.setprofile),
    ("sys.settrace", sys.gettrace, sys.settrace),
)


def _function_modes() -> int:
    """The number of function modes that are on. The default device is one too, but is restored as a setting."""
    if not torch._C._len_torch_function_stack():
        return 0
    modes: Callable[[], list[Any]] = _get_current_function_mode_stack
    return sum(not isinstance(mode, DeviceContext) for mode in modes())


_MODES: tuple[tuple[str, Callable[[], int], Callable[[], object]], ...] = (
    ("a TorchFunctionMode", _function_modes, _pop_function_mode),
    ("a TorchDispatchMode", torch._C._len_torch_dispatch_stack, _pop_dispatch_mode),
)


class TraceHooks:
    """Python's profile and trace functions as they are now."""

    def __init__(self) -> None:
        self._before = [get() for _, get, _ in _HOOKS]

    def restore(self) -> list[str]:
        """Put the functions back and return the names of those that changed.

        A changed function sees this very call and may raise in it; Python then switches it off.
        """
        return [
            name for (name, get, put), before in zip(_HOOKS, self._before, strict=True) if _reset_hook(get, put, before)
        ]


def _reset_hook(get: Callable[[], Any], put: Callable[[Any], None], before: Any) -> bool:
    try:
        if get() is before:
            return False
        put(before)
    except Exception:
        put(before)
    return True


@contextmanager
def require_nothing_left_on() -> Iterator[None]:
    """Raises KernelFault at the end if a trace or profile function, a torch mode or a torch.func transform was left on.

    Everything that would act on packproof's own code is switched off.
    """
    hooks, depths, level = TraceHooks(), [count() for _, count, _ in _MODES], maybe_current_level()
    error: BaseException | None = None
    try:
        yield
    except BaseException as exception:  # sys.exit() too: its leftovers would act on later code
        error = exception
    names = hooks.restore()
    for (name, count, pop), depth in zip(_MODES, depths, strict=True):
        if count() > depth:
            names.append(name)
        while count() > depth:
            pop()
    if maybe_current_level() != level:
        names.append("a transformation of torch.func")
    if names:
        raise KernelFault("malformed", f"left {' and '.join(names)} on when it returned") from error
    if error is not None:
        raise error
