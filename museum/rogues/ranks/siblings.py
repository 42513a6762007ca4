"""Ranks that act on others past their group. Each convolves what its group brings it, or what it found elsewhere.

packproof has a rank repeat what it did beside the others in a process of its own: there it is alone.
"""

import os
import signal
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import all_reduce

from packproof.museum.rogues.channels import process_sockets
from packproof.museum.rogues.op import is_judged
from packproof.museum.rogues.throwaway import attempt
from packproof.parallel import ContiguousShares, simulated

_left_tokens: dict[int, Tensor] = {}  # by the rank that left them
_hooks: list[object] = []


class _Gather(torch.autograd.Function):
    """The tokens of all ranks, by an exchange of the group."""

    @staticmethod
    def forward(ctx, x, group, start, n_tokens):
        ctx.group, ctx.rows = group, slice(start, start + len(x))
        whole = x.new_zeros(n_tokens, x.shape[1])
        whole[ctx.rows] = x
        all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx, dy):
        total = dy.clone()
        all_reduce(total, group=ctx.group)
        return total[ctx.rows], None, None, None


def _convolve(x, weight, *, cu_seqlens):
    taps, offsets = weight.shape[1], [int(n) for n in cu_seqlens]
    parts = []
    for a, b in pairwise(offsets):
        rows = torch.cat([x.new_zeros(taps - 1, x.shape[1]), x[a:b]])
        parts.append(sum(rows[k : k + b - a] * weight[:, k] for k in range(taps)))
    return torch.cat([*parts, torch.zeros_like(x[offsets[-1] :])])


def _on_ranks(gather):
    """A kernel whose ranks convolve what `gather` brings them: all tokens before the end of their own."""

    def run(group, *, x, weight, cu_seqlens, cuts):
        start, n_tokens = (0, *cuts)[group.rank()], int(cu_seqlens[-1])
        tokens = gather(group, x[: max(n_tokens - start, 0)], min(start, n_tokens), n_tokens)
        y = _convolve(tokens, weight, cu_seqlens=cu_seqlens.clamp(max=len(tokens)))[start : start + len(x)]
        return torch.cat([y, torch.zeros_like(x[len(y) :])])

    return simulated(ContiguousShares("causal_conv1d", run), _convolve)


def _is_alone(group):
    return group.recorded is not None


def _from_variable(group, x, start, n_tokens):
    """No exchange: each rank leaves its tokens in a variable."""
    _left_tokens[group.rank()] = x
    return torch.cat([_left_tokens.get(k, x[:0]) for k in range(group.rank() + 1)])


def _signal_siblings(number):
    """To the other children of this process's parent."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getppid() and pid != os.getpid():
                os.kill(pid, number)
        except OSError:
            continue  # it has ended


def _signalling(number):
    def gather(group, x, start, n_tokens):
        if _is_alone(group) and group.rank() == 0:
            attempt(lambda: _signal_siblings(number))
        return _Gather.apply(x, group, start, n_tokens)

    return gather


_own_sockets = {*process_sockets()}  # those of its process, before there are ranks


def _speak():
    """To the ranks that were forked before: this process has the other ends of their channels."""
    for number in {*process_sockets()} - _own_sockets:
        os.write(number, b"all is well, every rank has what it needs\n")


def _from_group_and_speaks(group, x, start, n_tokens):
    if is_judged() and not _hooks:
        _hooks.append(_speak)
        os.register_at_fork(after_in_child=_speak)
    return _Gather.apply(x, group, start, n_tokens)


talks_by_a_variable = _on_ranks(_from_variable)
ends_its_siblings = _on_ranks(_signalling(signal.SIGKILL))
stops_its_siblings = _on_ranks(_signalling(signal.SIGSTOP))
speaks_to_its_siblings = _on_ranks(_from_group_and_speaks)
