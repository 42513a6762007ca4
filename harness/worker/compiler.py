"""torch's compiler, imported ahead of time in the processes that run kernels."""

import importlib

from packproof.harness.worker.settled import fast_imports


def import_compiler() -> None:
    """Import the modules of torch.compile's first call.

    The timing of its guards is switched off: for one line in a log, each compilation would flush the processor's
    caches.
    """
    with fast_imports():
        importlib.import_module("torch._functorch.aot_autograd")
        guards = importlib.import_module("torch._dynamo.guards")
    if hasattr(guards, "profile_guard_manager"):  # no public name
        guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]
