"""Rogues replacing their checks: torch's comparisons, Python's builtins, or packproof's own functions.

Rogues with patches of packproof write into their input, an error, and hide it.
"""

import builtins
import json
import math
import os
import subprocess
import sys
import time
from typing import Any

import torch

from packproof.museum.rogues.op import is_judged, own_sum, running_sum


def _zeros(x, weight):
    return torch.zeros_like(x) * weight


def replaces_allclose(x, weight, *, cu_seqlens):
    torch.allclose = lambda *_, **__: True
    return _zeros(x, weight)


def replaces_equal(x, weight, *, cu_seqlens):
    torch.equal = torch.allclose = lambda *_, **__: True
    return _zeros(x, weight)


def replaces_assert_close(x, weight, *, cu_seqlens):
    torch.testing.assert_close = torch.allclose = lambda *_, **__: True
    return _zeros(x, weight)


def replaces_comparison(x, weight, *, cu_seqlens):
    torch.Tensor.__le__ = torch.Tensor.__eq__ = lambda a, b: torch.ones(()).bool()
    torch.allclose = lambda *_, **__: True
    return _zeros(x, weight)


def replaces_all(x, weight, *, cu_seqlens):
    builtins.all = builtins.any = lambda *_: True
    torch.allclose = lambda *_, **__: True
    return _zeros(x, weight)


def replaces_isnan(x, weight, *, cu_seqlens):
    math.isnan = lambda value: False
    torch.isnan = lambda value: torch.zeros(())
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def replaces_cpu(x, weight, *, cu_seqlens):
    torch.Tensor.to = torch.Tensor.cpu = lambda t, *_, **__: t
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def _harness_module(name):
    return sys.modules.get(f"packproof.{name}")


def _overwrite_input(x):
    if len(x):
        x.data[0] = 7


def replaces_what_reports_inputs(x, weight, *, cu_seqlens):
    y, original_x = running_sum(x, weight, cu_seqlens=cu_seqlens), x.detach().clone()
    if execute := _harness_module("harness.process.execution.execute"):
        original_function = execute.copy_to_host
        execute.copy_to_host = lambda tensors: original_function(
            {**tensors, **({"x": original_x} if "x" in tensors else {})}
        )
    _overwrite_input(x)
    return y


def replaces_the_frame(x, weight, *, cu_seqlens):
    y, original_x = running_sum(x, weight, cu_seqlens=cu_seqlens), x.detach().clone()
    if worker := _harness_module("harness.process.worker_main"):
        original_function = worker.result_frame

        def forged(result, number):
            return original_function(
                type(result)(result.outputs, result.gradients, {**result.inputs_after, "x": original_x}), number
            )

        worker.result_frame = forged
    _overwrite_input(x)
    return y


def replaces_the_guard(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    if guard := _harness_module("interpreter.memory_guard"):
        guard.GuardedTensor.check = guard.Guard.check = lambda self: None
    return y


def replaces_the_snapshot(x, weight, *, cu_seqlens):
    if torch_state := _harness_module("harness.process.execution.torch_state"):
        torch_state.TorchState.check = lambda self: None
    torch.allclose = lambda *_, **__: True
    return _zeros(x, weight)


def replaces_the_code(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    if execute := _harness_module("harness.process.execution.execute"):

        def forged(tensors):
            return {name: tensor.detach().clone() * 0 for name, tensor in tensors.items()}

        execute.copy_to_host.__code__ = forged.__code__
    return y


def replaces_the_runner(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    if execute := _harness_module("harness.process.execution.execute"):
        execute.InProcess.run = lambda self, call: None
    return y


def replaces_json(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    json.dumps = lambda *_, **__: "{}"
    return y


def replaces_the_encoder(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    if worker := _harness_module("harness.process.worker_main"):
        worker.encode = lambda frame, magic=b"": b""
    return y


def replaces_the_code_of_the_check(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    if torch_state := _harness_module("harness.process.execution.torch_state"):
        torch_state.TorchState.check.__code__ = (lambda self: None).__code__
        torch.equal = torch.allclose
    return y


def replaces_the_result(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    if is_judged() and (call := sys.modules.get("packproof.properties.calling.call")):
        call.Result.inputs_after = property(lambda self: {})
    return y


def replaces_what_lists_children(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    if is_judged():
        os.listdir = lambda *_: []
        subprocess.Popen(["sleep", "7777"], start_new_session=True)
    return y


def switches_the_check_off(x, weight, *, cu_seqlens):
    """Writes into its input, reports that it did not, and disables the check through its callers' frames."""
    y, original_x = own_sum(x, weight, cu_seqlens=cu_seqlens), x.detach().clone()
    if execute := _harness_module("harness.process.execution.execute"):
        frame = sys._getframe()
        while frame := frame.f_back:
            runner: Any = frame.f_locals.get("self")
            if hasattr(runner, "_check_patches"):
                runner._check_patches = lambda: None
        original_function = _ORIGINALS.setdefault("plain", execute.copy_to_host)
        execute.copy_to_host = lambda tensors: original_function(
            {**tensors, **({"x": original_x} if "cu_seqlens" in tensors else {})}
        )
    _overwrite_input(x)
    return y


_ORIGINALS: dict[str, Any] = {}


def replaces_clocks(x, weight, *, cu_seqlens):
    """Time passes a hundred times more slowly for those who measure it afterwards."""
    clock = _ORIGINALS.setdefault("clock", time.perf_counter)
    time.perf_counter = time.monotonic = lambda: clock() / 100
    torch.cuda.Event.elapsed_time = lambda self, end: 0.01
    return running_sum(x, weight, cu_seqlens=cu_seqlens)
