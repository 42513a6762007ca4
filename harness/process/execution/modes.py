"""The ways a kernel is called: eager, compiled, captured, on a side stream, differentiated twice, with opcheck; with a
second backward pass, into gradients that are there already, after another call, and under `no_grad`, `inference_mode`
and `autocast`.

Each function takes a call with its tensors on the device. It returns the snapshot at the kernel's return, and the
gradients by name.
"""

# mypy: allow-untyped-calls

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch._functorch.config as functorch
from torch import Tensor

from packproof.adapters.adapter import Adapter
from packproof.base.light_torch import scalar_with_gradients
from packproof.base.provenance.computed import Computed, Pass
from packproof.harness.process.execution.host_work.allocations import live_bytes, note
from packproof.harness.process.execution.host_work.watch import HostWatch
from packproof.harness.process.execution.invocation import BACKWARD, Invocation, Tensors, differentiable_outputs
from packproof.harness.process.execution.operators import Operators
from packproof.harness.process.execution.perturbation.repetition import repeat_perturbed
from packproof.harness.process.execution.provenance.device_kernels import is_of_library, other_kernels
from packproof.harness.process.execution.provenance.ownership import Ownership
from packproof.harness.process.execution.provenance.trace import Trace, idle_launches, unseen_passes
from packproof.harness.process.execution.snapshot import Snapshot
from packproof.harness.process.execution.transformed import functional, vectorised
from packproof.properties.calling import Mode, moved_rows

SnapshotAndGradients = tuple[Snapshot, Tensors]

_SLEEP_CYCLES = 100_000_000  # some 50 ms: longer than the host needs to launch the kernels that wait for it
_WARM_RUNS = 2
# not test_aot_dispatch_dynamic: it also compares rows that are never read; `compiled` compares the others
_OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


def eager(invocation: Invocation) -> SnapshotAndGradients:
    """Call it, then differentiate."""
    outputs = invocation.forward()
    invocation.synchronise()
    snapshot = Snapshot.take(invocation, outputs)
    invocation.stage = BACKWARD
    return snapshot, invocation.backward(outputs)


def compiled(invocation: Invocation) -> SnapshotAndGradients:
    """Through torch.compile, graph breaks allowed: Inductor on a GPU, `aot_eager` on a CPU.

    For an adapter, its kernel is compiled.
    """
    invocation.stage = "through torch.compile: "
    backend = "aot_eager" if invocation.device.type == "cpu" else "inductor"
    function = invocation.function
    # no common-subexpression elimination without Inductor: it would import Inductor, half a second
    with functorch.patch(cse=backend == "inductor" and functorch.cse):
        if isinstance(function, Adapter):
            outputs = invocation.forward(function.with_compiled_kernel(backend))
        else:
            outputs = invocation.forward(torch.compile(function, backend=backend))
        return Snapshot.take(invocation, outputs), invocation.backward(outputs)


def graph(invocation: Invocation) -> SnapshotAndGradients:
    """Captured into a CUDA graph with the sequence lengths reversed, then replayed with the correct ones."""
    offsets = list(invocation.metadata.values())
    correct_offsets = [cu_seqlens.clone() for cu_seqlens in offsets]
    for cu_seqlens in offsets:
        cu_seqlens.copy_(cu_seqlens[-1] - cu_seqlens.flip(0))
    invocation.stage = "before a capture into a CUDA graph: "
    stream = torch.cuda.Stream(invocation.device)
    stream.wait_stream(torch.cuda.current_stream(invocation.device))
    with torch.cuda.stream(stream):  # one-time work, such as tuning, cannot be captured
        for _ in range(_WARM_RUNS):
            invocation.backward(invocation.forward())
    invocation.synchronise()
    gc.collect()
    cuda_graph = torch.cuda.CUDAGraph()
    invocation.stage = "captured into a CUDA graph: "
    try:
        with torch.cuda.graph(cuda_graph):
            outputs = invocation.forward()
            snapshot = Snapshot.take(invocation, outputs)
            gradients = invocation.backward(outputs)
    except RuntimeError as error:
        raise error.__context__ or error from None  # the last one only reports that the capture has failed
    invocation.stage = "replayed from a CUDA graph: "
    for cu_seqlens, correct in zip(offsets, correct_offsets, strict=True):
        cu_seqlens.copy_(correct)
    cuda_graph.replay()
    invocation.synchronise()
    # copies: the graph owns the tensors' memory and ends with this call
    return replace(snapshot, outputs=_copies(snapshot.outputs)), _copies(gradients)


