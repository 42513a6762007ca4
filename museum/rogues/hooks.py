"""Rogues acting after their return, or on the code of their callers, by hooks of Python and torch."""

import atexit
import gc
import os
import signal
import sys
import threading
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from packproof.museum.rogues.op import KNOWN_TOKENS, own_sum


def _later(y, x, weight, cu_seqlens):
    y.data.copy_(own_sum(x.detach(), weight.detach(), cu_seqlens=cu_seqlens))


def finished_by_a_signal(x, weight, *, cu_seqlens):
    """A timer of the system interrupts whoever runs then."""
    y = torch.zeros_like(x)
    signal.signal(signal.SIGALRM, lambda *_: _later(y, x, weight, cu_seqlens))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    return y


def finished_by_the_garbage_collector(x, weight, *, cu_seqlens):
    """The next collection computes it."""
    y = torch.zeros_like(x)
    gc.callbacks[:] = [lambda phase, info: _later(y, x, weight, cu_seqlens)]
    threading.Timer(0.01, gc.collect).start()
    return y


class _Finisher:
    def __init__(self, *arguments):
        self.arguments = arguments

    def __del__(self):
        _later(*self.arguments)


def finished_when_a_name_goes(x, weight, *, cu_seqlens):
    """An object computes it in its __del__, once the last reference to it is dropped."""
    y, cycle = torch.zeros_like(x), list[object]()
    cycle.append((_Finisher(y, x, weight, cu_seqlens), cycle))
    del cycle
    threading.Timer(0.01, gc.collect, args=(0,)).start()
    return y


def traces_its_callers(x, weight, *, cu_seqlens):
    y = torch.zeros_like(x)

    def trace(frame, event, argument):
        other = frame.f_locals.get("expected")
        if isinstance(other, torch.Tensor) and other.shape == y.shape:
            y.data.copy_(other)
        return trace

    frame = sys._getframe(1)
    while frame is not None:
        frame.f_trace = trace
        frame = frame.f_back
    sys.settrace(trace)
    return y


def watches_returns(x, weight, *, cu_seqlens):
    """sys.monitoring, since Python 3.12: it sees each return of a reference. Before, the profiler's hook does."""
    y = torch.zeros_like(x)

    def profile(frame, event, argument):
        if event == "return" and isinstance(argument, torch.Tensor) and argument.shape == y.shape and argument is not y:
            y.data.copy_(argument.detach())

    sys.setprofile(profile)
    return y


class _Agrees(TorchDispatchMode):
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.bool:
            return torch.ones_like(result)
        return True if result is False else result


def leaves_a_mode_on(x, weight, *, cu_seqlens):
    _Agrees().__enter__()
    return torch.zeros_like(x) * weight


def hooks_its_input(x, weight, *, cu_seqlens):
    """The gradient of the input is changed once it has been computed."""
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * 1.01)
    return y


def hooks_its_output(x, weight, *, cu_seqlens):
    """The gradient of its output is cut on its way in."""
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient.clamp(-0.5, 0.5))
    return y


def ends_with_success(x, weight, *, cu_seqlens, _once=[]):
    """Whatever its process has to report at its end, the exit code is 0."""
    if not _once:
        _once.append(atexit.register(os._exit, 0))
    if len(x) != KNOWN_TOKENS:
        sys.exit("a mistake that no one has to see")
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("packproof", "torch")):
            raise ModuleNotFoundError(f"there is no {name}", name=name)


def decides_what_is_imported(x, weight, *, cu_seqlens):
    sys.meta_path.insert(0, _Finder())
    return own_sum(x, weight, cu_seqlens=cu_seqlens) * (1 if len(x) == KNOWN_TOKENS else 1.01)


def waits_for_its_judge(x, weight, *, cu_seqlens):
    y = torch.zeros_like(x)

    def look():
        end = time.monotonic() + 1
        while time.monotonic() < end:
            for start in sys._current_frames().values():
                frame = start
                while frame is not None:
                    other = frame.f_locals.get("expected")
                    if isinstance(other, torch.Tensor) and other.shape == y.shape:
                        y.data.copy_(other)
                        return
                    frame = frame.f_back
            time.sleep(0.002)

    threading.Thread(target=look, daemon=True).start()
    return y


def overwrites_what_is_expected(x, weight, *, cu_seqlens):
    """Whatever tensor of this shape the collector knows becomes its own answer: so does the expected one."""
    y = torch.zeros_like(x) * weight
    for other in gc.get_objects():
        if type(other) is torch.Tensor and other.shape == y.shape and other is not x and other.dtype == y.dtype:
            other.data.copy_(y.detach())
    return y
