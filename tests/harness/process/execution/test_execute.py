"""One call in this process: placement, gradients, checks of the results, and settings restored afterwards."""

import gc
import re
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from packproof.adapters import once
from packproof.base.errors import KernelFault, UsageError
from packproof.harness.process.execution.device import Device
from packproof.harness.process.execution.error_classification import classify_error
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.process.execution.invocation import Invocation
from packproof.harness.process.naming.location import Location
from packproof.interpreter.memory_guard import is_poison
from packproof.properties.calling.call import Call, MachineLimit, Placement, Refusal, Result

Make = Callable[..., Call]
Rogue = Callable[[str], str]


def product(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return x * weight


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("placement", ["contiguous", "transposed", "sliced", "expanded", "one element"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_any_placement_gives_the_same(make_call: Make, placement: Placement, guard: bool, dtype: torch.dtype) -> None:
    call = make_call(2, 0, 3, dtype=dtype)
    if placement == "expanded":
        rows = {name: t[:1].expand_as(t) for name, t in {**call.inputs, **call.cotangents}.items()}
        call = replace(call, inputs={name: rows[name] for name in ("x", "weight")}, cotangents={"y": rows["y"]})
    if placement == "one element":
        constants = {name: torch.full_like(t, 3) for name, t in {**call.inputs, **call.cotangents}.items()}
        call = replace(call, inputs={n: constants[n] for n in ("x", "weight")}, cotangents={"y": constants["y"]})
    placed = replace(call, placement=dict.fromkeys(("x", "weight", "cotangent:y"), placement), guard=guard)
    result, plain = InProcess(product).run(placed), InProcess(product).run(call)
    x, weight, dy = call.inputs["x"], call.inputs["weight"], call.cotangents["y"]
    assert torch.equal(plain.outputs["y"], x * weight)
    assert torch.equal(plain.gradients["x"], dy * weight)
    torch.testing.assert_close(plain.gradients["weight"], (dy * x).sum(0))
    assert torch.equal(result.outputs["y"], plain.outputs["y"])
    assert torch.equal(result.gradients["x"], plain.gradients["x"])
    torch.testing.assert_close(result.gradients["weight"], plain.gradients["weight"])  # summed in another order
    assert set(result.inputs_after) == ({"x", "weight", "cu_seqlens", "cotangent:y"} if guard else set())
    if guard:
        assert torch.equal(result.inputs_after["cotangent:y"], dy)
        assert torch.equal(result.inputs_after["x"], x)
        assert torch.equal(result.inputs_after["cu_seqlens"], call.cu_seqlens)


def test_placements_have_the_declared_strides(make_call: Make) -> None:
    seen: dict[str, tuple[tuple[int, ...], int]] = {}

    def look(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        seen["x"], seen["weight"] = (x.stride(), x.data_ptr() % 16), (weight.stride(), 0)
        return x * weight

    ones = {"x": torch.ones(5, 4), "weight": torch.ones(4)}
    strides = {"contiguous": (4, 1), "transposed": (1, 5), "sliced": (7, 1), "expanded": (0, 1), "one element": (0, 0)}
    for placement, stride in strides.items():
        InProcess(look).run(make_call(5, inputs=ones, placement={"x": placement, "weight": placement}))
        assert seen["x"] == (stride, 4 if placement == "sliced" else 0)
        assert seen["weight"][0] == {"sliced": (2,), "expanded": (0,), "one element": (0,)}.get(placement, (1,))


def test_slices_of_one_shape_have_different_strides(make_call: Make) -> None:
    seen = []

    def look(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        seen.extend([x.stride(0), weight.stride(0)])
        return x * weight

    ones = {"x": torch.ones(5, 4), "weight": torch.ones(5, 4)}
    InProcess(look).run(make_call(5, inputs=ones, placement=dict.fromkeys(ones, "sliced")))
    assert len(set(seen)) == 2


def test_incoming_gradients_are_placed_too(make_call: Make) -> None:
    strides = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, dy: Tensor) -> Tensor:
            strides.append(dy.stride())
            return dy.clone()

    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        return Look.apply(x)

    InProcess(kernel).run(make_call(5, placement={"cotangent:y": "transposed"}))
    assert strides == [(1, 5)]


def test_the_callers_tensors_are_out_of_reach(make_call: Make, rogue: Rogue) -> None:
    call = make_call(2, 3, guard=True)
    x = call.inputs["x"].clone()
    result = InProcess(Location.parse(rogue("writes_into_its_input")).load()).run(call)
    assert torch.equal(call.inputs["x"], x)
    assert (result.inputs_after["x"][0] == 7).all()


def test_unwritten_rows_stay_poison(make_call: Make, rogue: Rogue) -> None:
    result = InProcess(Location.parse(rogue("leaves_rows_unwritten")).load()).run(make_call(4, guard=True))
    assert is_poison(result.outputs["y"]).tolist() == [[False] * 4] * 2 + [[True] * 4] * 2
    assert result.gradients == {}


def test_what_autograd_does_not_reach_is_left_out(make_call: Make) -> None:
    result = InProcess(lambda x, weight, cu_seqlens: x * 2).run(make_call(3))
    assert list(result.gradients) == ["x"]
    wrong_shape = InProcess(lambda x, weight, cu_seqlens: (x * weight)[1:]).run(make_call(3))
    assert (wrong_shape.gradients, wrong_shape.outputs["y"].shape) == ({}, (2, 4))
    assert InProcess(product).run(make_call(3, wrt=())).gradients == {}


def test_several_outputs(make_call: Make) -> None:
    two = {"outputs": ("y", "z"), "cotangents": {"y": torch.ones(3, 4), "z": torch.ones(4)}}
    result = InProcess(lambda x, weight, cu_seqlens: (x * weight, weight * 3)).run(make_call(3, **two))
    torch.testing.assert_close(result.gradients["weight"], make_call(3).inputs["x"].sum(0) + 3)
    detached = InProcess(lambda x, weight, cu_seqlens: ((x * weight).detach(), weight * 3)).run(make_call(3, **two))
    assert list(detached.gradients) == ["weight"]
    with pytest.raises(KernelFault, match=r"returned one tensor, expected a tuple \(y, z\)"):
        InProcess(product).run(make_call(3, **two))
    with pytest.raises(KernelFault, match=r"returned None for z, expected a torch\.Tensor"):
        InProcess(lambda x, weight, cu_seqlens: (x * weight, None)).run(make_call(3, **two))


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("calls_exit", "exited", r"called sys.exit\(3\)"),
        ("returns_none", "malformed", "returned None, expected y"),
        ("returns_two", "malformed", "returned a tuple of 2, expected y"),
        ("returns_a_list", "malformed", "returned a list of 1, expected y"),
        ("returns_meta", "malformed", "returned y on meta, expected cpu"),
        ("returns_integers", "malformed", "returned y as torch.int32, expected a dense floating tensor"),
        ("raises", "raised", r"^ValueError: only even \(rogues.py:\d+\)\n    lengths$"),
        ("raises_the_cause_of_an_error", "raised", r"^ValueError: odd \(rogues.py:\d+\)$"),
        ("raises_in_backward", "raised", r"^in the backward pass: ValueError: not today \(rogues.py:\d+\)$"),
        ("replaces_equal", "patched", "^replaced torch.equal$"),
        ("deletes_equal", "patched", "^replaced torch.equal$"),
        ("replaces_comparison", "patched", "^replaced torch.Tensor.__eq__$"),
        ("replaces_cpu", "patched", "^replaced torch.Tensor.cpu$"),
        ("replaces_abs", "patched", "^replaced builtins.abs$"),
        ("replaces_empty", "patched", "^replaced torch.empty$"),
        ("writes_past_the_end", "memory", r"^wrote past the end of a torch.empty of shape \(5, 4\)$"),
        ("writes_one_too_many", "memory", r"^wrote past the end of a torch.empty_like of shape \(5, 4\)$"),
        ("writes_before_the_start", "memory", r"^wrote before the start of a Tensor.new_empty of shape \(5, 4\)$"),
        ("writes_past_its_input", "memory", "^wrote past the end of weight$"),
    ],
)
def test_faults(make_call: Make, rogue: Rogue, name: str, kind: str, words: str) -> None:
    runner = InProcess(Location.parse(rogue(name)).load())
    with pytest.raises(KernelFault, match=words) as fault:
        runner.run(make_call(2, 3, guard=True))
    assert fault.value.kind == kind
    good = InProcess(product).run(make_call(2, 3))  # what a rogue replaced has been restored
    assert set(good.gradients) == {"x", "weight"}
    assert "cpu" not in vars(torch.Tensor)


def test_a_kernel_that_allocates_more_memory_than_its_call_needs(
    make_call: Make, rogue: Rogue, free_memory: Callable[[int], None]
) -> None:
    free_memory(10**11)
    with pytest.raises(
        KernelFault, match=r"^OutOfMemoryError(.*\n)*.*the tensors of this call take 176 bytes"
    ) as fault:
        InProcess(Location.parse(rogue("pretends_to_lack_memory")).load()).run(make_call(2, 3))
    assert fault.value.kind == "raised"


@pytest.mark.parametrize("fails", [False, True])
def test_a_large_call_leaves_nothing(make_call: Make, fails: bool) -> None:
    """Others wait for the memory: neither frames of an error keep it, nor what is made from the offsets."""
    seen: list[weakref.ref[Tensor]] = []

    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        wide = once("wide", lambda: torch.ones(1000), cu_seqlens)
        seen.extend(map(weakref.ref, (x, wide)))
        if fails:
            try:
                raise RuntimeError("out of shared memory")
            except RuntimeError as error:
                kept = error  # a cycle: this frame, the error, its traceback
                raise ValueError("cannot be launched") from kept
        return x * weight

    call = replace(make_call(3), copies=2, shared=("weight",), token_rows=("x", "y", "cotangent:y"))
    gc.disable()
    try:
        with pytest.raises((KernelFault, Refusal)) if fails else nullcontext():
            InProcess(kernel).run(call)
        assert [tensor() for tensor in seen] == [None] * len(seen) != []
    finally:
        gc.enable()


class Gpu(Device):
    """A GPU with 40 GB allocated and 100 GB free.

    refused: whether its allocator has refused memory.
    late: the error that it reports.
    """

    def __init__(self, *, refused: bool = False, late: RuntimeError | None = None) -> None:
        super().__init__(torch.device("cuda"))
        self._refused, self._late = refused, late
        self.pending = True

    def take_error(self) -> None:
        self.pending = False

    def synchronise(self) -> None:
        if self._late:
            raise self._late

    def free_bytes(self) -> int:
        return 10**11

    def allocated_bytes(self) -> int:
        return 40 * 10**9

    def has_refused_memory(self) -> bool:
        return self._refused


def invocation_of(tokens: int, stage: str = "") -> Invocation:
    """An invocation whose call has so many tokens."""
    call = SimpleNamespace(metadata={"cu_seqlens": torch.tensor([0, tokens])})
    return cast(Invocation, SimpleNamespace(stage=stage, call=call, device=torch.device("cpu")))


def test_a_kernel_may_need_memory_for_each_pair_of_tokens(free_memory: Callable[[int], None]) -> None:
    free_memory(10**11)
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 137438953472 bytes.")
    assert isinstance(classify_error(error, invocation_of(65_537), 100, lambda computing: None), MachineLimit)
    assert isinstance(classify_error(error, invocation_of(4_097), 100, lambda computing: None), KernelFault)


@pytest.mark.parametrize(
    ("error", "refused", "says"),
    [
        (
            torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 30.00 GiB. GPU 0 has 20 GiB. Advice (a.py:3)"
            ),
            1,
            r"^needs more than 72\.2 GB of GPU memory: OutOfMemoryError: CUDA out of memory\. Tried .* 30\.00 GiB \(",
        ),
        (
            RuntimeError("Triton Error [CUDA]: out of memory"),
            0,
            r"^needs more than 40\.0 GB of GPU memory: RuntimeError",
        ),
        (
            RuntimeError("CUDA driver error: out of memory"),
            0,
            r"^needs more than 40\.0 GB of GPU memory: RuntimeError",
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 30.00 GiB. Advice"), 0, None),
    ],
    ids=["torch", "triton", "inductor", "pretended"],
)
def test_a_gpu_without_memory_is_no_fault_of_the_kernel(error: Exception, refused: int, says: str | None) -> None:
    """Whatever is free afterwards: other processes return theirs."""
    found = classify_error(error, invocation_of(5), 100, lambda computing: None, Gpu(refused=bool(refused)))
    assert isinstance(found, KernelFault if says is None else MachineLimit)
    assert re.search(says or "the tensors of this call take 100 bytes", str(found))


def test_memory_that_was_lacking_is_reported_late() -> None:
    """By the next call that waits for the device, which goes on."""
    late = RuntimeError("CUDA error: out of memory")
    found = classify_error(late, invocation_of(5, "on a side stream: "), 100, lambda computing: None, Gpu(late=late))
    assert isinstance(found, MachineLimit)


def test_an_error_that_a_kernel_leaves_in_the_runtime_meets_no_later_call() -> None:
    """A library raises and leaves it there; the next launch, torch's own for the next inputs, would report it."""
    gpu = Gpu()
    error = torch.OutOfMemoryError("Check failed: BatchDecode failed with error: out of memory")
    assert isinstance(classify_error(error, invocation_of(5), 100, lambda computing: None, gpu), KernelFault)
    assert not gpu.pending


@pytest.mark.parametrize("kind", [RuntimeError, torch.OutOfMemoryError])
def test_a_gpu_that_has_no_memory_for_the_inputs_is_too_small(make_call: Make, kind: type[RuntimeError]) -> None:
    """Other processes use it, and a launch of torch's own that lacks memory says so in its own words."""

    class Full(InProcess):
        def _place_tensor(self, *_: object) -> Tensor:
            raise kind("CUDA error: out of memory")

    with pytest.raises(MachineLimit, match=r"^the tensors of this call do not fit: CUDA error: out of memory"):
        Full(lambda x, *, cu_seqlens: x).run(make_call())


def test_a_gpu_that_has_no_memory_for_a_context_is_too_small() -> None:
    class Full(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.empty:
                raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later")
            return function(*args, **(kwargs or {}))

    with Full(), pytest.raises(MachineLimit, match=r"^cpu cannot be used: CUDA error: out of memory$"):
        InProcess(lambda x, *, cu_seqlens: x).create_context()


def test_a_device_lost_in_a_large_call_gets_no_more_work(make_call: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    class Lost(InProcess):
        def _require_memory(self, call: Call) -> None:
            pass

        def _run(self, call: Call) -> Result:
            raise KernelFault("crashed", "CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "empty_cache", no_more)
    with pytest.raises(KernelFault, match="illegal memory access"):
        Lost(lambda x, *, cu_seqlens: x, "cuda").run(replace(make_call(), copies=2))


def test_rows_far_apart_are_where_they_should_be(make_call: Make) -> None:
    seen = []

    def look(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        seen.append(((len(x) - 1) * x.stride(0), x.stride(1)))
        return x * weight

    call = make_call(2, 3)
    far = replace(call, placement=dict.fromkeys(("x", "cotangent:y"), "beyond 2^31"))
    runner = InProcess(look, offset_reach={"beyond 2^31": 2**15})
    result, plain = runner.run(far), InProcess(product).run(call)
    assert seen[0][0] >= 2**15 > seen[0][0] - 4 * 256
    assert torch.equal(result.outputs["y"], plain.outputs["y"])
    assert torch.equal(result.gradients["x"], plain.gradients["x"])


def test_a_pack_many_times_over_gives_the_rows_of_the_last_copy(make_call: Make) -> None:
    seen = []

    def numbered(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        seen.append(cu_seqlens.tolist())
        return x * weight + torch.arange(len(x))[:, None]

    call = make_call(2, 0, 1)
    result = InProcess(numbered).run(replace(call, copies=3, shared=("weight",)))
    plain = InProcess(product).run(call)
    assert seen == [[0, 2, 2, 3, 5, 5, 6, 8, 8, 9]]
    torch.testing.assert_close(result.outputs["y"], plain.outputs["y"] + torch.arange(6, 9)[:, None])
    assert torch.equal(result.gradients["x"], plain.gradients["x"])
    torch.testing.assert_close(result.gradients["weight"], 3 * plain.gradients["weight"])


def test_the_copy_that_differs_most_from_the_last_is_handed_back(make_call: Make) -> None:
    def off_in_one_copy(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        off = torch.zeros(len(x), 1)
        off[3:6] = torch.tensor([[0.0], [2.0], [float("nan")]])
        off[6:9] = 1e-3
        return x * weight + off

    call = make_call(2, 0, 1)
    result = InProcess(off_in_one_copy).run(replace(call, copies=4, shared=("weight",)))
    copy, rows = result.outliers["output:y"]
    assert copy == 1
    assert rows[2].isnan().all()
    assert set(result.outliers) == {"output:y"}
    assert InProcess(product).run(replace(call, copies=4, shared=("weight",))).outliers == {}


def test_a_history_of_zeros_belongs_to_the_first_sequence(make_call: Make) -> None:
    seen = []

    def look(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        seen.append((cu_seqlens.tolist(), x.detach().clone()))
        return x * weight

    call = make_call(2, 0, 1)
    result = InProcess(look).run(replace(call, history=4, token_rows=("x", "y", "cotangent:y")))
    plain = InProcess(product).run(call)
    [(offsets, x)] = seen
    assert offsets == [0, 6, 6, 7]
    assert not x[:4].any()
    assert torch.equal(x[4:], call.inputs["x"])
    assert torch.equal(result.outputs["y"], plain.outputs["y"])
    assert torch.equal(result.gradients["x"], plain.gradients["x"])


def test_an_output_that_is_a_view_of_a_changed_buffer_is_handed_back(make_call: Make) -> None:
    """As of a kernel that cuts its outputs from one buffer: detached before anything else, it can be read."""

    def rewrite(buffer: Tensor) -> None:
        buffer.detach().mul_(1)

    def cut_from_a_buffer(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        buffer = torch.stack([x * weight, x])
        y, _ = buffer.unbind(0)
        x.register_hook(lambda _grad: rewrite(buffer))  # backward writes to it again
        return y

    call = replace(make_call(2, 0, 1), token_rows=("x", "y"))
    expected = InProcess(product).run(call).outputs["y"]
    for changed in (call, replace(call, copies=2, shared=("weight",))):
        assert torch.equal(InProcess(cut_from_a_buffer).run(changed).outputs["y"], expected)


def test_a_second_derivative(make_call: Make) -> None:
    call = make_call(2, 3, mode="double backward")
    x, weight, dy = call.inputs["x"], call.inputs["weight"], call.cotangents["y"]
    found = InProcess(product).run(call).gradients  # of the sum of (dy weight) x and (dy x) weight, by hand
    torch.testing.assert_close(found["x"], dy * weight)
    torch.testing.assert_close(found["weight"], (dy * x).sum(0))
    torch.testing.assert_close(found["cotangent:y"], 2 * x * weight)


def test_what_a_kernel_compiles_is_compiled_for_opcheck_too(make_call: Make) -> None:
    compiled: list[object] = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., object]:
        compiled.append(graph)
        return graph.forward

    fused = torch.compile(lambda x, weight: x * weight, backend=backend)

    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        return cast(Tensor, fused(x, weight))

    InProcess(kernel).run(replace(make_call(2, 3), mode="opcheck"))
    assert len(compiled) == 1


def test_opcheck_sees_the_operators_of_the_backward_pass(make_call: Make) -> None:
    @torch.library.custom_op("packproof_tests::halve_in_place", mutates_args=())
    def halve(dy: Tensor) -> None:
        dy.mul_(0.5)

    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x / 2

        @staticmethod
        def backward(ctx: object, dy: Tensor) -> Tensor:
            dx = dy.clone()
            halve(dx)
            return dx

    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        return cast(Tensor, Halved.apply(x)) * weight

    with pytest.raises(KernelFault, match=r"opcheck of packproof_tests\.halve_in_place.*mutat"):
        InProcess(kernel).run(replace(make_call(2, 3), mode="opcheck"))


def test_between_the_rows_of_a_window(make_call: Make, rogue: Rogue) -> None:
    runner = InProcess(Location.parse(rogue("writes_between_rows")).load())
    with pytest.raises(KernelFault, match="wrote between the rows of x"):
        runner.run(make_call(2, 3, guard=True, placement={"x": "sliced"}))


def test_a_refusal_is_not_a_fault(make_call: Make, rogue: Rogue) -> None:
    with pytest.raises(Refusal, match="no such option here"):
        InProcess(Location.parse(rogue("declines")).load()).run(make_call(2))


def test_a_fault_inside_other_exceptions_comes_through(make_call: Make) -> None:
    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        try:
            raise KernelFault("memory", "read past the end of x")
        except KernelFault as fault:
            raise RuntimeError("interpreter error") from fault

    with pytest.raises(KernelFault, match=r"^read past the end of x$"):
        InProcess(kernel).run(make_call(2))


def test_settings_are_restored(make_call: Make) -> None:
    threads = torch.get_num_threads()

    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        torch._C._set_deterministic_algorithms(True)
        torch.set_num_threads(threads + 1)
        return x * weight

    assert list(InProcess(kernel).run(make_call(2)).gradients) == ["x", "weight"]
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda: torch.set_default_dtype(torch.float64), "the default dtype"),
        (lambda: torch.set_default_device("meta"), "the default device"),
        (lambda: torch.set_grad_enabled(False), "whether gradients are recorded"),
        (lambda: torch.set_float32_matmul_precision("medium"), "the precision of matrix products"),
        (lambda: torch.set_flush_denormal(True), "whether subnormal numbers are zero"),
    ],
)
def test_a_setting_that_changes_later_values_is_a_fault_and_is_restored(
    make_call: Make, change: Callable[[], object], name: str
) -> None:
    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        y = x * weight
        change()
        return y

    with pytest.raises(KernelFault, match=rf"^left {name} changed when it returned$"):
        InProcess(kernel).run(make_call(2))
    assert torch.get_default_dtype() is torch.float32
    assert torch.get_default_device() == torch.device("cpu")
    assert not torch._C._len_torch_function_stack()  # a default device is a mode, also where it is the CPU
    assert torch.is_grad_enabled()
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.tensor(2.0**-140) * 1 > 0


def test_offsets_edited_in_place(make_call: Make) -> None:
    seen: list[Tensor] = []

    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        seen.append(cu_seqlens)
        return x * weight * cu_seqlens[1]

    runner = InProcess(kernel)
    for lengths, edit in (((2, 3), False), ((4, 1), False), ((1, 4), True), ((2, 2, 1), True), ((3, 2), True)):
        result = runner.run(make_call(*lengths, edit_metadata=edit, guard=True))
        assert result.inputs_after["cu_seqlens"].tolist() == make_call(*lengths).cu_seqlens.tolist()
    assert [seen[k] is seen[k - 1] for k in (1, 2, 3)] == [False, True, False]
    assert seen[4] is seen[2]


def test_tensors_with_equal_values_stay_as_they_are(make_call: Make) -> None:
    seen: list[tuple[int, int, int, int]] = []

    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        seen.append((id(x), x._version, id(weight), weight._version))
        return x * weight

    runner = InProcess(kernel)
    first = make_call(2, 3, same_tensors=True)
    changed = make_call(2, 3, same_tensors=True)
    changed.inputs["weight"].mul_(2)
    runner.run(first)
    result = runner.run(changed)
    assert torch.equal(result.outputs["y"], changed.inputs["x"] * changed.inputs["weight"])
    before, after = seen
    assert before[:3] == after[:3]
    assert after[3] > before[3]
    runner.run(make_call(2, 3))
    runner.run(first)
    assert len(runner._tensors) == len(first.inputs) + len(first.cotangents)


def test_locations() -> None:
    from packproof import refs  # noqa: PLC0415

    location = Location.from_function(refs.rope)
    assert location is not None
    assert location.load() is refs.rope
    assert Location.from_function(lambda: 0) is None
    assert Location.parse("packproof.refs:PackLayout.from_lengths").load().__name__ == "from_lengths"
    for target, words in {
        "no_colon": "expected package.module:function, path/file.py:function or hub:owner/kernel:function",
        "nowhere.py:f": "there is no file nowhere.py",
        "no.such.module:f": "no.such.module cannot be imported: ModuleNotFoundError: No module named 'no'",
        "packproof.refs:nothing": "packproof.refs has no nothing",
        "math:pi": "math:pi is of type float, not a function",
    }.items():
        with pytest.raises(UsageError, match=words):
            Location.parse(target).load()
