"""What a kernel must not leave switched on in the process that called it: it would run in all that comes after."""

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

from packproof.properties.call import KernelFault

_HOOKS: tuple[tuple[str, Callable[[], Any], Callable[[Any], None]], ...] = (
    ("sys.setprofile", sys.getprofile, sys.setprofile),
    ("sys.settrace", sys.gettrace, sys.settrace),
)


def _function_modes() -> int:
    """How many are on, but for the default device, which is one of them and is put back as a setting."""
    if not torch._C._len_torch_function_stack():
        return 0
    modes: Callable[[], list[Any]] = _get_current_function_mode_stack
    return sum(not isinstance(mode, DeviceContext) for mode in modes())


_MODES: tuple[tuple[str, Callable[[], int], Callable[[], object]], ...] = (
    ("a TorchFunctionMode", _function_modes, _pop_function_mode),
    ("a TorchDispatchMode", torch._C._len_torch_dispatch_stack, _pop_dispatch_mode),
)


class Hooks:
    """Python's profile and trace functions as they are now."""

    def __init__(self) -> None:
        self._before = [get() for _, get, _ in _HOOKS]

    def restore(self) -> list[str]:
        """Put them back; the names of those that had changed. Such a function sees this call too, and may raise in it,
        after which Python has switched it off."""
        return [name for (name, get, put), before in zip(_HOOKS, self._before, strict=True) if _reset(get, put, before)]


def _reset(get: Callable[[], Any], put: Callable[[Any], None], before: Any) -> bool:
    try:
        if get() is before:
            return False
        put(before)
    except Exception:
        put(before)
    return True


@contextmanager
def nothing_left_on() -> Iterator[None]:
    """Raises KernelFault at the end if a profile or trace function, a mode of torch's or a transformation of
    torch.func has been left on; switches off what would act on packproof's own code."""
    hooks, depths, level = Hooks(), [count() for _, count, _ in _MODES], maybe_current_level()
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:  # sys.exit() too: what it left on acts on what comes next
        error = raised
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
