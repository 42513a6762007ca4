"""One run of a kernel as data: its call, its result, and the exceptions for a call without a result."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor

from packproof.base.errors import PackproofError
from packproof.base.provenance.computed import Computed
from packproof.base.provenance.host_work import HostWork
from packproof.base.tuned import Tuned

Placement = Literal["contiguous", "transposed", "sliced", "expanded", "one element", "beyond 2^31", "beyond 2^32"]
Mode = Literal[
    "eager",
    "compiled",
    "graph",
    "side stream",
    "double backward",
    "opcheck",
    "retained graph",
    "accumulated",
    "followed",
    "traced",
    "idle",
    "counted",
    "repeated",
    "perturbed",
    "no_grad",
    "inference_mode",
    "autocast to bfloat16",
    "autocast to float16",
    "torch.func.vjp",
    "torch.vmap",
]


@dataclass(frozen=True)
class Call:
    """A kernel call: tensors on the CPU, in the kernel's dtypes. The runner moves them to its device."""

    inputs: Mapping[str, Tensor]
    """Packed tensors by argument name, without absent optional ones."""
    cu_seqlens: Tensor
    """The offsets, int32 or int64 (s + 1,)."""
    options: Mapping[str, Any]
    """The keyword arguments that are not tensors."""
    outputs: tuple[str, ...]
    """Names of the returned tensors, in order."""
    wrt: tuple[str, ...] = ()
    """Inputs to differentiate; empty for a forward-only run."""
    cotangents: Mapping[str, Tensor] = field(default_factory=dict)
    """Incoming gradients by output name; an output without one is left out of the vjp."""
    placement: Mapping[str, Placement] = field(default_factory=dict)
    """The memory layout of a tensor, by input name or "cotangent:<output>"; contiguous by default.

    "expanded" has one row in memory for all rows, "one element" one element for all elements.
    "beyond 2^31" and "beyond 2^32" put rows so far apart that the last one begins past as many elements.
    """
    guard: bool = False
    """Whether to fill the kernel's allocations with a poison pattern, put canaries around every buffer, and report the
    inputs after the call."""
    edit_metadata: bool = False
    """Whether to pass the cu_seqlens tensor object of the last call with this length and dtype, edited in place."""
    same_tensors: bool = False
    """Whether to pass the tensor objects of the last such call, where shape, strides and dtype are the same. Those with
    other values are edited in place.
    """
    mode: Mode = "eager"
    """How to call the kernel; each mode is a function in `harness.process.execution.modes`."""
    copies: int = 1
    """The kernel gets the pack repeated so many times; the results are the rows of the last copy."""
    repeats: int = 1
    """With mode "repeated", how often the kernel is called and differentiated; the results are those of the last time.
    Before each time the rows of `moved_rows` change places in the first input of tokens: no call has the values of an
    earlier one.

    With mode "perturbed", how many calls under perturbation are compared with a plain one; the results are those
    farthest from it.
    """
    shared: tuple[str, ...] = ()
    """Inputs without copies; their gradients are not cut either."""
    history: int = 0
    """The number of zero tokens put before the first sequence; the results do not include their rows."""
    token_rows: tuple[str, ...] = ()
    """The inputs, outputs and "cotangent:<output>" with one row per token."""
    convention: str = ""
    """An alternative declaration of the kernel's adapter, as text; "" for the declared one."""
    cu_seqlens_k: Tensor | None = None
    """The offsets of the second packing, if the call has one."""
    configuration: int = 0
    """The number of the configuration of autotuned kernels, unless they are timed."""
    reference: str = ""
    """The file and first line of the op's reference, as "file:line", for a traced call."""

    @property
    def metadata(self) -> Mapping[str, Tensor]:
        """The offsets by argument name."""
        key_offsets = {} if self.cu_seqlens_k is None else {"cu_seqlens_k": self.cu_seqlens_k}
        return {"cu_seqlens": self.cu_seqlens, **key_offsets}

    @property
    def moved_input(self) -> str:
        """The input whose rows change places with mode "repeated"; "" if no input has rows of tokens."""
        names = (name for name in self.token_rows if name in self.inputs)
        return next((name for name in names if self.inputs[name].is_floating_point()), "")

    @property
    def max_result_bytes(self) -> int:
        """An upper bound on the bytes of the result, far above any op's. A larger answer is not a result."""
        tensors = (*self.inputs.values(), *self.cotangents.values())
        return (1 << 28) + 256 * sum(t.numel() * t.element_size() for t in tensors)

    @property
    def needs_large_memory(self) -> bool:
        """Whether it needs gigabytes on the device, although its tensors here are small."""
        return (
            self.copies > 1
            or self.history > 0
            or any(placement.startswith("beyond") for placement in self.placement.values())
        )