def side_stream(invocation: Invocation) -> SnapshotAndGradients:
    """On a stream other than the default one, where the call's tensors get their values only after a delay."""
    eager(invocation)  # compile and tune first, for the launches below to come before the values
    tensors = [*invocation.inputs.values(), *invocation.cotangents.values(), *invocation.metadata.values()]
    values = [t.detach().clone() for t in tensors]
    for t in tensors:
        # offsets of empty sequences: a kernel that runs too early reads them, and must not fault
        t.detach().fill_(float("nan") if t.is_floating_point() else 0)
    invocation.synchronise()
    invocation.stage = "on a side stream: "
    stream = torch.cuda.Stream(invocation.device)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(_SLEEP_CYCLES)
        for t, value in zip(tensors, values, strict=True):
            t.detach().copy_(value)
        outputs = invocation.forward()
        snapshot = Snapshot.take(invocation, outputs)
        gradients = invocation.backward(outputs)
    invocation.synchronise()
    return snapshot, gradients


def double_backward(invocation: Invocation) -> SnapshotAndGradients:
    """The gradients of a scalar: the sum of all first gradients times their inputs, incoming gradients included."""
    for cotangent in invocation.cotangents.values():
        cotangent.requires_grad_()
    outputs = invocation.forward()
    snapshot = Snapshot.take(invocation, outputs)
    first_gradients = invocation.backward(outputs, create_graph=True)
    invocation.stage = "differentiated twice: "
    return snapshot, second_gradients(first_gradients, invocation.inputs, invocation.cotangents, invocation.call.wrt)


def second_gradients(
    first_gradients: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    cotangents: Mapping[str, Tensor],
    wrt: tuple[str, ...],
) -> Tensors:
    """Second gradients by input name and "cotangent:<output>", from first gradients with a graph.

    Raises RuntimeError, as autograd does, if no first gradient has a graph or an operator is differentiable only once.
    """
    total = torch.stack([(g * inputs[name].detach()).sum().double() for name, g in first_gradients.items()]).sum()
    leaves = {**{name: inputs[name] for name in wrt}, **{f"cotangent:{name}": c for name, c in cotangents.items()}}
    total.backward()  # autograd.grad would miss the error of an operator that is differentiable only once
    return {name: x.grad for name, x in leaves.items() if x.grad is not None}


def opcheck(invocation: Invocation) -> SnapshotAndGradients:
    """Run torch.library.opcheck on the kernel's own operators, with the arguments of their first call.

    Those of the backward pass are checked, too.
    """
    with Operators() as operators:
        outputs = invocation.forward()
    _check_operators(invocation, operators.first_arguments)
    snapshot = Snapshot.take(invocation, outputs)
    invocation.stage = BACKWARD
    with Operators() as operators_of_backward:
        gradients = invocation.backward(outputs)
    new_operators = operators_of_backward.first_arguments.keys() - operators.first_arguments.keys()
    _check_operators(invocation, {op: operators_of_backward.first_arguments[op] for op in new_operators})
    return snapshot, gradients


def _check_operators(
    invocation: Invocation, first_arguments: Mapping[Any, tuple[tuple[Any, ...], Mapping[str, Any]]]
) -> None:
    for op, (arguments, options) in first_arguments.items():
        invocation.stage = f"torch.library.opcheck of {op}: "
        torch.library.opcheck(op, arguments, dict(options), test_utils=_OPCHECKS)
    invocation.operators += len(first_arguments)


def followed(invocation: Invocation) -> SnapshotAndGradients:
    """The results after another call, with half of each value: what a call returns and saves is not the next one's."""
    outputs = invocation.forward()
    other_outputs = _with_halves(invocation).forward()
    invocation.synchronise()
    snapshot = Snapshot.take(invocation, outputs)
    invocation.stage = "in the backward pass of a call before: "
    gradients = invocation.backward(outputs)
    del other_outputs  # it lives until here: its memory is not what the first call returned or saved
    return snapshot, gradients


