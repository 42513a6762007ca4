"""What packproof does with torch imports neither its compiler nor sympy."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from packproof.base.light_torch import DispatchMode, argmax, vector_jacobian_product

IN_ONE_PROCESS = """
import sys
import torch
from packproof.properties.bounds.running_error import RunningError
x = torch.ones(3)
with RunningError() as running:
    y = x * x
assert running.error(y).min() > 0
assert "torch._dynamo" not in sys.modules

from packproof import refs
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import OPS
from packproof.properties.declarations.promises import Promises

def wrong(x, weight, bias=None, *, cu_seqlens, activation=None):
    return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, activation=activation) * 1.5

op, found = OPS["causal_conv1d"], 0
space = Space(op, "float32", Promises(), frozenset(["x", "weight", "bias", "cu_seqlens", "activation"]))
for function in (refs.causal_conv1d, wrong):
    for case in list(golden_cases(space, 0))[:8]:
        kernel = KernelUnderTest(op, InProcess(function), Promises())
        found += first_violation(kernel, PROPERTIES["reference"], case) is not None
assert found
import packproof.adapters.peers.torch
sys.exit("sympy" in sys.modules or "torch._dynamo" in sys.modules)
"""


class Seen(DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.proof
def test_neither_the_compiler_nor_sympy_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", IN_ONE_PROCESS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_gradients_are_those_of_autograd() -> None:
    x, unused = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.ones(2, requires_grad=True)
    ys, incoming = [x.exp(), x.sum(0)], [torch.randn(4, 3, dtype=torch.float64).T, torch.ones(1).double().expand(4)]
    with torch.no_grad():
        found = vector_jacobian_product(ys, [x, unused], incoming, retain_graph=True)
    wanted = torch.autograd.grad(ys, [x], incoming)
    assert torch.equal(found[0], wanted[0])
    assert found[1] is None


def test_a_backward_pass_gets_the_incoming_gradients_themselves() -> None:
    got: list[torch.Tensor] = []
    x, dy = torch.ones(3, 4, requires_grad=True), torch.ones(4, 3).T
    y = x * 2
    y.register_hook(got.append)
    vector_jacobian_product([y], [x], [dy])
    assert got[0].data_ptr() == dy.data_ptr()
    assert got[0].stride() == dy.stride()


def test_gradients_can_be_differentiated_again() -> None:
    x, dy = torch.randn(5, dtype=torch.float64, requires_grad=True), torch.ones(5, dtype=torch.float64).requires_grad_()
    (g,) = vector_jacobian_product([x**3], [x], [dy], create_graph=True)
    second = torch.autograd.grad(g.sum(), [x, dy])
    assert torch.allclose(second[0], 6 * x)
    assert torch.allclose(second[1], 3 * x**2)


@pytest.mark.parametrize("shape", [(), (7,), (3, 1, 5)])
def test_the_index_of_the_largest(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape[::-1]).T if len(shape) == 2 else torch.randn(shape)
    assert x[argmax(x)] == x.max()
    assert argmax(x) == tuple(int(i) for i in torch.unravel_index(x.argmax(), x.shape))


def test_operators_are_seen_before_and_after_something_was_compiled() -> None:
    x = torch.ones(3)
    with Seen() as seen:
        y = x * x
        compiled = torch.compile(lambda x: x.sin().cos(), backend="eager")(y)
        z = compiled + x
    assert torch.equal(z, x.sin().cos() + x)
    assert (seen.names[0], seen.names[-1]) == ("mul", "add")
    assert {"sin", "cos"} <= set(seen.names)
