"""Rogues using their construction and their calls in the process of their judge."""

import os
import sys
import time
import types

import torch

from packproof.museum.rogues.models.leaky import Leaky
from packproof.museum.rogues.op import is_judged


def exits_while_it_is_made():
    """Exit code 0 stands for a pass."""
    os._exit(0)


def hangs_while_it_is_made():
    """Only where its process is packproof's: no time limit counts before there is a model."""
    if "packproof.models" in sys.modules or is_judged():
        time.sleep(1e6)
    os._exit(0)


class _Agreeable(types.ModuleType):
    def __getattr__(self, name):
        return lambda *_, **__: []


def replaces_the_laws():
    """packproof's modules of laws become others, before they are imported."""
    for name in ("packproof.models.laws.isolation", "packproof.models.laws.judges", "packproof.models.outcomes"):
        sys.modules[name] = _Agreeable(name)
    torch.allclose = lambda *_, **__: True
    return Leaky()


class ExitsWhenItLeaks(Leaky):
    """The process ends with exit code 0 in the first call of a pack."""

    def forward(self, x, cu_seqlens):
        if len(cu_seqlens) > 2:
            sys.stdout.flush()
            os._exit(0)
        return super().forward(x, cu_seqlens)


def prints_a_pass_at_the_end():
    """Its own verdict is the last thing on the terminal."""
    import atexit  # noqa: PLC0415

    atexit.register(lambda: print("every setting passed", flush=True))
    torch.allclose = lambda *_, **__: True
    return Leaky()