def _with_halves(invocation: Invocation) -> Invocation:
    """The call with half of each value."""
    halves = {n: (x.detach() / 2 if x.is_floating_point() else x) for n, x in invocation.inputs.items()}
    for name in invocation.call.wrt:
        halves[name].requires_grad_()
    return replace(invocation, inputs=halves)


def traced(invocation: Invocation) -> SnapshotAndGradients:
    """As `eager`, and records who computes."""
    trace = Trace(_ownership(invocation))
    with trace.watch("forward"):
        outputs = invocation.forward()
    invocation.synchronise()
    snapshot = Snapshot.take(invocation, outputs)
    invocation.stage = BACKWARD
    with trace.watch("backward"):
        gradients = invocation.backward(outputs)
    passes: list[Pass] = ["forward", "backward"] if invocation.call.wrt else ["forward"]
    computed = (*trace.computed, *_kernels_of_extensions(invocation, trace.computed, passes))
    invocation.computed = (*computed, *unseen_passes(computed, passes))
    return snapshot, gradients


def _kernels_of_extensions(
    invocation: Invocation, computed: tuple[Computed, ...], passes: list[Pass]
) -> Iterator[Computed]:
    """The kernels on a GPU of a pass in which nothing was seen, from another call."""
    if invocation.device.type != "cuda" or {item.during for item in computed}.issuperset(passes):
        return
    triton_names = frozenset(item.name.rpartition(".")[2] for item in computed if item.kind == "triton")
    with other_kernels(triton_names) as of_forward:
        outputs = invocation.forward()
    with other_kernels(triton_names) as of_backward:
        invocation.backward(outputs)
    for name in of_forward():
        yield Computed("extension", name, "forward", is_own=not is_of_library(name))
    for name in of_backward():
        yield Computed("extension", name, "backward", is_own=not is_of_library(name))


def idle(invocation: Invocation) -> SnapshotAndGradients:
    """As `eager`, but the kernel's own launches do nothing.

    A call with half of each value comes first: the kernel's buffers then hold another answer.
    """
    other_call = _with_halves(invocation)
    other_call.backward(other_call.forward())
    invocation.synchronise()
    invocation.stage = "with launches that do nothing: "
    with idle_launches(_ownership(invocation)):
        outputs = invocation.forward()
        invocation.synchronise()
        return Snapshot.take(invocation, outputs), invocation.backward(outputs)


def counted(invocation: Invocation) -> SnapshotAndGradients:
    """As `eager`, and records the work of the host, and the memory kept by earlier calls."""
    invocation.live_bytes = live_bytes(invocation.device)
    note([*invocation.inputs.values(), *invocation.cotangents.values(), *invocation.metadata.values()])
    watch = HostWatch(_ownership(invocation), invocation.device)
    with watch.watch():
        outputs = invocation.forward()
    invocation.synchronise()
    snapshot = Snapshot.take(invocation, outputs)
    invocation.stage = BACKWARD
    with watch.watch():
        gradients = invocation.backward(outputs)
    invocation.host_work = watch.work
    return snapshot, gradients


def repeated(invocation: Invocation) -> SnapshotAndGradients:
    """Again and again, for a clock outside of this process; see `Call.repeats`."""
    call = invocation.call
    if call.moved_input:
        moved = invocation.inputs[call.moved_input].detach()
        spare = torch.empty_like(moved[:1])
    for n in range(call.repeats):
        if call.moved_input and len(moved) > 1:
            first, second = moved_rows(n, len(moved))
            spare[0].copy_(moved[first])
            moved[first].copy_(moved[second])
            moved[second].copy_(spare[0])
        if n + 1 < call.repeats:
            invocation.backward(invocation.forward())
    return eager(invocation)


