"""A rogue replacing packproof's functions while its module is imported, before the first check."""

import sys

from packproof.museum.rogues.op import running_sum

if "packproof.harness.worker.worker_main" in sys.modules:
    _surroundings = sys.modules["packproof.harness.execution.torch_state"]
    _surroundings.TorchState.check = lambda self: None
    _runner = sys.modules["packproof.harness.execution.execute"].InProcess
    _init = _runner.__init__

    def _unwatched(self, function, *rest, **named):
        _init(self, function, *rest, **named)
        self._check_patches = lambda: None

    _runner.__init__ = _unwatched


def replaces_the_runner_at_import(x, weight, *, cu_seqlens):
    return running_sum(x, weight, cu_seqlens=cu_seqlens)
