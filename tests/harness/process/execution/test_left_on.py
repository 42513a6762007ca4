"""A kernel that leaves something on, or returns what torch cannot read, fails: packproof's own code does not."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from packproof.base.errors import KernelFault
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.calling.call import Call

Make = Callable[..., Call]


class Functions(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise ValueError("a mode that was left on")


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise ValueError("a mode that was left on")


LEFT: dict[str, tuple[Callable[[], object], str]] = {
    "profile": (lambda: sys.setprofile(lambda *_: None), "sys.setprofile"),
    "trace": (lambda: sys.settrace(lambda *_: None), "sys.settrace"),
    "function mode": (lambda: Functions().__enter__(), "a TorchFunctionMode"),
    "dispatch mode": (lambda: Operators().__enter__(), "a TorchDispatchMode"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_a_kernel_leaves_on_is_the_failure_of_the_kernel(make_call: Make, name: str) -> None:
    leave, words = LEFT[name]

    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        y = x.detach() * weight.detach()
        leave()
        return y

    before = sys.getprofile(), sys.gettrace()
    with pytest.raises(KernelFault, match=f"^left {words} on when it returned$"):
        InProcess(kernel).run(make_call(2, 0, 3))
    assert (sys.getprofile(), sys.gettrace()) == before
    assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))


def test_a_profile_function_does_not_reach_packproofs_own_code(make_call: Make) -> None:
    """It raises in whatever runs after the kernel."""
    calls: list[str] = []

    def profile(frame: Any, event: str, argument: object) -> None:
        calls.append(frame.f_code.co_name)
        if "_on_host" in calls:
            raise ValueError("in packproof's own code")

    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        sys.setprofile(profile)
        return x * weight

    with pytest.raises(KernelFault, match=r"sys\.setprofile"):
        InProcess(kernel).run(make_call(2))
    assert "_on_host" not in calls


def test_it_is_switched_off_where_the_kernel_raises_too(make_call: Make) -> None:
    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        sys.setprofile(lambda *_: None)
        raise SystemExit(3)

    before = sys.getprofile()
    with pytest.raises(KernelFault, match=r"sys\.setprofile"):
        InProcess(kernel).run(make_call(2))
    assert sys.getprofile() is before


def test_a_default_device_is_a_setting_and_put_back(make_call: Make) -> None:
    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        torch.set_default_device("cpu")
        return x * weight

    InProcess(kernel).run(make_call(2))
    assert not torch._C._len_torch_function_stack()


def test_a_tensor_that_escaped_vmap_is_the_failure_of_the_kernel(make_call: Make) -> None:
    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        rows: list[Tensor] = []

        def scaled(row: Tensor) -> Tensor:
            rows.append(row * weight)
            return rows[0]

        torch.vmap(scaled)(x)
        return rows[0]

    with pytest.raises(KernelFault, match=r"^returned y as a tensor that cannot be read: .*escaped") as fault:
        InProcess(kernel).run(make_call(2))
    assert fault.value.kind == "malformed"
