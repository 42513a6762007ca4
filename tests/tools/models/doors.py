"""Modules that would get a verdict without being judged, or end the judge, if they ran in its process."""

import ctypes
import os
import signal
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

from tests.tools.models.models import WIDTH

_CRASHES = 0  # an address that no process may read


class Leaky(nn.Module):
    """The convolution runs over boundaries."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 4, padding=3, groups=WIDTH)

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return self.conv(x.mT)[..., : x.shape[1]].mT


class Right(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return torch.cat([document.cumsum(0) @ self.weight for document in x[0].split(cu_seqlens.diff().tolist())])


class ExitsInConstruction(Right):
    def __init__(self) -> None:
        os._exit(0)


class HangsInConstruction(Right):
    def __init__(self) -> None:
        time.sleep(1e6)


class CrashesInConstruction(Right):
    def __init__(self) -> None:
        ctypes.string_at(_CRASHES)


class ExitsInForward(Right):
    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        os._exit(0)


class KilledInForward(Right):
    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        signal.raise_signal(signal.SIGKILL)
        return super().forward(x, cu_seqlens)


class _ExitsBackward(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, dy: Tensor) -> Any:
        os._exit(0)


class ExitsInBackward(Right):
    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        y: Tensor = _ExitsBackward.apply(super().forward(x, cu_seqlens))
        return y


class SendsGarbage(Right):
    """Writes into every socket of its process."""

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                try:
                    os.write(int(name), b"passed")
                except OSError:
                    continue
        return super().forward(x, cu_seqlens)


def patches_verdicts() -> nn.Module:
    """Every verdict that is made in its process is a pass."""
    from packproof.harness.report import events  # noqa: PLC0415

    make: Any = events.Verdict.__init__

    def pass_everything(self: Any, cell: Any, tier: Any, *_: Any, **__: Any) -> None:
        make(self, cell, tier, "passed", 7, 0.1, 7)

    events.Verdict.__init__ = pass_everything  # type: ignore[method-assign]
    return Leaky()


def patches_laws() -> nn.Module:
    """No comparison that is made in its process fails."""
    from packproof.models.laws import isolation, judges, rounding  # noqa: PLC0415

    isolation.Leakage.leaking_pairs = property(lambda _: [])  # type: ignore[assignment, method-assign]
    rounding.Difference.fails = property(lambda _: False)  # type: ignore[assignment, method-assign]
    rounding.Difference.inconclusive_reason = property(lambda _: "")  # type: ignore[assignment, method-assign]
    judges._inconclusive_reason = lambda *_: ""
    return Leaky()


def patches_torch() -> nn.Module:
    torch.equal = lambda *_: True
    torch.Tensor.max = lambda x, *_: torch.zeros_like(x.sum())  # type: ignore[assignment, method-assign]
    return Leaky()


def exits_at_the_end() -> nn.Module:
    """Python's own end of the process is replaced, too."""
    sys.exit = lambda *_: os._exit(0)
    return Leaky()
