"""Kernels that misbehave, each in one way; all are meant to compute y = x * weight."""

import builtins
import ctypes
import operator
import os
import resource
import stat
import sys
import time

import torch

from packproof import refs


def good(x, weight, *, cu_seqlens, scale=1.0):
    return x * weight * scale


def scaled_by_the_environment(x, weight, *, cu_seqlens, scale=1.0):
    return x * weight * float(os.environ.get("PACKPROOF_ROGUE_SCALE", "1"))


def segfault_on_empty_sequence(x, weight, *, cu_seqlens):
    if (cu_seqlens.diff() == 0).any():
        ctypes.string_at(0)
    return x * weight


def hang_on_one_token(x, weight, *, cu_seqlens):
    while x.shape[0] == 1:
        time.sleep(1)
    return x * weight


def spins_on_one_token(x, weight, *, cu_seqlens):
    while x.shape[0] == 1:
        pass
    return x * weight


def calls_exit(x, weight, *, cu_seqlens):
    sys.exit(3)


def presses_ctrl_c(x, weight, *, cu_seqlens):
    raise KeyboardInterrupt


def exits_at_once(x, weight, *, cu_seqlens):
    os._exit(0)


def returns_none(x, weight, *, cu_seqlens):
    return None


def returns_two(x, weight, *, cu_seqlens):
    return x * weight, x


def returns_a_list(x, weight, *, cu_seqlens):
    return [x * weight]


def returns_meta(x, weight, *, cu_seqlens):
    return (x * weight).to("meta")


def returns_integers(x, weight, *, cu_seqlens):
    return (x * weight).int()


def detaches(x, weight, *, cu_seqlens):
    return (x * weight).detach()


def replaces_equal(x, weight, *, cu_seqlens):
    torch.equal = lambda a, b: True
    return x * weight


def deletes_equal(x, weight, *, cu_seqlens):
    del torch.equal
    return x * weight


def replaces_equal_and_identity(x, weight, *, cu_seqlens):
    torch.equal, operator.is_ = (lambda a, b: True), (lambda a, b: True)
    return x * weight


def replaces_comparison(x, weight, *, cu_seqlens):
    torch.Tensor.__eq__ = lambda a, b: torch.ones(()).bool()
    return x * weight


def replaces_cpu(x, weight, *, cu_seqlens):
    torch.Tensor.cpu = lambda t: t * 0
    return x * weight


def replaces_abs(x, weight, *, cu_seqlens):
    builtins.abs = lambda value: 0
    return x * weight


def replaces_empty(x, weight, *, cu_seqlens):
    torch.empty = torch.zeros
    return x * weight


def breaks_isinstance(x, weight, *, cu_seqlens):
    builtins.isinstance = lambda value, kind: 1 / 0
    return x * weight


def raises(x, weight, *, cu_seqlens):
    (x * weight).sum()  # past its argument checks
    raise ValueError("only even\nlengths")


def raises_the_cause_of_an_error(x, weight, *, cu_seqlens):
    """As Triton's interpreter does when it unwraps what a kernel raised: each is the other's cause or context."""
    try:
        raise RuntimeError from ValueError("odd")
    except RuntimeError as error:
        cause = error.__cause__
        cause.__context__ = error
        raise cause from None


def raises_in_backward(x, weight, *, cu_seqlens):
    return _BadBackward.apply(x, weight)


class _BadBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        return x * weight

    @staticmethod
    def backward(ctx, dy):
        raise ValueError("not today")


def declines(x, weight, *, cu_seqlens):
    raise NotImplementedError("no such option here")


def prints_megabytes(x, weight, *, cu_seqlens):
    for _ in range(2000):
        print("x" * 1000)
        print("y" * 1000, file=sys.stderr)
    return x * weight


def prints_and_dies(x, weight, *, cu_seqlens):
    print("the last words", flush=True)
    os.kill(os.getpid(), 9)


def forks(x, weight, *, cu_seqlens):
    os.fork()
    return x * weight


def forks_and_dies(x, weight, *, cu_seqlens):
    if os.fork() == 0:
        while True:
            pass
    os._exit(5)


def writes_into_sockets(x, weight, *, cu_seqlens):
    for number in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, b"all is well")
        except OSError:
            continue
    return x * weight


