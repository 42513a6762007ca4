"""Triton kernels whose programs cannot run together, or that are incorrect there, for interpreted_batch.py."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof.interpreter.batch.programs import Unsupported
from tests.interpreter.triton_batches import PROGRAMS, numbers
from tests.interpreter.triton_samples import fresh

ONE_BY_ONE: dict[str, tuple[Callable[[], list[Tensor]], str]] = {}  # and why, where that shows during a launch
ROGUES: dict[str, tuple[Callable[[], list[Tensor]], str]] = {}  # and the text of the fault


def one_by_one(reason: str) -> Callable[[Callable[[], list[Tensor]]], Callable[[], list[Tensor]]]:
    def note(function: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
        ONE_BY_ONE[function.__name__] = function, reason
        return function

    return note


def rogue(text: str) -> Callable[[Callable[[], list[Tensor]]], Callable[[], list[Tensor]]]:
    def note(function: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
        ROGUES[function.__name__] = function, text
        return function

    return note


@triton.jit
def _count_kernel(x, y):
    tl.store(y + tl.program_id(0), tl.atomic_add(x, 1.0))


@triton.jit
def _taken(x):
    return tl.atomic_add(x, 1.0)


@triton.jit
def _count_in_a_function_kernel(x, y):
    tl.store(y + tl.program_id(0), _taken(x))


@one_by_one("")
def atomics() -> list[Tensor]:
    x, y = torch.zeros(1), fresh(PROGRAMS)
    _count_kernel[(PROGRAMS,)](x, y)
    return [x, y]


@one_by_one("")
def atomics_in_a_device_function() -> list[Tensor]:
    x, y = torch.zeros(1), fresh(PROGRAMS)
    _count_in_a_function_kernel[(PROGRAMS,)](x, y)
    return [x, y]


_NAME = "atomic_add"


@triton.jit
def _hidden_count_kernel(x, y):
    at = y + tl.program_id(0)
    tl.store(at, tl.load(at) + 1)
    getattr(tl, _NAME)(x, 1.0)


@one_by_one("atomic_rmw")
def atomics_by_another_name() -> list[Tensor]:
    x, y = torch.zeros(1), torch.zeros(PROGRAMS)
    _hidden_count_kernel[(PROGRAMS,)](x, y)
    return [x, y]


@triton.jit
def _printing_kernel(y):
    print("program", tl.program_id(0))
    tl.store(y + tl.program_id(0), 1.0)


@one_by_one("")
def what_prints() -> list[Tensor]:
    y = fresh(PROGRAMS)
    _printing_kernel[(PROGRAMS,)](y)
    return [y]


@triton.jit
def _int_kernel(x, rows, N: tl.constexpr):
    pid = tl.program_id(0)
    at = x + pid + tl.arange(0, N) * rows
    tl.store(at, tl.load(at) + 1)
    if pid > int(pid % 2):
        tl.store(at, tl.load(at) * 2)


def hooks_of_a_launch_that_starts_again() -> int:
    """How often they have run."""
    runs: list[Any] = []
    _int_kernel.add_pre_run_hook(lambda *args, **named: runs.append(0))
    an_unsupported_operation_after_a_store()
    _int_kernel.pre_run_hooks.clear()
    return len(runs)


@one_by_one("an int that differs between programs")
def an_unsupported_operation_after_a_store() -> list[Tensor]:
    x = numbers(8, PROGRAMS).T
    _int_kernel[(PROGRAMS,)](x, PROGRAMS, N=8)
    return [x]


@triton.jit
def _break_kernel(y, n):
    for k in range(0, n):
        if k == tl.program_id(0):
            break
        tl.store(y + tl.program_id(0), k)


@one_by_one("break, continue or a returned value under a condition that differs")
def a_loop_left_early() -> list[Tensor]:
    y = torch.zeros(PROGRAMS)
    _break_kernel[(PROGRAMS,)](y, PROGRAMS)
    return [y]


@triton.jit
def _chosen(pid):
    if pid > 2:
        return pid * 2
    return pid


@triton.jit
def _returned_value_kernel(y):
    tl.store(y + tl.program_id(0), _chosen(tl.program_id(0)))


@one_by_one("break, continue or a returned value under a condition that differs")
def a_returned_value_that_differs() -> list[Tensor]:
    y = torch.zeros(PROGRAMS)
    _returned_value_kernel[(PROGRAMS,)](y)
    return [y]


@triton.jit
def _escaping_kernel(y):
    k = 0
    for k in range(0, tl.program_id(0)):  # noqa: B007
        tl.store(y, 0.0)
    tl.store(y + tl.program_id(0), k)


@one_by_one("a loop that differs between programs, and is left early or whose counter is used later")
def a_counter_after_its_loop() -> list[Tensor]:
    y = torch.zeros(PROGRAMS)
    _escaping_kernel[(PROGRAMS,)](y)
    return [y]


@triton.jit
def _stale_kernel(y):
    pid = tl.program_id(0)
    k = 7
    for at in range(0, 2):
        tl.store(y + 2 * pid + at, k)
        for k in range(0, pid):  # noqa: B007
            tl.store(y + 2 * pid + 1, 0.0)


@one_by_one("a loop that differs between programs, and is left early or whose counter is used later")
def a_counter_that_the_next_iteration_reads() -> list[Tensor]:
    y = torch.zeros(2 * PROGRAMS)
    _stale_kernel[(PROGRAMS,)](y)
    return [y]


@triton.jit
def _ramp_kernel(y, n, step):
    for k in range(tl.program_id(0), n, tl.num_programs(0)):
        tl.store(y + k, (k + 1) * step)


@one_by_one("a counter that differs between programs, and a float")
def a_counter_that_is_scaled() -> list[Tensor]:
    y = torch.zeros(50)
    _ramp_kernel[(PROGRAMS,)](y, 50, 0.1)
    return [y]


@triton.jit
def _order_kernel(x, y, N: tl.constexpr):
    pid = tl.program_id(0)
    block = tl.load(x + tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :])
    if pid % 2 == 0:
        block = tl.trans(block)
    tl.store(y + pid, tl.sum(block))


@one_by_one("blocks that lie differently in memory")
def blocks_in_two_orders() -> list[Tensor]:
    y = torch.zeros(PROGRAMS)
    _order_kernel[(PROGRAMS,)](numbers(64, 64), y, N=64)
    return [y]


@triton.jit
def _types_kernel(x, y):
    pid = tl.program_id(0)
    scale = 0.1
    half = tl.load(x + pid).to(tl.float16)
    if pid % 2 == 0:
        scale = half
    tl.store(y + pid, half * scale)


@one_by_one("fp16 in some programs, fp32 in others")
def variables_of_two_types() -> list[Tensor]:
    y = torch.zeros(PROGRAMS)
    _types_kernel[(PROGRAMS,)](numbers(PROGRAMS), y)
    return [y]


@triton.jit
def _same_flag_kernel(y):
    tl.store(y, 1.0)
    tl.store(y + 1 + tl.program_id(0), tl.load(y))


@one_by_one("programs of one launch share an element that one of them writes")
def an_element_that_all_write_alike_and_read() -> list[Tensor]:
    y = fresh(PROGRAMS + 1)
    _same_flag_kernel[(PROGRAMS,)](y)
    return [y]


_calls: list[Any] = []


@triton.jit
def _scale_kernel(x, weight, y, N: tl.constexpr):
    _calls.append(tl.program_id(0))
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y + at, tl.load(x + at) * tl.load(weight + tl.arange(0, N)))


def scale(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """y = x * weight, a program for each row of 4."""
    _calls.clear()
    y = torch.empty_like(x)
    _scale_kernel[(len(x),)](x, weight, y, N=4)
    return y


def programs_of_each_call() -> list[list[int]]:
    """In `scale`."""
    return [program.handle.data.tolist() for program in _calls]


@triton.jit
def _try_kernel(x, y):
    try:  # not compiled: a fault could hide here
        tl.store(y + tl.program_id(0), tl.load(x + tl.program_id(0)))
    finally:
        _calls.append(0)


@one_by_one("a statement that Triton does not compile: try")
def a_statement_that_could_swallow_a_fault() -> list[Tensor]:
    y = fresh(PROGRAMS)
    _try_kernel[(PROGRAMS,)](numbers(PROGRAMS), y)
    return [y]


# ------------------------------------------------------------------ faults


@triton.jit
def _first_time_kernel(x, y):
    pid = tl.program_id(0)
    _calls.append(0)
    beyond = 7 if len(_calls) == 1 else 0  # incorrect the first time only; near x, since other tensors lie further on
    tl.store(y + pid, tl.load(x + pid + beyond))


@rogue(
    "_first_time_kernel: program (0) reads 1 element past the end of x, float32 (7,) "
    "(1 of 1 active lanes are out of bounds)"
)
def a_fault_that_is_not_repeated() -> list[Tensor]:
    _calls.clear()
    y = fresh(PROGRAMS)
    _first_time_kernel[(PROGRAMS,)](numbers(PROGRAMS), y)
    return [y]


def _refuse_once():
    _calls.append(0)
    if len(_calls) == 1:
        raise Unsupported("one by one, please")


@triton.jit
def _refuse_kernel(x, y):
    pid = tl.program_id(0)
    _refuse_once()
    tl.store(y + pid, tl.load(x + pid + 1))


@rogue(
    "_refuse_kernel: program (6) reads 1 element past the end of x, float32 (7,) "
    "(1 of 1 active lanes are out of bounds)"
)
def a_refusal_of_its_own() -> list[Tensor]:
    _calls.clear()
    y = fresh(PROGRAMS)
    _refuse_kernel[(PROGRAMS,)](numbers(PROGRAMS), y)
    return [y]


@triton.jit
def _below_kernel(x, limit):
    pid = tl.program_id(0)
    tl.store(x + pid, tl.load(x + pid) + 1)
    tl.device_assert(pid < limit, "below 5")
    tl.device_assert(tl.load(x + pid) == 1, "memory was restored")


def assert_below(limit: int) -> None:
    x = torch.zeros(PROGRAMS)
    _below_kernel[(PROGRAMS,)](x, limit)
    assert x.tolist() == [1.0] * PROGRAMS
