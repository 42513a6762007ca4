"""A module under test: its inputs, its output along tokens, and what is asked of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from packproof.base.errors import ArgumentError
from packproof.models.subjects.modes import Mode
from packproof.models.subjects.pack import Image, Lengths, Pack
from packproof.models.subjects.refusals import ModuleRefused, NoOutput
from packproof.models.subjects.tested_module import CallResult, ModuleCall, ModuleFacts, TestedModule

MakeInput = Callable[[int, torch.Generator], Tensor]
PlaceImages = Callable[[Lengths], tuple[Image, ...]]


@dataclass
class Subject:
    """A module with its inputs and its output along tokens."""

    module: TestedModule
    make_input: MakeInput
    """Makes tokens (1, t) of integers, or (1, t, d), from their number and a generator."""
    mode: Mode = field(default_factory=Mode)
    """The mode in which the module runs."""
    call_seed: int = 0
    """The seed of the random numbers of a call in train mode."""
    place_images: PlaceImages = lambda lengths: ()
    """Places images in documents of these lengths. A document of a length has the same ones in every pack."""

    @property
    def facts(self) -> ModuleFacts:
        return self.module.facts

    @property
    def device(self) -> str:
        """Of its inputs and outputs."""
        return self.facts.device

    @property
    def dtype(self) -> torch.dtype:
        return self.facts.dtype

    def pack(self, lengths: Lengths, gaps: tuple[int, ...] = ()) -> Pack:
        return Pack(lengths, self.device, self.dtype, gaps, self.place_images(lengths))

    def input(self, tokens: int, seed: int) -> Tensor:
        """Token ids (1, tokens) or token vectors (1, tokens, d), on the device of the module."""
        x = self.make_input(tokens, torch.Generator().manual_seed(seed))
        if x.dim() < 2 or x.shape[:2] != (1, tokens):
            raise ArgumentError(f"inputs: it made a tensor of shape {tuple(x.shape)}, expected (1, {tokens}, ...)")
        return x.to(self.device, self.dtype if x.is_floating_point() else x.dtype)

    def call(self, call: ModuleCall) -> Tensor:
        """The output, one row per token. Raises ModuleRefused, or its subclass NoOutput if there is none."""
        return self.result(call).output

    def result(self, call: ModuleCall) -> CallResult:
        """Like `call`, with all that was observed. A loss is as it came."""
        result = self.module.forward(replace(call, seed=call.seed or self.call_seed))
        return result if call.picks == "loss" else replace(result, output=output_rows(result.output, call.x.shape[1]))

    def backward(self, result: CallResult, cotangent: Tensor) -> Mapping[str, Tensor]:
        """The gradients of the last call, whose result this is. cotangent: of its output."""
        return self.module.backward(cotangent.to(result.output))

    @property
    def differentiates_tokens(self) -> bool:
        """Whether a gradient at token ids is available. A compiled model has none: its embedding takes no hook."""
        return not self.mode.compiled

    def to_dtype(self, dtype: torch.dtype) -> "Subject":
        """The same module in another precision."""
        return replace(self, module=self.module.copy(dtype))

    def in_mode(self, mode: Mode) -> "Subject":
        """The same module in this mode. Raises CannotRun."""
        return self if mode == self.mode else self.fresh(mode)

    def fresh(self, mode: Mode, *, dropout: bool = False) -> "Subject":
        """A copy of the module in this mode.

        dropout: whether to leave dropout on. Raises CannotRun.
        """
        return replace(self, module=self.module.copy(mode=mode, dropout=dropout), mode=mode)

    def copy(self) -> "Subject":
        return replace(self, module=self.module.copy())

    def uncompiled(self) -> "Subject":
        return replace(self, module=self.module.uncompiled(), mode=replace(self.mode, compiled=False))

    def to_device(self, device: str) -> "Subject":
        """The same module on another device."""
        return replace(self, module=self.module.to_device(device))


def output_rows(out: Tensor, tokens: int) -> Tensor:
    """An output (1, t, ...) or (t, ...) as (t, ...). Raises ModuleRefused or NoOutput for another shape."""
    if out.dim() > 1 and out.shape[0] == 1 and out.shape[1] == tokens:
        out = out[0]
    if out.dim() > 2 and out.shape[0] not in (1, tokens) and tokens in out.shape[1:]:
        raise ModuleRefused(f"it returned {out.shape[0]} rows of tokens for one")
    if out.shape[:1] != (tokens,):
        raise NoOutput(
            f"output: it has shape {tuple(out.shape)}, expected ({tokens}, ...) or (1, {tokens}, ...): one row for "
            "each token; name the tensor that has them"
        )
    return out