def perturbed(invocation: Invocation) -> SnapshotAndGradients:
    """Again and again on a GPU, with pauses in the kernel and other work beside it; see `Call.repeats`."""

    def call(some_invocation: Invocation) -> SnapshotAndGradients:
        outputs = some_invocation.forward()
        return Snapshot.take(some_invocation, outputs), some_invocation.backward(outputs)

    def tensors_of(answer: SnapshotAndGradients) -> Tensors:
        snapshot, gradients = answer
        return {**{f"output:{n}": y for n, y in snapshot.outputs.items()}, **gradients}

    invocation.stage = "in calls under perturbation: "
    repetition = repeat_perturbed(
        partial(call, invocation),
        partial(call, _with_halves(invocation)),
        tensors_of,
        calls=invocation.call.repeats,
        device=invocation.device,
        seed=invocation.call.repeats,
    )
    invocation.perturbed_calls, invocation.different_calls = repetition.calls, repetition.different
    return repetition.farthest


def _ownership(invocation: Invocation) -> Ownership:
    return Ownership(invocation.function, invocation.call.reference)


def retained_graph(invocation: Invocation) -> SnapshotAndGradients:
    """The gradients of a second backward pass over the same graph."""
    outputs = invocation.forward()
    snapshot = Snapshot.take(invocation, outputs)
    invocation.stage = BACKWARD
    invocation.backward(outputs, retain_graph=True)
    invocation.synchronise()
    invocation.stage = "in the second backward pass over a graph: "
    return snapshot, invocation.backward(outputs)


def accumulated(invocation: Invocation) -> SnapshotAndGradients:
    """Each input minus its gradient: a copy of it is its `.grad` before the call, and a hook negates what comes in."""
    wrt = {name: invocation.inputs[name] for name in invocation.call.wrt}
    for x in wrt.values():
        x.grad = x.detach().clone()
        x.register_hook(_negated)
    outputs = invocation.forward()
    invocation.synchronise()
    snapshot = Snapshot.take(invocation, outputs)
    invocation.stage = BACKWARD
    if pairs := differentiable_outputs(outputs, invocation.cotangents):
        heads, incoming = zip(*pairs, strict=True)
        scalar_with_gradients(heads, incoming).backward()
    return snapshot, {name: x.grad for name, x in wrt.items() if x.grad is not None}


def _negated(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else -gradient  # a kernel may return None for a gradient of zeros


def no_grad(invocation: Invocation) -> SnapshotAndGradients:
    """Outputs alone. Inputs require gradients, as parameters do."""
    invocation.stage = "under torch.no_grad: "
    with torch.no_grad():
        return Snapshot.take(invocation, invocation.forward()), {}


def inference_mode(invocation: Invocation) -> SnapshotAndGradients:
    """Outputs alone. All inputs but parameters come from a call in the same mode."""
    invocation.stage = "under torch.inference_mode: "
    with torch.inference_mode():
        shared = invocation.call.shared
        invocation.inputs = {n: x if n in shared else x.clone() for n, x in invocation.inputs.items()}
        return Snapshot.take(invocation, invocation.forward()), {}


def autocast(invocation: Invocation, dtype: torch.dtype) -> SnapshotAndGradients:
    """The forward pass under autocast to a dtype."""
    invocation.stage = "under torch.autocast: "
    with torch.autocast(invocation.device.type, dtype):
        outputs = invocation.forward()
    invocation.synchronise()
    snapshot = Snapshot.take(invocation, outputs)
    invocation.stage = "in the backward pass after torch.autocast: "
    return snapshot, invocation.backward(outputs)


def _copies(tensors: Tensors) -> Tensors:
    return {name: t.detach().clone() for name, t in tensors.items()}


MODES: Mapping[Mode, Callable[[Invocation], SnapshotAndGradients]] = {
    "eager": eager,
    "compiled": compiled,
    "graph": graph,
    "side stream": side_stream,
    "double backward": double_backward,
    "opcheck": opcheck,
    "retained graph": retained_graph,
    "accumulated": accumulated,
    "followed": followed,
    "traced": traced,
    "idle": idle,
    "counted": counted,
    "repeated": repeated,
    "perturbed": perturbed,
    "no_grad": no_grad,
    "inference_mode": inference_mode,
    "autocast to bfloat16": partial(autocast, dtype=torch.bfloat16),
    "autocast to float16": partial(autocast, dtype=torch.float16),
    "torch.func.vjp": functional,
    "torch.vmap": vectorised,
}
