"""A module as the laws see it: they ask for calls and gradients by data, and get tensors.

The module itself may live in this process (`LocalModule`) or in another one (`RemoteModule`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

import torch
from torch import Tensor

from packproof.models.subjects.choices import Choice
from packproof.models.subjects.conventions import Convention
from packproof.models.subjects.modes import Mode
from packproof.models.subjects.pack import ModuleSizes, Pack


@dataclass(frozen=True)
class ParameterFacts:
    """A parameter of a module."""

    name: str
    axes: int
    requires_grad: bool


@dataclass(frozen=True)
class ModuleFacts:
    """The properties of a module, read without a call."""

    kind: str
    """Its class."""
    dtype: torch.dtype
    """Of its first parameter of floating point."""
    device: str
    """The device of its inputs and outputs, for who calls it."""
    arguments: tuple[str, ...]
    """The parameters of its forward by name."""
    takes_any_keyword: bool
    embedding_rows: int | None
    """The rows of its first nn.Embedding; None if it has none."""
    parameters: tuple[ParameterFacts, ...]
    kinds: Mapping[str, str]
    """The class of each module inside it, by name; "" for itself."""
    buffers: tuple[str, ...]
    sizes: ModuleSizes

    @property
    def trains(self) -> bool:
        """Whether any parameter needs a gradient."""
        return any(parameter.requires_grad for parameter in self.parameters)


@dataclass(frozen=True)
class TieOrder:
    """The choices of an earlier run, to be repeated at near ties."""

    reference: tuple[Choice | None, ...] = ()
    """In the order in which they were made."""
    allowed: tuple[float, ...] = ()
    """By how much rounding may move the scores of each choice."""
    rows: Tensor | None = None
    """The rows of this run at which the tokens of the earlier run lie; None for all."""


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module."""

    x: Tensor
    """Token ids (1, t), or tokens (1, t, d)."""
    convention: Convention
    """Makes the other arguments from the pack."""
    pack: Pack
    """Tells lengths, padding and images; its device and dtype are those of the module."""
    without_boundaries: tuple[str, ...] = ()
    """Arguments that are to be those of one document with as many tokens."""
    further: Mapping[str, Tensor | int] = field(default_factory=dict)
    """Further arguments, such as labels."""
    picks: Literal["output", "loss"] = "output"
    leaf: Literal["", "tokens", "parameters"] = ""
    """What `backward` will differentiate by; "" for a call without gradients."""
    seed: int = 0
    """Of the random numbers of the call in train mode."""
    ties: TieOrder | None = None
    """None: choices are neither recorded nor repeated."""
    looks_for_low_precision: bool = False


@dataclass(frozen=True)
class CallResult:
    """The result of a call."""

    output: Tensor
    """The picked output, detached."""
    requires_grad: bool
    choices: tuple[Choice | None, ...] = ()
    ties: int = 0
    """How many choices were replaced at a near tie."""
    has_low_precision: bool = False
    """Whether anything was computed in a lower precision than float64, as far as the module's process can see."""


@dataclass(frozen=True)
class StepPart:
    """A micro-batch of a training step."""

    call: ModuleCall
    tokens: int
    """Of the whole pack: the random weights of its outputs are drawn for all of them."""
    first_row: int
    """Its own first token in the pack."""
    seed: int
    """Of the weights. A loss has none."""
    factor: float = 1.0
    """By how much its loss is multiplied."""


@dataclass(frozen=True)
class Step:
    """The results of a training step."""

    values: tuple[Tensor, ...]
    """The loss, or the outputs, of each part."""
    gradients: Mapping[str, Tensor]
    """What was added to `.grad`, by parameter that needs one; zeros where it got none."""
    input_gradients: tuple[Tensor, ...]
    """The gradients of inputs that are no ids, part by part."""
    buffers: Mapping[str, Tensor]
    """Those of real numbers."""
    choices: tuple[Choice | None, ...] = ()
    """The choices of the last part among scores."""


class TestedModule(Protocol):
    """A module in one mode and precision. Calls raise ModuleRefused, NoOutput, NoGradient or ModuleCrashed."""

    @property
    def facts(self) -> ModuleFacts: ...

    def copy(self, dtype: torch.dtype | None = None, mode: Mode | None = None, *, dropout: bool = False) -> Self:
        """A copy in another precision or mode. Raises CannotRun."""
        ...

    def uncompiled(self) -> Self:
        """The same module without torch.compile."""
        ...

    def to_device(self, device: str) -> Self:
        """The same module on another device."""
        ...

    def start_clock(self, seconds: float) -> None:
        """All calls together have this long from now on."""
        ...

    def forward(self, call: ModuleCall) -> CallResult:
        """Call it. Its graph is kept for `backward` until the next call."""
        ...

    def backward(self, cotangent: Tensor) -> Mapping[str, Tensor]:
        """The gradients of the last call by its leaf: of "tokens" (t, d), or by parameter; none where there is none."""
        ...

    def start_sum(self) -> None:
        """Let the sum of gradients start from nothing, whatever an earlier run has left."""
        ...

    def add_gradients(self, cotangent: Tensor) -> None:
        """As `backward` by parameters, but add the gradients to a sum: of a large module they take long to send."""
        ...

    def summed_gradients(self) -> Mapping[str, Tensor]:
        """The sum by parameter."""
        ...

    def step(self, parts: tuple[StepPart, ...], *, repeats: tuple[Choice | None, ...] | None = None) -> Step:
        """One training step over these parts, whose gradients add up.

        repeats: choices among scores that a call repeats; None: those of the call stand.
        """
        ...

    def copy_buffers(self, source: Self) -> None: ...

    def freeze(self, numbers: tuple[int, ...]) -> None:
        """Let these parameters, by number, need no gradient."""
        ...

    def decay(self, factor: float) -> None:
        """Multiply all matrices."""
        ...

    def perturb(self, relative: float, seed: int) -> None:
        """Move each number of all parameters at random, by up to this share of it."""
        ...

    def changing_arguments(self, convention: Convention, pack: Pack) -> tuple[str, ...]:
        """The arguments that are other objects for one document with as many tokens."""
        ...

    def leaking_module(self, call: ModuleCall, changed_x: Tensor, document: int) -> tuple[str, ...]:
        """Lines that name the first module in which a changed document reaches another one; none if none can be named.

        document: the changed one, by number, or PADDING.
        """
        ...

    def leaking_backward(self, call: ModuleCall, pair: tuple[int, int], seed: int) -> tuple[str, ...]:
        """The same for a leak in the backward pass alone, from the reader of the pair to its source."""
        ...

    def differing_module(self, call: ModuleCall, document: int, roundings: float) -> tuple[str, ...]:
        """Lines that name the first module that differs from the document alone by more than this many roundings."""
        ...

    def mode_culprit(
        self, plain: Self, parts: tuple[StepPart, ...], plain_parts: tuple[StepPart, ...], tolerance: float
    ) -> tuple[str, ...]:
        """Lines that name the first module whose step differs from that of plain training, and in which pass."""
        ...