def moved_rows(n: int, rows: int) -> tuple[int, int]:
    """The two rows, of so many, that change places before the nth repetition: other ones each time."""
    return n % rows, (n + 1 + n // rows) % rows


@dataclass(frozen=True)
class Result:
    """The result of a kernel call, on the CPU."""

    outputs: Mapping[str, Tensor]
    """Outputs by name, as they are when the kernel returns, before the backward pass."""
    gradients: Mapping[str, Tensor]
    """Gradients by input name, without inputs that autograd did not reach.

    With mode "double backward": the gradients of the sum of all products of a first gradient with its input, by input
    name and "cotangent:<output>". With mode "accumulated": each input minus its gradient.
    """
    inputs_after: Mapping[str, Tensor] = field(default_factory=dict)
    """With `Call.guard`, the inputs, "cu_seqlens" and the incoming gradients ("cotangent:<output>") after the call."""
    inputs_at_return: Mapping[str, Tensor] = field(default_factory=dict)
    """With `Call.guard` and a backward pass, the inputs and "cu_seqlens" before the backward pass."""
    outputs_after: Mapping[str, Tensor] = field(default_factory=dict)
    """With `Call.guard` and a backward pass, the outputs after it."""
    interpreted: bool = False
    """Whether Triton programs ran in the interpreter, under the sanitizer."""
    operators: int = 0
    """With mode "opcheck", the number of registered operators called by the kernel."""
    outliers: Mapping[str, tuple[int, Tensor]] = field(default_factory=dict)
    """For a repeated pack, the copy with the largest difference from the last one, and its number from 0.

    By "output:<name>" and "gradient:<name>". A tensor is left out if all copies have the same bits.
    """
    tuned: tuple[Tuned, ...] = ()
    """The autotuned kernels of the call, with their configurations."""
    computed: tuple[Computed, ...] = ()
    """With mode "traced", who computed it."""
    host_work: tuple[HostWork, ...] = ()
    """With mode "counted", what the host did."""
    live_bytes: int = 0
    """With mode "counted", the memory that earlier calls had left allocated."""
    perturbed_calls: int = 0
    """With mode "perturbed", how many calls under perturbation were made."""
    different_calls: int = 0
    """With mode "perturbed", how many of these had other bits than a plain one."""


class Refusal(PackproofError):
    """The kernel declined this call before it computed anything. The call is unsupported, hence not judged.

    backward: whether it computed values and declined only to differentiate.
    note: how a property had changed the pack, "" if it did not.
    """

    def __init__(self, message: str, *, backward: bool = False) -> None:
        super().__init__(message)
        self.backward = backward
        self.note = ""


class MachineLimit(Refusal):
    """The machine lacks the memory or the time for this call: the kernel is not judged."""


class SlowCompilation(MachineLimit):
    """A compiler was still at work at the time limit, and at a longer one in a second call. This is no hang."""


class TooSlow(MachineLimit):
    """A call of this size would take longer than it may."""


class FailedCompilation(Refusal):
    """torch.compile itself failed on a kernel without the promise `compilable`: it is not judged there."""


class MissingModule(Refusal):
    """The call imports a module that is not installed: the kernel is not judged."""


class VacuousBound(Refusal):
    """The error bound, derived or declared, is as large as the values: it cannot judge the kernel."""


class BrokenReference(Refusal):
    """The op's own reference breaks the law at this case, or has no answer. The kernel is not judged there."""


class OutsideDomain(Refusal):
    """A property needs a call outside of the kernel's domain or its adapter's convention. The kernel was not called."""


class Runner(Protocol):
    """Runs calls of a kernel, in a worker process or in this one."""

    device: str
    """ "cpu", "cuda", "cuda:1" and so on."""

    @property
    def time_limit(self) -> float:
        """Seconds for one call; infinity where nothing ends it."""

    def run(self, call: Call) -> Result:
        """Run a call. Raises KernelFault and Refusal."""

    def printed_lines(self) -> list[str]:
        """The last lines printed by the kernel since the previous call of this method, unless shown elsewhere."""

    def restart(self) -> None:
        """Discard all state of the kernel's process (autotuner, caches). The next call starts cold."""

    def with_short_timeout(self) -> AbstractContextManager[None]:
        """Shorten the time limit of calls inside, if earlier answers were quick. Used to shrink a hang."""
