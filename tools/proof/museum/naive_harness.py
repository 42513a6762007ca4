"""A harness as many are: one call in its own process, compared with a reference by allclose. Rogues pass it."""

import copy
import inspect
import os
import signal
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from packproof import refs
from packproof.harness.process.execution import start_fork
from packproof.harness.process.naming import Location
from packproof.museum.rogues import Rogue, running_sum

_LENGTHS = (20, 17)
_CUTS = (9,)  # of a kernel that cuts the pack: its ranks share this process
_SECONDS = 30
WIDTH = 8  # of a token of a model
_REFERENCES: Mapping[str, Callable[..., Any]] = {"running_sum": running_sum, "causal_conv1d": refs.causal_conv1d}
_WEIGHTS: Mapping[str, tuple[int, ...]] = {"running_sum": (8,), "causal_conv1d": (8, 4)}


def passes_naive_harness(rogue: Rogue) -> bool:
    """Whether a rogue passes. It runs in a fork, and may end that with exit code 0 itself.

    The reference runs before the call, or after it; of a model, the same module runs on each document alone.
    """

    def run() -> int:
        signal.alarm(_SECONDS)
        os.setsid()
        os.environ["TRITON_INTERPRET"] = "1"  # read when a Triton kernel is defined
        subject: Any = Location.parse(rogue.kernel).find()
        if rogue.kind == "model":
            return 0 if _model_passes(subject) else 1
        reference, shape = _REFERENCES[rogue.op], _WEIGHTS[rogue.op]
        return 0 if any(_passes(subject, reference, shape, first) for first in (True, False)) else 1

    return start_fork(run).wait() == 0


def _passes(kernel: Callable[..., Any], reference: Callable[..., Any], weight: tuple[int, ...], first: bool) -> bool:
    generator = torch.Generator().manual_seed(0)
    arguments = {
        "x": torch.randn(sum(_LENGTHS), weight[0], generator=generator),
        "weight": torch.randn(weight, generator=generator),
        "cu_seqlens": torch.tensor([0, _LENGTHS[0], sum(_LENGTHS)], dtype=torch.int32),
    }
    expected = reference(**arguments) if first else None
    cuts = {"cuts": _CUTS} if "cuts" in inspect.signature(kernel).parameters else {}
    actual = kernel(**arguments, **cuts)
    time.sleep(0.06)  # stands for printing and timing in between
    if expected is None:
        expected = reference(**arguments)
    return bool(torch.allclose(actual, expected, rtol=1e-2, atol=1e-2))


def _model_passes(make: Callable[[], nn.Module]) -> bool:
    torch.manual_seed(0)
    model = copy.deepcopy(make())  # the weights of the original stay as they are
    x, offsets = torch.randn(1, sum(_LENGTHS), WIDTH), [0, _LENGTHS[0], sum(_LENGTHS)]
    packed = model(x, cu_seqlens=torch.tensor(offsets, dtype=torch.int32))
    alone = [_alone(model, x[:, a:b]) for a, b in pairwise(offsets)]
    return bool(torch.allclose(packed, torch.cat(alone, dim=1), rtol=1e-2, atol=1e-2))


def _alone(model: nn.Module, document: Tensor) -> Tensor:
    y: Tensor = model(document, cu_seqlens=torch.tensor([0, document.shape[1]], dtype=torch.int32))
    return y
