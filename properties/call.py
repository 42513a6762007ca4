"""One run of a kernel as data: what goes in, what comes out, and what may go wrong instead."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor

from packproof.properties.cases.tuned import Tuned
from packproof.properties.violation import FaultKind
from packproof.refs.errors import PackproofError

Placement = Literal["contiguous", "transposed", "sliced", "expanded", "beyond 2^31", "beyond 2^32"]
Mode = Literal["eager", "compiled", "graph", "side stream", "double backward", "opcheck"]


@dataclass(frozen=True)
class Call:
    """A kernel call: tensors on the CPU, in the kernel's dtypes; whoever runs it moves them to its device.

    inputs: by argument name, packed; optional arguments that are absent are left out.
    cu_seqlens, cu_seqlens_k: int32 or int64 (s + 1,); the second where the call has a second packing.
    options: the keyword arguments that are not tensors.
    outputs: names of the tensors that the kernel returns, in order.
    wrt: inputs to differentiate; empty for a forward-only run.
    cotangents: incoming gradients by output name; an output without one is left out of the vjp.
    placement: how a tensor lies in memory, by input name or "cotangent:<output>"; contiguous where not named. "beyond
        2^31" and "beyond 2^32" put rows so far apart that the last one begins past as many elements.
    guard: fill what the kernel allocates with a poison pattern, put canaries around every buffer, and report the inputs
        as they are after the call.
    edit_metadata: hand over the same cu_seqlens tensor object as the last call of that length and dtype, edited in
        place.
    mode: how the kernel is called, each a function in `harness.execution.modes`. "eager" is plain.
    copies: the kernel gets the pack that many times over, one after another; the results are the last one's rows.
    shared: the inputs that are not copied then, nor are their gradients cut.
    history: the first sequence has so many tokens of zeros before its own; the results do not have their rows.
    token_rows: the inputs, outputs and "cotangent:<output>" whose rows are tokens.
    convention: another one that the kernel's adapter could declare, in its words; "" for the declared one.
    configuration: the number of the configuration that autotuned kernels run with where none is timed.
    """

    inputs: Mapping[str, Tensor]
    cu_seqlens: Tensor
    options: Mapping[str, Any]
    outputs: tuple[str, ...]
    wrt: tuple[str, ...] = ()
    cotangents: Mapping[str, Tensor] = field(default_factory=dict)
    placement: Mapping[str, Placement] = field(default_factory=dict)
    guard: bool = False
    edit_metadata: bool = False
    mode: Mode = "eager"
    copies: int = 1
    shared: tuple[str, ...] = ()
    history: int = 0
    token_rows: tuple[str, ...] = ()
    convention: str = ""
    cu_seqlens_k: Tensor | None = None
    configuration: int = 0

    @property
    def metadata(self) -> Mapping[str, Tensor]:
        """The offsets by the names of arguments."""
        second = {} if self.cu_seqlens_k is None else {"cu_seqlens_k": self.cu_seqlens_k}
        return {"cu_seqlens": self.cu_seqlens, **second}

    @property
    def most_bytes(self) -> int:
        """A bound on what its result can take here, far above that of any op: what exceeds it is no result."""
        given = (*self.inputs.values(), *self.cotangents.values())
        return (1 << 28) + 256 * sum(t.numel() * t.element_size() for t in given)

    @property
    def large(self) -> bool:
        """Whether it takes gigabytes on its device, however small it is here."""
        return (
            self.copies > 1 or self.history > 0 or any(where.startswith("beyond") for where in self.placement.values())
        )


@dataclass(frozen=True)
class Result:
    """What a kernel computed, on the CPU.

    gradients: by input name; an input that autograd did not reach is left out. Differentiated twice, the gradients of
        the sum of all products of a first gradient with its input, by input name and "cotangent:<output>".
    inputs_after: with `Call.guard`, the inputs, "cu_seqlens" and, as "cotangent:<output>", the incoming gradients, as
        the kernel left them.
    interpreted: Triton programs ran in the interpreter, under the sanitizer. operators: with mode "opcheck", how many
        registered operators the kernel called.
    outliers: of a repeated pack, the copy that differs most from the last, by "output:<name>" and "gradient:<name>",
        with its number from 0; a tensor whose copies all have the same bits is left out.
    tuned: the autotuned kernels that ran, with their configurations.
    """

    outputs: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    inputs_after: Mapping[str, Tensor] = field(default_factory=dict)
    interpreted: bool = False
    operators: int = 0
    outliers: Mapping[str, tuple[int, Tensor]] = field(default_factory=dict)
    tuned: tuple[Tuned, ...] = ()


class KernelFault(PackproofError):
    """The kernel did not return a result. `kind` is how it ended, the message is for reports.

    note: what a property had done to the pack, "" where it ran as it is.
    """

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.note = ""

    def refuses(self, *words: str) -> bool:
        """Whether the kernel raised an error that names one of these words: a clear refusal."""
        return self.kind == "raised" and any(word in str(self).lower() for word in words)


class Refused(PackproofError):
    """The kernel declined this call clearly, before it computed anything: not supported, hence not judged.

    backward: it computed values, and declined to differentiate. note: what a property had done to the pack.
    """

    def __init__(self, message: str, *, backward: bool = False) -> None:
        super().__init__(message)
        self.backward = backward
        self.note = ""


class MachineLimit(Refused):
    """The machine has not the memory, or the time, that this call takes: the kernel is not judged."""


class SlowToCompile(MachineLimit):
    """A compiler was still at work when the time of the call was up, and of a longer one after it: that is no hang."""


class NotCompiled(Refused):
    """torch.compile failed by itself at a kernel that does not promise to be compiled: it is not judged there."""


class OutOfTime(PackproofError):
    """The time of the run was up before the kernel answered: neither it nor the call is at fault."""


class BoundVacuous(Refused):
    """The error bound, derived or declared, is as large as the values: it cannot judge the kernel."""


class OutsideDomain(Refused):
    """A property would make a call that the kernel's domain, or the convention of its adapter, excludes: the kernel was
    not called."""


class Runner(Protocol):
    """Whatever can run a call: a worker process, or the function itself. device: "cpu", "cuda", "cuda:1" and so on."""

    device: str

    def run(self, call: Call) -> Result:
        """Returns the result, or raises KernelFault or Refused."""

    def printed(self) -> list[str]:
        """The last lines that the kernel printed since the last time, where they go nowhere else."""

    def restart(self) -> None:
        """Forget every state of the kernel's process (autotuner, caches): the next call is a cold one."""

    def impatient(self) -> AbstractContextManager[None]:
        """Inside it a call counts as hung sooner, as long as answered calls were quick: for shrinking a hang."""
