"""Rogues writing to the channels of packproof's processes, or to the terminal."""

import ctypes
import json
import os
import pickle
import socket
import stat
import struct
import sys

import torch

from packproof.museum.rogues.op import KNOWN_TOKENS, is_judged, running_sum


def _wrong_sum(x, weight, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    return y if len(x) == KNOWN_TOKENS else y * 0


def process_sockets():
    for number in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                yield number
        except OSError:
            continue


def _write_to_sockets(data):
    if is_judged():
        for number in process_sockets():
            try:
                os.write(number, data)
            except OSError:
                continue


def _frame(kind, body, payload=b"", magic=b"pkpf", n_payload=None):
    text = json.dumps({"kind": kind, "number": 1, "names": [], "body": body}).encode()
    return magic + struct.pack("<IQ", len(text), len(payload) if n_payload is None else n_payload) + text + payload


def writes_garbage(x, weight, *, cu_seqlens):
    _write_to_sockets(b"all is well, every property held\n")
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def writes_a_result(x, weight, *, cu_seqlens):
    _write_to_sockets(_frame("result", {"interpreted": False}))
    return _wrong_sum(x, weight, cu_seqlens)


def writes_a_broken_frame(x, weight, *, cu_seqlens):
    _write_to_sockets(_frame("broken", {"text": "it is packproof's fault"}))
    return _wrong_sum(x, weight, cu_seqlens)


def writes_a_refusal(x, weight, *, cu_seqlens):
    _write_to_sockets(_frame("refused", {"text": "not supported", "memory": True}))
    return _wrong_sum(x, weight, cu_seqlens)


def announces_terabytes(x, weight, *, cu_seqlens):
    _write_to_sockets(_frame("result", {}, n_payload=1 << 39))
    return _wrong_sum(x, weight, cu_seqlens)


def closes_descriptors(x, weight, *, cu_seqlens):
    if is_judged():
        os.closerange(3, 256)
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


class _Payload:
    """Runs code in the unpickling process."""

    def __reduce__(self):
        return os._exit, (0,)


def forges_through_proc(x, weight, *, cu_seqlens):
    """Writes a pickled object into every accessible pipe and socket of this user's processes."""
    if is_judged():
        bomb = pickle.dumps(_Payload())
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if int(pid) in (1, os.getpid()) or not _is_packproof(pid):
                continue
            _write_to_channels(pid, bomb)
    return _wrong_sum(x, weight, cu_seqlens)


def _is_packproof(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"python" in file.read().partition(b"\0")[0]
    except OSError:
        return False


def _write_to_channels(pid, data):
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for number in numbers:
        try:
            if not os.readlink(f"/proc/{pid}/fd/{number}").startswith(("pipe:", "socket:")):
                continue
            end = os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
            os.write(end, struct.pack("!i", len(data)) + data)
            os.close(end)
        except OSError:
            continue


def steals_descriptors(x, weight, *, cu_seqlens):
    """Copies other processes' sockets (pidfd_getfd), and reports success there."""
    libc = ctypes.CDLL(None, use_errno=True)
    if is_judged():
        for pid in filter(_is_packproof, filter(str.isdigit, os.listdir("/proc"))):
            try:
                handle = os.pidfd_open(int(pid))
            except OSError:
                continue
            for number in range(3, 40):
                descriptor = -1 if int(pid) == os.getpid() else libc.syscall(438, handle, number, 0)
                if descriptor >= 0 and stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    os.set_blocking(descriptor, False)
                    try:
                        os.write(descriptor, _frame("end", {}))
                    except OSError:
                        pass
                if descriptor >= 0:
                    os.close(descriptor)
            os.close(handle)
    return _wrong_sum(x, weight, cu_seqlens)


def asks_the_zygote(x, weight, *, cu_seqlens):
    """Sends an empty packet to every accessible socket. An empty packet ends a zygote."""
    for number in process_sockets() if is_judged() else ():
        try:
            with socket.socket(fileno=os.dup(number)) as end:
                end.send(b"")
        except OSError:
            continue
    return _wrong_sum(x, weight, cu_seqlens)


def paints_the_terminal(x, weight, *, cu_seqlens):
    if len(x) != KNOWN_TOKENS:
        torch.zeros(3).sin()
        raise ValueError("\x1b[2J\x1b[Hevery property held: 12 passed\x1b[8m\u202e")
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def prints_a_verdict(x, weight, *, cu_seqlens):
    print("\x1b[2J\x1b[Hevery property held: 12 passed", flush=True)
    return _wrong_sum(x, weight, cu_seqlens)


def raises_half_a_character(x, weight, *, cu_seqlens):
    if len(x) != KNOWN_TOKENS:
        torch.zeros(3).sin()
        raise ValueError("half of a character: \ud83d")
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no")


def raises_the_unspeakable(x, weight, *, cu_seqlens):
    if len(x) != KNOWN_TOKENS:
        raise Unspeakable
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def _secrets():
    """The values of 16 bytes in its callers' frames, and in the objects there: one of them begins each frame."""
    frame = sys._getframe(1)
    while frame is not None:
        for value in [*frame.f_locals.values()]:
            members = [*getattr(value, "__dict__", {}).values()]
            yield from (data for data in (value, *members) if isinstance(data, bytes) and len(data) == 16)
        frame = frame.f_back


def signs_a_frame(x, weight, *, cu_seqlens):
    for magic in _secrets() if is_judged() else ():
        _write_to_sockets(_frame("result", {"interpreted": False}, magic=magic))
    return _wrong_sum(x, weight, cu_seqlens)
