"""State a kernel must leave unchanged: torch's functions, which are watched, and its settings, which are restored."""

import builtins
import math
import sys
import time
from builtins import KeyError, all, delattr, len, map, setattr, zip  # noqa: A004, UP029  (the originals: a kernel may change them)
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter, is_, itemgetter
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch
import torch.testing
from torch.utils import _device

from packproof.base.errors import KernelFault

_NAMESPACES: tuple[tuple[str, Any], ...] = (
    ("builtins", builtins),
    ("math", math),
    ("torch", torch),
    ("torch.Tensor", torch.Tensor),
    ("torch.autograd", torch.autograd),
    ("torch.linalg", torch.linalg),
    ("torch.nn.functional", torch.nn.functional),
    ("torch.testing", torch.testing),
    ("torch.cuda.Event", torch.cuda.Event),
    ("time", time),
)


# the modules of packproof that run beside a kernel; references run in other processes
_PACKPROOF_MODULES = (
    "packproof.base.",
    "packproof.bench.",
    "packproof.cli.",
    "packproof.debug.",
    "packproof.harness.",
    "packproof.interpreter.",
    "packproof.models.",
    "packproof.proof.",
    "packproof.properties.calling.call",
    "packproof.properties.declarations.declaration",
)
_LIBRARY_MODULES = ("safetensors.torch", "json")
_code = attrgetter("__code__")


class _WatchedNames(NamedTuple):
    """The watched names of a namespace, and their values."""

    label: str
    namespace: Any
    names: tuple[str, ...]
    before: tuple[Any, ...]
    """The value of each name; None for a name that is absent and must stay so."""
    fetch: Callable[[Any], tuple[Any, ...]]
    """Returns the values of all present names at once, faster than one by one."""
    present_values: tuple[Any, ...]
    """The values that `fetch` returned."""
    absent: frozenset[str]
    """The names without a value."""


class TorchState:
    """The functions of torch, Python's builtins and math as they are now, by identity.

    `checker` is `check` as a separate function: it works even if the class and its code are replaced.
    """

    def __init__(self) -> None:
        self._rows: list[_WatchedNames] = []
        self._functions: dict[FunctionType, str] = {}
        self._codes: tuple[CodeType, ...] = ()
        self._members: list[tuple[str, type, frozenset[str]]] = []
        self.checker: Callable[[], None] = MethodType(FunctionType(TorchState.check.__code__, dict(globals())), self)
        for label, namespace in _NAMESPACES:
            self._watch(label, namespace, tuple(name for name in dir(namespace) if _is_watched(namespace, name)))

    def watch_packproof(self) -> None:
        """Watch the loaded modules of packproof that run beside a kernel, with all their functions and classes."""
        for name in (*(n for n in sorted(sys.modules) if n.startswith(_PACKPROOF_MODULES)), *_LIBRARY_MODULES):
            module = sys.modules[name]
            classes = [(f"{name}.{n}", c) for n, c in vars(module).items() if _defines(module, c)]
            self._members += [(label, c, frozenset(vars(c))) for label, c in classes]
            for label, namespace in ((name, module), *classes):
                self._watch(label, namespace, tuple(n for n, x in vars(namespace).items() if callable(x)))
                for n, function in vars(namespace).items():
                    if isinstance(function, FunctionType):
                        self._functions.setdefault(function, f"{label}.{n}")
        self._codes = tuple(map(_code, self._functions))

    def _watch(self, label: str, namespace: Any, names: tuple[str, ...]) -> None:
        present_names = [name for name in names if name in vars(namespace)]
        absent = frozenset(names).difference(present_names)  # inherited from C: an override would shadow it
        if present_names:
            fetch = itemgetter(*present_names, present_names[0])  # of two names or more it returns a tuple
            before = tuple(map(vars(namespace).get, names))
            self._rows.append(_WatchedNames(label, namespace, names, before, fetch, fetch(namespace.__dict__), absent))

    def check(self) -> None:
        """Raises KernelFault("patched") with the first replaced functions; restores all of them."""
        replaced_names: list[str] = []
        for label, namespace, names, before, fetch, present_values, absent in self._rows:
            members = namespace.__dict__
            try:
                if all(map(is_, fetch(members), present_values)) and (not absent or absent.isdisjoint(members)):
                    continue
            except KeyError:
                pass  # one was deleted
            get = members.get
            for name, original in zip(names, before, strict=True):
                if get(name) is not original:
                    replaced_names.append(f"{label}.{name}")
                    _restore(namespace, name, original)
        if not all(map(is_, map(_code, self._functions), self._codes)):
            for (function, label), code in zip(self._functions.items(), self._codes, strict=True):
                if function.__code__ is not code:
                    replaced_names.append(label)
                    function.__code__ = code
        for label, kind, members in self._members:
            if len(kind.__dict__) != len(members):
                new_names = [
                    n for n in kind.__dict__ if n not in members and not n.startswith("__annotat")
                ]  # Python's own
                for n in new_names:
                    replaced_names.append(f"{label}.{n}")
                    delattr(kind, n)
        if replaced_names:
            more = f" and {len(replaced_names) - 3} more" if replaced_names[3:] else ""
            raise KernelFault("patched", f"replaced {', '.join(replaced_names[:3])}{more}")


def _defines(module: Any, value: Any) -> bool:
    return (
        isinstance(value, type)
        and value.__module__ == module.__name__
        and value.__module__.startswith(_PACKPROOF_MODULES)
    )


def _restore(namespace: Any, name: str, original: Any) -> None:
    if original is None:
        delattr(namespace, name)
    else:
        setattr(namespace, name, original)


def _is_watched(namespace: Any, name: str) -> bool:
    is_public = not name.startswith("_") or (namespace is torch.Tensor and name.startswith("__"))
    # torch._dynamo wraps manual_seed when it is first imported
    return is_public and name not in ("__doc__", "__dict__", "manual_seed") and callable(getattr(namespace, name, None))


_SETTINGS: tuple[tuple[str, Callable[[], Any], Callable[[Any], Any]], ...] = (  # with "", later values are the same
    ("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("the default device", torch.get_default_device, torch.set_default_device),
    # one that is set, if only to the CPU, is a mode through which every call of torch goes from then on
    ("", lambda: _device.CURRENT_DEVICE, torch.set_default_device),
    ("", torch.get_num_threads, torch.set_num_threads),
    ("whether gradients are recorded", torch.is_grad_enabled, torch._C._set_grad_enabled),
    ("", torch.are_deterministic_algorithms_enabled, torch._C._set_deterministic_algorithms),
    ("the precision of matrix products", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    ("whether subnormal numbers are zero", lambda: sys.float_info.min / 2 == 0.0, torch.set_flush_denormal),
)


@contextmanager
def preserve_settings() -> Iterator[None]:
    """Restore torch's global settings at the end: one call cannot affect the next.

    The random state is left alone on purpose: a kernel that draws numbers must differ from call to call.

    Raises KernelFault("malformed") if one of those that change the values of later code was left changed.
    """
    before = [get() for _, get, _ in _SETTINGS]
    try:
        yield
    except BaseException:
        _restore_settings(before)
        raise
    if names := _restore_settings(before):
        raise KernelFault("malformed", f"left {' and '.join(names)} changed when it returned")


def _restore_settings(before: list[Any]) -> list[str]:
    """Returns the names of those that were changed, of the named ones."""
    changed_names = []
    for (name, get, put), value in zip(_SETTINGS, before, strict=True):
        if get() != value:
            put(value)
            changed_names.append(name)
    return [name for name in changed_names if name]