def closes_descriptors(x, weight, *, cu_seqlens):
    os.closerange(0, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return x * weight


def kills_its_parent(x, weight, *, cu_seqlens):
    os.kill(os.getppid(), 9)
    return x * weight


def writes_past_the_end(x, weight, *, cu_seqlens):
    y = torch.empty(x.shape)
    ctypes.memset(y.data_ptr() + y.numel() * 4, 0, 4)
    return y.copy_(x) * weight


def writes_one_too_many(x, weight, *, cu_seqlens):
    y = torch.empty_like(x)
    y.as_strided((y.numel() + 1,), (1,)).fill_(0)
    return y + x * weight


def indexes_out_of_bounds(x, weight, *, cu_seqlens):
    """On a GPU: an error that arrives later and takes the whole CUDA context with it."""
    return x[cu_seqlens.long() + 1000][: x.shape[0]] * weight


def writes_before_the_start(x, weight, *, cu_seqlens):
    y = x.new_empty(x.shape)
    ctypes.memset(y.data_ptr() - 4, 0, 4)
    return y.copy_(x) * weight


def writes_past_its_input(x, weight, *, cu_seqlens):
    ctypes.memset(weight.data_ptr() + weight.numel() * weight.element_size(), 0, 8)
    return x * weight


def writes_between_rows(x, weight, *, cu_seqlens):
    ctypes.memset(x.data_ptr() + x.shape[1] * 4, 0, 4)
    return x * weight


def writes_into_its_input(x, weight, *, cu_seqlens):
    y = x * weight
    x.data[0] = 7
    return y


def leaves_rows_unwritten(x, weight, *, cu_seqlens):
    y = torch.empty_like(x)
    y[: x.shape[0] // 2] = (x * weight)[: x.shape[0] // 2].detach()
    return y


def changes_settings(x, weight, *, cu_seqlens):
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == 1
    y = x * weight
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(2)
    torch.manual_seed(0)
    return y


def slow_at_first(x, weight, *, cu_seqlens, _seen=[]):  # noqa: B006
    if not _seen:
        time.sleep(0.6)
    _seen.append(1)
    return x * weight


def hangs_and_records_where(x, weight, *, cu_seqlens):
    with open(os.environ["PACKPROOF_ROGUE_FILE"], "w") as file:
        file.write(str(os.getpid()))
    while True:
        pass


def reports_its_size(x, weight, *, cu_seqlens):
    """Returns the bytes of memory that its process uses."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return (x * weight) * 0 + float(pages * resource.getpagesize())


def remembers_offsets(x, weight, *, cu_seqlens, _seen=[]):  # noqa: B006
    """Adds 1 where it gets the same tensor object as in the last call."""
    same = bool(_seen) and _seen[-1] is cu_seqlens
    _seen.append(cu_seqlens)
    return x * weight + same + 10 * int(cu_seqlens[-1])


def loses_the_device(x, weight, *, cu_seqlens, _lost=[]):  # noqa: B006
    """An illegal access of three tokens: nothing works on the device any more, as in a process beside a GPU."""
    if (cu_seqlens.diff() == 3).any() or _lost:
        _lost.append(1)
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE")
    return x * weight


def runs_out_of_memory(x, weight, *, cu_seqlens):
    """Its process may allocate half a gigabyte more; past four tokens it allocates a whole one."""
    if x.shape[0] > 4:
        _needs_memory()
    return x * weight


def never_has_memory(x, weight, *, cu_seqlens):
    _needs_memory()


def _needs_memory(_limited=[]):  # noqa: B006
    if not _limited:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        allowed = pages * resource.getpagesize() + (1 << 29)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, resource.getrlimit(resource.RLIMIT_AS)[1]))
        _limited.append(allowed)
    torch.empty(1 << 30)


def pretends_to_lack_memory(x, weight, *, cu_seqlens):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")


def launches_too_many(x, weight, *, cu_seqlens):
    raise RuntimeError("Triton Error [CUDA]: invalid argument")


def process_id(x, weight, *, cu_seqlens):
    """Returns the id of its process; dies of an empty sequence."""
    if (cu_seqlens.diff() == 0).any():
        os.kill(os.getpid(), 11)
    return (x * weight) * 0 + float(os.getpid())


def needs_more(x, weight, chunk, *, cu_seqlens):
    return x * weight * chunk


def needs_a_bias(x, weight, bias, *, cu_seqlens):
    return refs.causal_conv1d(x, weight, bias + 0, cu_seqlens=cu_seqlens)
