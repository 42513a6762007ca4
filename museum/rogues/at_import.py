"""A rogue replacing packproof's functions while its module is imported, before the first check."""

import sys

from packproof.museum.rogues.op import running_sum

if "packproof.harness.process.worker_main" in sys.modules:
    _torch_state = sys.modules["packproof.harness.process.execution.torch_state"]
    _torch_state.TorchState.check = lambda self: None
    _runner = sys.modules["packproof.harness.process.execution.execute"].InProcess
    _init = _runner.__init__

    def _init_without_check(self, function, *arguments, **options):
        _init(self, function, *arguments, **options)
        self._check_patches = lambda: None

    _runner.__init__ = _init_without_check


def replaces_the_runner_at_import(x, weight, *, cu_seqlens):
    return running_sum(x, weight, cu_seqlens=cu_seqlens)
