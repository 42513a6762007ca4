"""Wrong declarations of a calling convention: refused in words that name what came and what was expected."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import Promises, adapters
from packproof.properties.declarations.declaration import describe_kernel
from tests.adapters.gated import GATED, Kernel
from tests.wrong_calls.refused import Wrong, assert_refused

OFFSETS = torch.tensor([0, 2, 5])


def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    return x


def alone(x: Tensor, y: float) -> Tensor:
    return x * y


def square(x: Tensor, weight: Tensor) -> Tensor:
    return x


def declared(target: Any = conv, **fields: Any) -> Callable[[], object]:
    return lambda: adapters.adapt(target, **{"op": "causal_conv1d", **fields})


def gated(**fields: Any) -> Callable[[], object]:
    return lambda: adapters.adapt(Kernel(), **{"op": GATED, **fields})


def described(target: Any = conv, **fields: Any) -> Callable[[], object]:
    return lambda: describe_kernel(adapters.adapt(target, **{"op": "causal_conv1d", **fields}))


def called(function: Any, **fields: Any) -> Callable[[], object]:
    adapter = adapters.adapt(function, **{"op": "causal_conv1d", "metadata": {}, **fields})
    return lambda: adapter(torch.ones(5, 3, requires_grad=True), torch.ones(3, 2), cu_seqlens=OFFSETS)


def opaque(*args: Any, **options: Any) -> Any:
    return args[0]


WRONG = {
    "target of a number": Wrong(declared(5), ("target is 5", "package.module:function", "path/file.py:function")),
    "target without a function": Wrong(declared("conv"), ("target is 'conv'", "path/file.py:function")),
    "target without a file": Wrong(declared("no_such.py:conv"), ("'no_such.py:conv'", "no file no_such.py in", " or ")),
    "target without a name": Wrong(declared("a.py:"), ("target is 'a.py:'", "path/file.py:function")),
    "target that is no function": Wrong(described("math:pi"), ("adapt(math:pi)", "of type float", "a function")),
    "target that is not there": Wrong(described("math:conv"), ("cannot be imported here", "conv")),
    "op of a number": Wrong(declared(op=5), ("op is 5", "packproof.Op")),
    "op misspelt": Wrong(declared(op="conv1d"), ("'conv1d' is not known", "causal_conv1d")),
    "op of none": Wrong(declared(op=None), ("op is None", "declared with none", "causal_conv1d")),
    "axes of a list": Wrong(gated(axes=["s v k"]), ("axes is ['s v k']", "{'final_states': 's v k'}")),
    "axes of an unknown tensor": Wrong(gated(axes={"state": "s v k"}), ("axes has 'state'", "final_states")),
    "axes that are others": Wrong(gated(axes={"final_states": "s v k"}), ("'s v k'", "'s h k v' in another order")),
    "axes misspelt": Wrong(gated(axes={"final_states": "s h v *"}), ("'*' is not an axis", "a name such as d")),
    "axes of a number": Wrong(gated(axes={"final_states": 4}), ("axes 'final_states' is 4", "'s h k v'")),
    "axes that move tokens": Wrong(gated(axes={"q": "h t k"}), ("axes 'q' is 'h t k'", "t first", "tokens")),
    "converted of a list": Wrong(gated(converted=["g"]), ("converted is ['g']", "{'g': base2_log}")),
    "converted of an unknown name": Wrong(gated(converted={"gate": torch.exp}), ("converted has 'gate'", "beta")),
    "converted by a number": Wrong(gated(converted={"g": 1.44}), ("converted 'g' is 1.44", "a function")),
    "converted by a class": Wrong(gated(converted={"q": "l2"}), ("converted 'q' is 'l2'", "a function")),
    "converted by what takes nothing": Wrong(gated(converted={"g": lambda: 1}), ("takes no value", "of the tensor")),
    "converted with an unknown argument": Wrong(gated(converted={"g": alone}), ("asks for 'y'", "beta")),
    "converted and exact": Wrong(
        gated(converted={"q": adapters.L2Norm()}, promises=Promises(compute="fp32")),
        ("compute='fp32'", "q is converted", "compute='operand'"),
    ),
    "converted to another shape": Wrong(called(square, converted={"x": torch.sum}), ("returned shape ()", "(5, 3)")),
    "converted to a number": Wrong(called(square, converted={"x": len}), ("len returned an int", "a tensor of (5, 3)")),
    "positional of a string": Wrong(declared(positional="x"), ("positional is 'x'", "('x', 'weight', 'bias')")),
    "positional of a set": Wrong(declared(positional={"x"}), ("positional is {'x'}", "in order")),
    "positional that nothing passes": Wrong(declared(positional=("x", "out")), ("positional has 'out'", "cu_seqlens")),
    "positional in another order": Wrong(
        described(positional=("weight", "x")), ("positional is (weight, x)", "in its order, (x, weight)")
    ),
    "positional that leaves out": Wrong(
        described(opaque, positional=("x", "cu_seqlens")), ("expected 'weight' (the op's weight) too",)
    ),
    "without of a string": Wrong(declared(without="bias"), ("without is 'bias'", "a tuple of names")),
    "in_place of a string": Wrong(declared(in_place="x"), ("in_place is 'x'", "a tuple of names")),
    "names of a list": Wrong(declared(names=["x"]), ("names is ['x']", "{'x': 'hidden'}")),
    "metadata of a list": Wrong(declared(metadata=["seq_idx"]), ("metadata is ['seq_idx']", "{'seq_idx': seq_idx}")),
    "given of a number": Wrong(declared(given=5), ("given is 5", "{'chunk_size': 64}")),
    "given by a number": Wrong(declared(given={5: 5}), ("given is {5: 5}", "the kernel's argument")),
    "Packed: axis": Wrong(lambda: adapters.Packed(2), ("Packed: axis is 2", "1 (heads first)")),
    "Packed: axis true": Wrong(lambda: adapters.Packed(True), ("Packed: axis is True", "-1 (channels first)")),
    "Packed: another layout": Wrong(
        called(lambda x, weight: x.mT, tokens=adapters.Packed(-1)), ("returned (5, 3)", "5 along axis 1")
    ),
    "L2Norm: eps zero": Wrong(lambda: adapters.L2Norm(0.0), ("L2Norm: eps is 0.0", "above zero")),
    "L2Norm: eps a string": Wrong(lambda: adapters.L2Norm("1e-6"), ("eps is '1e-6'", "a number")),  # type: ignore[arg-type]
    "Scaled: factor": Wrong(lambda: adapters.Scaled("1/k"), ("factor is '1/k'", "'width ** -0.5'")),
    "Scaled: factor NaN": Wrong(lambda: adapters.Scaled(float("nan")), ("factor is nan", "a number")),
    "Scaled: factor None": Wrong(lambda: adapters.Scaled(None), ("factor is None", "a number")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_declaration_is_refused_in_words(name: str) -> None:
    assert_refused(WRONG[name])


def test_an_output_with_other_axes_than_declared_is_named() -> None:
    def kernel(x: Tensor, weight: Tensor, return_final_states: bool = False) -> Any:
        return x, torch.zeros(2, 3)

    adapter = adapters.adapt(kernel, op="causal_conv1d", metadata={}, axes={"final_states": "s w-1 d"})
    wrong = Wrong(
        lambda: adapter(torch.ones(5, 3), torch.ones(3, 2), cu_seqlens=OFFSETS, return_final_states=True),
        ("axes 'final_states'", "returned (2, 3)", "s w-1 d"),
    )
    assert_refused(wrong)
