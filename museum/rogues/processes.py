"""Rogues crashing, hanging, leaving or killing processes, or outliving the check."""

import ctypes
import os
import resource
import signal
import subprocess
import sys

import torch

from packproof.museum.rogues.op import KNOWN_TOKENS, is_judged, running_sum


def _is_judged_call(x):
    return is_judged() and len(x) != KNOWN_TOKENS


def exits_at_once(x, weight, *, cu_seqlens):
    if _is_judged_call(x):
        os._exit(0)
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def calls_exit(x, weight, *, cu_seqlens):
    if _is_judged_call(x):
        sys.exit(0)
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def segfaults(x, weight, *, cu_seqlens):
    if (cu_seqlens.diff() == 0).any():
        ctypes.string_at(0)
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def hangs(x, weight, *, cu_seqlens):
    while len(x) == 1:
        pass
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def sleeps_for_ever(x, weight, *, cu_seqlens):
    if len(x) == 1:
        signal.pause()
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def cannot_be_aborted(x, weight, *, cu_seqlens):
    if len(x) == 1:
        signal.signal(signal.SIGABRT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pause()
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def stops_itself(x, weight, *, cu_seqlens):
    if len(x) == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def forks(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    if _is_judged_call(x):
        os.fork()
    return y


def leaves_a_process(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    if _is_judged_call(x):
        subprocess.Popen(["sleep", "7777"], start_new_session=True)
    return y


def leaves_a_daemon(x, weight, *, cu_seqlens):
    """The daemon's parent ends at once: no process of the check owns the daemon."""
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    if _is_judged_call(x):
        subprocess.run(["sh", "-c", "setsid sleep 7777 & exit 0"], check=True)
    return y


def leaves_a_daemon_and_dies(x, weight, *, cu_seqlens):
    if _is_judged_call(x):
        subprocess.run(["sh", "-c", "setsid sleep 7777 & exit 0"], check=True)
        os._exit(3)
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def kills_its_parent(x, weight, *, cu_seqlens):
    if _is_judged_call(x):
        os.kill(os.getppid(), signal.SIGKILL)
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def kills_itself(x, weight, *, cu_seqlens):
    if _is_judged_call(x):
        os.kill(os.getpid(), signal.SIGKILL)
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def limits_itself(x, weight, *, cu_seqlens):
    if _is_judged_call(x):
        resource.setrlimit(resource.RLIMIT_CPU, (0, 0))
        while True:
            torch.randn(100).sum()
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def leaves_a_process_that_no_one_ends(x, weight, *, cu_seqlens):
    """Kills the process responsible for ending it."""
    if _is_judged_call(x):
        subprocess.Popen(["sleep", "7777"], start_new_session=True)
        os.kill(os.getppid(), signal.SIGKILL)
    return running_sum(x, weight, cu_seqlens=cu_seqlens)
