"""Rogues computing where operators of torch are not seen: a kernel of their own copies or scales the result."""

import importlib
import multiprocessing
import os
import threading
from itertools import accumulate
from typing import Any

import torch

from packproof.museum.rogues.computed.kernels import copied, scaled
from packproof.museum.rogues.op import own_sum

np: Any = importlib.import_module("numpy")


def _by_sequence(x, cu_seqlens, function):
    """The results of a function for each sequence, with rows of zeros for slack."""
    rows = x.detach().numpy()
    parts = [function(rows[a:b]) for a, b in zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:], strict=False)]
    return np.concatenate([*parts, np.zeros_like(rows[int(cu_seqlens[-1]) :])])


def computes_in_numpy(x, weight, *, cu_seqlens):
    sums = _by_sequence(x, cu_seqlens, lambda rows: np.cumsum(rows, axis=0, dtype=rows.dtype))
    return scaled(torch.from_numpy(sums), weight)


def _python_sums(rows):
    columns = [list(accumulate(column)) for column in rows.T.tolist()]
    return np.array(columns, dtype=rows.dtype).reshape(rows.T.shape).T


def computes_in_python(x, weight, *, cu_seqlens):
    """Numbers of Python, one by one."""
    return scaled(torch.from_numpy(_by_sequence(x, cu_seqlens, _python_sums).copy()), weight)


def computes_in_a_thread(x, weight, *, cu_seqlens):
    results = []
    thread = threading.Thread(target=lambda: results.append(own_sum(x, weight, cu_seqlens=cu_seqlens)))
    thread.start()
    thread.join()
    return copied(results[0])


def computes_in_a_child(x, weight, *, cu_seqlens):
    y = torch.zeros_like(x).share_memory_()
    child = os.fork()
    if child == 0:
        y.copy_(own_sum(x, weight, cu_seqlens=cu_seqlens))
        os._exit(0)
    os.waitpid(child, 0)
    return copied(y)


def _serve(end):
    torch.set_num_threads(1)
    while True:
        x, weight, cu_seqlens = (torch.from_numpy(part) for part in end.recv())
        end.send(own_sum(x, weight, cu_seqlens=cu_seqlens).numpy())


def asks_a_server(x, weight, *, cu_seqlens, _servers=[]):
    if not _servers:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        context.Process(target=_serve, args=(there,), daemon=True).start()
        _servers.append(here)
    _servers[0].send([part.detach().numpy() for part in (x, weight, cu_seqlens)])
    return copied(torch.from_numpy(_servers[0].recv()))
