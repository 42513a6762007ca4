"""torch's compiler, imported into the processes that run kernels."""

import importlib

from packproof.harness.worker.settled import importing


def import_compiler() -> None:
    """Import what torch.compile imports when it is first called.

    Its guards are not timed: for a line of a log, each compilation would first empty the processor's caches.
    """
    with importing():
        importlib.import_module("torch._functorch.aot_autograd")
        guards = importlib.import_module("torch._dynamo.guards")
    if hasattr(guards, "profile_guard_manager"):  # no public name
        guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]
