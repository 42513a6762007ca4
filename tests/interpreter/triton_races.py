"""Triton kernels whose programs share memory, for interpreted_sanitizer.py."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from packproof.interpreter.sanitizer import Sanitizer
from tests.interpreter.triton_samples import fresh, numbers

CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


@triton.jit
def _shifted_copy_kernel(x, y, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i))


@triton.jit
def _overlap_kernel(x, y, B: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, B)
    tl.store(y + p * (B - 1) + i, tl.load(x + i) + p)


@triton.jit
def _bits_kernel(x, bits, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(bits + i, 1)
    tl.store(x + i // 2, 0.0, mask=i % 2 == 0)


@triton.jit
def _look_back_kernel(x):
    p = tl.program_id(0)
    before = tl.load(x + p - 1, mask=p > 0, other=0.0)
    tl.store(x + p, before + 1)


@triton.jit
def _shared_counter_kernel(x):
    tl.store(x, tl.load(x) + 1)


@triton.jit
def _next_element_kernel(y):
    p = tl.program_id(0)
    tl.store(y + p, 1.0)
    tl.store(y + p + 1, p + 2.0)


@triton.jit
def _pass_on_kernel(x):
    p = tl.program_id(0)
    tl.store(x + p + 1, tl.load(x + p) + 1)


@triton.jit
def _first_writes_kernel(x, y):
    p = tl.program_id(0)
    first = tl.load(x)
    tl.store(y + p, first)
    tl.store(x, first + 1, mask=p == 0)


@triton.jit
def _same_value_kernel(y):
    tl.store(y, 7.0)


@triton.jit
def _atomic_sum_kernel(x, total, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(total + tl.zeros((B,), tl.int32), tl.load(x + i))


@triton.jit
def _atomic_then_read_kernel(total, y):
    p = tl.program_id(0)
    if p == 0:
        tl.atomic_add(total, 1.0, sem="relaxed")
    else:
        tl.store(y + p, tl.load(total))


@triton.jit
def _beyond_atomic_kernel(total):
    tl.atomic_add(total + tl.arange(0, 2), 1.0)


@triton.jit
def _own_start_kernel(total):
    tl.store(total, 0.0, mask=tl.program_id(0) == 0)
    tl.atomic_add(total, 1.0)


@case
def programs_overlap() -> None:
    with Sanitizer():
        _overlap_kernel[(3,)](numbers(4), fresh(10), B=4)


@case
def programs_overlap_through_two_arguments() -> None:
    memory = numbers(17)
    with Sanitizer():
        _shifted_copy_kernel[(2,)](memory[:16], memory[1:], B=8)


@case
def one_tensor_as_two_arguments() -> None:
    x = numbers(16)
    with Sanitizer():
        _shifted_copy_kernel[(2,)](x, x, B=8)
    assert torch.equal(x, numbers(16))


@case
def programs_overlap_in_a_part_of_an_element() -> None:
    bits = torch.zeros(8, dtype=torch.int32)
    with Sanitizer():
        _bits_kernel[(8,)](bits.view(torch.float64), bits, B=1)


@case
def programs_read_what_others_write() -> None:
    with Sanitizer():
        _look_back_kernel[(3,)](fresh(3))


@case
def programs_write_what_others_read() -> None:
    with Sanitizer(order="reverse"):
        _look_back_kernel[(3,)](torch.zeros(3))


@case
def lost_update() -> None:
    with Sanitizer():
        _shared_counter_kernel[(3,)](torch.zeros(1))


@case
def programs_overlap_in_their_second_stores() -> None:
    with Sanitizer():
        _next_element_kernel[(3,)](fresh(4))


@case
def programs_write_what_others_have_read() -> None:
    with Sanitizer():
        _pass_on_kernel[(3,)](numbers(4))


@case
def one_program_writes_what_all_read() -> None:
    with Sanitizer():
        _first_writes_kernel[(3,)](numbers(1), fresh(3))


@case
def lost_update_of_one_program() -> None:
    x = torch.zeros(1)
    with Sanitizer():
        _shared_counter_kernel[(1,)](x)
        _shared_counter_kernel[(1,)](x)
    assert x.item() == 2


@case
def programs_write_the_same_value() -> None:
    with Sanitizer():
        _same_value_kernel[(3,)](fresh(1))


@case
def atomic_sum() -> None:
    total = torch.zeros(1)
    with Sanitizer():
        _atomic_sum_kernel[(3,)](numbers(12), total, B=4)
    assert total.item() == 78


@case
def atomic_sum_from_unwritten() -> None:
    with Sanitizer():
        _atomic_sum_kernel[(3,)](numbers(12), fresh(1), B=4)


@case
def atomic_past_the_end() -> None:
    with Sanitizer():
        _beyond_atomic_kernel[(1,)](torch.zeros(1))


@case
def atomic_on_an_input() -> None:
    total = torch.zeros(1)
    with Sanitizer(read_only=[total]):
        _atomic_sum_kernel[(1,)](numbers(4), total, B=4)


@case
def plain_read_of_an_atomic() -> None:
    with Sanitizer():
        _atomic_then_read_kernel[(2,)](torch.zeros(1), fresh(2))


@case
def plain_start_of_an_atomic() -> None:
    with Sanitizer():
        _own_start_kernel[(2,)](fresh(1))


@triton.jit
def _locked_kernel(lock, total, ORDER: tl.constexpr):
    while tl.atomic_cas(lock, 0, 1, sem=ORDER) == 1:
        pass
    tl.store(total, tl.load(total) + 1)
    tl.atomic_xchg(lock, 0, sem=ORDER)


@triton.jit
def _last_sums_kernel(x, partial, arrived, total, P: tl.constexpr):
    p = tl.program_id(0)
    tl.store(partial + p, tl.load(x + p) * 2)
    if tl.atomic_add(arrived, 1) == P - 1:
        tl.store(total, tl.sum(tl.load(partial + tl.arange(0, P))))


@triton.jit
def _late_write_kernel(x, partial, arrived, total, P: tl.constexpr):
    p = tl.program_id(0)
    last = tl.atomic_add(arrived, 1) == P - 1
    tl.store(partial + p, tl.load(x + p) * 2)
    if last:
        tl.store(total, tl.sum(tl.load(partial + tl.arange(0, P))))


@case
def lock() -> None:
    for order in ("forward", "reverse", "shuffle"):
        total = torch.zeros(1)
        with Sanitizer(order=order):
            _locked_kernel[(4,)](torch.zeros(1, dtype=torch.int32), total, ORDER="acq_rel")
        assert total.item() == 4


@case
def lock_without_order() -> None:
    with Sanitizer():
        _locked_kernel[(2,)](torch.zeros(1, dtype=torch.int32), torch.zeros(1), ORDER="relaxed")


@case
def last_program_sums() -> None:
    for order in ("forward", "reverse", "shuffle"):
        total = fresh(1)
        with Sanitizer(order=order):
            _last_sums_kernel[(4,)](numbers(4), fresh(4), torch.zeros(1, dtype=torch.int32), total, P=4)
        assert total.item() == 20


@case
def last_program_sums_too_early() -> None:
    with Sanitizer():
        _late_write_kernel[(4,)](numbers(4), fresh(4), torch.zeros(1, dtype=torch.int32), fresh(1), P=4)
