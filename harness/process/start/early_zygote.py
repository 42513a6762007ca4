"""The command's zygote, forked before the command is known: torch is imported once for both."""

import json
import os
import socket
from contextlib import suppress

from packproof.harness.process.start.imports import fast_imports
from packproof.harness.process.zygote_client import ZygoteClient, fixed_environment, fork_client, share_zygote

_MAX_PACKET = 1 << 12

_early_zygote: ZygoteClient | None = None


def fork_early_zygote() -> None:
    """Import torch and fork the shared zygote. It then waits for `settle_early_zygote`.

    For a process that `is_fresh`: it has one thread and has not used CUDA.
    """
    global _early_zygote  # noqa: PLW0603
    # A zygote started as a program would import torch a second time. The fork is taken before this process has done
    # anything else: no thread runs, and kernels find no trace of the check in their process.
    with fast_imports():
        from packproof.harness.process.zygote import serve  # noqa: PLC0415

    def become(control: socket.socket) -> None:
        _close_all_but(control)
        packet = control.recv(_MAX_PACKET)
        if packet:
            order = json.loads(packet)
            os.environ.update(fixed_environment(interpreted=order["interpreted"]))
            serve(control, isolation=order["isolation"], preload_compiler=order["preload_compiler"])

    _early_zygote = fork_client(become)


def settle_early_zygote(*, interpreted: bool, preload_compiler: bool) -> None:
    """Make the early zygote, if there is one, the shared one.

    interpreted: whether Triton is interpreted there.
    preload_compiler: whether several of its workers will use torch's compiler.
    """
    if _early_zygote is not None:
        share_zygote(_early_zygote, interpreted=interpreted)
        _early_zygote.start_serving(interpreted=interpreted, preload_compiler=preload_compiler)


def _close_all_but(control: socket.socket) -> None:
    """Close all inherited descriptors, as in a newly started program; 0, 1 and 2 are its own by now."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != control.fileno():
            with suppress(OSError):
                os.close(int(name))
