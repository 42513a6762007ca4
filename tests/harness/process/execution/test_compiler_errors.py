"""What torch's compiler cannot compile is no failure of a kernel that does not promise it; everything else still is."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof.base.errors import KernelFault
from packproof.harness.process.execution.compiler_errors import is_compiler_error
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.calling.call import Call, FailedCompilation, Refusal
from packproof.properties.cases.case import Case
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.torch_integration import TORCH_COMPILE
from packproof.properties.ops.catalogue import OPS
from packproof.refs import causal_conv1d

Make = Callable[..., Call]


def plain(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return torch.sin(x) * weight


@torch.library.custom_op("packproof_tests::sine", mutates_args=())
def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


@sine.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


sine.register_autograd(
    lambda ctx, dy: dy * torch.cos(ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def registered(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return sine(x) * weight


class Cosine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        raise ArithmeticError("of the kernel's own")


def own_error_in_a_backward(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    y: Tensor = Cosine.apply(x)
    return y * weight


def own_error(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    raise ArithmeticError("of the kernel's own")


def own_error_after_a_break(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    torch.sin(x)
    torch._dynamo.graph_break()
    raise ArithmeticError("of the kernel's own")


@torch.library.custom_op("packproof_tests::sine_without_fake", mutates_args=())
def wrong_fake(x: Tensor) -> Tensor:
    return torch.sin(x)


@wrong_fake.register_fake
def _(x: Tensor) -> Tensor:
    raise ArithmeticError("of the kernel's own")


def own_error_in_a_fake(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return wrong_fake(x) * weight


def _crashing() -> Callable[..., Any]:
    """A function that fails as a file of torch's compiler does."""
    names: dict[str, Any] = {}
    source = "def crash(*_, **__):\n    raise NotImplementedError('SliceView')"
    exec(compile(source, f"{torch.__path__[0]}/_inductor/lowering.py", "exec"), names)
    crash: Callable[..., Any] = names["crash"]
    return crash


@pytest.fixture(autouse=True)
def _forgetting() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compile_through(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """`compile_through(backend)`, in place of the compiler that a CPU has."""
    original = torch.compile
    return lambda other: monkeypatch.setattr(torch, "compile", lambda f, backend: original(f, backend=other))


@pytest.fixture
def _crashing_backend(compile_through: Callable[[Any], None]) -> None:
    """A compiler that fails by itself."""
    compile_through(_crashing())


@pytest.fixture
def _inductor_without_sine(compile_through: Callable[[Any], None]) -> Iterator[None]:
    """Inductor, which raises what it raised on a GPU where a graph takes the sine."""
    lowerings = pytest.importorskip("torch._inductor.lowering").lowerings
    compile_through("inductor")
    sine = torch.ops.aten.sin.default
    lowerings[sine], original = _crashing(), lowerings[sine]
    yield
    lowerings[sine] = original


@pytest.mark.parametrize(
    "compiler", ["_crashing_backend", pytest.param("_inductor_without_sine", marks=pytest.mark.proof)]
)
def test_an_error_of_the_compiler_alone_is_no_fault(
    compiler: str, make_call: Make, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(compiler)
    with pytest.raises(FailedCompilation, match=r"through torch\.compile: [^~]*SliceView"):
        InProcess(plain).run(make_call(2, 3, mode="compiled"))


@pytest.mark.usefixtures("_crashing_backend")
def test_at_a_registered_operator_it_is_the_kernels(make_call: Make) -> None:
    with pytest.raises(KernelFault, match=r"SliceView[^~]*operators that are registered with torch"):
        InProcess(registered).run(make_call(2, 3, mode="compiled"))


@pytest.mark.parametrize(
    "kernel",
    [own_error, own_error_after_a_break, own_error_in_a_backward, own_error_in_a_fake],
    ids=lambda f: f.__name__,
)
def test_an_error_from_the_kernels_own_code_is_its_fault(kernel: Any, make_call: Make) -> None:
    with pytest.raises(KernelFault, match="of the kernel's own"):
        InProcess(kernel).run(make_call(2, 3, mode="compiled"))


def test_a_kernel_may_decline_to_be_compiled(make_call: Make) -> None:
    def declining(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        raise NotImplementedError("not under torch.compile")

    with pytest.raises(Refusal) as refused:
        InProcess(declining).run(make_call(2, 3, mode="compiled"))
    assert not isinstance(refused.value, FailedCompilation)


CASE = Case((2, 3), "float32", (("d", 3), ("w", 4)))


def by_torch(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    y = causal_conv1d(x.double(), weight.double(), cu_seqlens=cu_seqlens)
    return y.to(x.dtype)


def other_values_after_a_break(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    y = by_torch(x, weight, cu_seqlens=cu_seqlens)
    torch._dynamo.graph_break()
    return y * 2 if torch.compiler.is_compiling() else y


@pytest.mark.usefixtures("_crashing_backend")
def test_who_promises_to_be_compiled_is_held_to_it() -> None:
    def check(promises: Promises) -> None:
        kernel = KernelUnderTest(OPS["causal_conv1d"], InProcess(by_torch), promises)
        list(TORCH_COMPILE.check(kernel, CASE))

    with pytest.raises(FailedCompilation):
        check(Promises())
    with pytest.raises(KernelFault, match="SliceView"):
        check(Promises(compilable=True))


def test_other_values_fail_promised_or_not(compile_through: Callable[[Any], None]) -> None:
    compile_through("eager")
    kernel = KernelUnderTest(OPS["causal_conv1d"], InProcess(other_values_after_a_break), Promises())
    assert next(TORCH_COMPILE.check(kernel, CASE), None) is not None


def _raised_through(*files: str) -> ArithmeticError:
    """An error that came from the last of these files, and passed through the others, the outermost one first."""
    call: Callable[[], Any] | None = None
    for file in reversed(files):
        names: dict[str, Any] = {"inner": call}
        source = "def f():\n    if inner:\n        return inner()\n    raise ArithmeticError"
        exec(compile(source, file, "exec"), names)
        call = names["f"]
    assert call is not None
    with pytest.raises(ArithmeticError) as raised:
        call()
    return raised.value


def test_the_compiler_may_call_the_kernel_and_be_called_by_it() -> None:
    """After a graph break in a loop, the kernel's code runs below the compiler's, and what it calls is compiled."""
    dynamo, kernel = f"{torch.__path__[0]}/_dynamo/external_utils.py", __file__
    assert is_compiler_error([_raised_through(dynamo, kernel, dynamo)])
    assert is_compiler_error([_raised_through(kernel, dynamo)])
    assert not is_compiler_error([_raised_through(dynamo, kernel)])
    assert not is_compiler_error([_raised_through(kernel, dynamo, kernel, f"{torch.__path__[0]}/functional.py")])
