"""A module under test: its inputs, its output along tokens, and the errors with which it refuses a call."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from packproof.base.errors import ArgumentError, PackproofError
from packproof.harness.process import loses_the_device
from packproof.models.subjects.conventions import Convention
from packproof.models.subjects.modes import Mode, compile_module, compiler_settings, module_in_mode
from packproof.models.subjects.pack import Image, Lengths, Pack
from packproof.models.subjects.watch import watch_embedding

MakeInput = Callable[[int, torch.Generator], Tensor]
PickOutput = Callable[[Any], Tensor]
PlaceImages = Callable[[Lengths], tuple[Image, ...]]


class ModuleRefused(PackproofError):
    """The module raised an error for this call, or does not take an argument of the convention."""


class NoOutput(ModuleRefused):
    """The module returned no tensor with one row per token, or none under the requested name."""


class NoGradient(ModuleRefused):
    """No embedding of the tokens was found, so no gradient at the tokens can be taken."""


class ModuleCrashed(PackproofError):
    """A call of the module cost its process the GPU, as a write out of bounds does: that is no refusal."""

    lengths: Lengths = ()
    """The layout of the call."""


def failed_call(error: BaseException, stage: str = "") -> ModuleRefused | ModuleCrashed:
    """The exception to raise for one that the module raised.

    stage: where it was raised, "" for the forward pass.
    """
    text = f"{stage}{type(error).__name__}: {_first_line(error)}"
    return ModuleCrashed(text) if loses_the_device(error) else ModuleRefused(text)


@dataclass
class Subject:
    """A module with its inputs and its output along tokens."""

    module: nn.Module
    make_input: MakeInput
    """Makes tokens (1, t) of integers, or (1, t, d), from their number and a generator."""
    pick_output: PickOutput
    """Picks the compared output from the return value of forward."""
    device: str
    dtype: torch.dtype
    mode: Mode = field(default_factory=Mode)
    """The mode in which the module runs."""
    call_seed: int = 0
    """The seed of the random numbers of a call in train mode."""
    place_images: PlaceImages = lambda lengths: ()
    """Places images in documents of these lengths. A document of a length has the same ones in every pack."""

    def pack(self, lengths: Lengths, gaps: tuple[int, ...] = ()) -> Pack:
        return Pack(lengths, self.device, self.dtype, gaps, self.place_images(lengths))

    def input(self, tokens: int, seed: int) -> Tensor:
        """Token ids (1, tokens) or token vectors (1, tokens, d), on the device of the module."""
        x = self.make_input(tokens, torch.Generator().manual_seed(seed))
        if x.dim() < 2 or x.shape[:2] != (1, tokens):
            raise ArgumentError(f"inputs: it made a tensor of shape {tuple(x.shape)}, expected (1, {tokens}, ...)")
        return x.to(self.device, self.dtype if x.is_floating_point() else x.dtype)

    def call(self, x: Tensor, convention: Convention, pack: Pack) -> Tensor:
        """The output, one row per token. Raises ModuleRefused, or its subclass NoOutput if there is none."""
        return self.call_with(x, self.arguments(convention, pack), convention)

    def call_with(self, x: Tensor, arguments: Mapping[str, Any], convention: Convention) -> Tensor:
        """Like `call`, with these keyword arguments instead of the convention's own."""
        tokens = x.shape[1]
        out = self.pick_output(self.return_value(x, arguments, convention))
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

    def return_value(self, x: Tensor, arguments: Mapping[str, Any], convention: Convention) -> Any:
        """What forward returns. Raises ModuleRefused or ModuleCrashed."""
        try:
            with self.mode.randomness(x.device, self.call_seed):
                return self._forward(x if convention.batched else x[0], **arguments)
        except (Exception, SystemExit) as error:
            raise failed_call(error) from error

    def differentiate(
        self, loss: Tensor, leaves: Sequence[Tensor], *, retain_graph: bool = False
    ) -> Sequence[Tensor | None]:
        """The gradients of the loss. Raises ModuleRefused or ModuleCrashed if the backward pass raises an error.

        retain_graph: whether to keep the graph for another backward pass.
        """
        try:
            with compiler_settings() if self.mode.compiled else nullcontext():
                return torch.autograd.grad(loss, leaves, retain_graph=retain_graph, allow_unused=True)
        except Exception as error:
            raise failed_call(error, "in the backward pass, ") from error

    def arguments(self, convention: Convention, pack: Pack) -> dict[str, Any]:
        """The keyword arguments of a call. Raises ModuleRefused if forward does not take a required one."""
        arguments = dict(convention.arguments(pack))
        parameters = inspect.signature(self.module.forward).parameters
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return arguments
        unsupported = [name for name in arguments if name not in parameters]
        if missing := [name for name in unsupported if name not in convention.optional]:
            raise ModuleRefused(f"forward takes no {', '.join(missing)}")
        return {name: value for name, value in arguments.items() if name not in unsupported}

    @cached_property
    def _forward(self) -> Callable[..., Any]:
        return compile_module(self.module) if self.mode.compiled else self.module

    @property
    def differentiates_tokens(self) -> bool:
        """Whether a gradient at token ids is available. A compiled model has none: its embedding takes no hook."""
        return not self.mode.compiled

    @contextmanager
    def differentiable_input(self, x: Tensor) -> Iterator[tuple[Tensor, Callable[[], Tensor]]]:
        """Yields the input for a call, and a function to ask after the call for the leaf (t, d).

        The leaf holds the gradient at the tokens. It is the input itself if that is floating point, else the output of
        the first embedding of the ids.
        """
        if x.is_floating_point():
            leaf = x.detach().clone().requires_grad_()
            yield leaf, lambda: leaf
            return
        with watch_embedding(self.module, x) as leaves:
            yield x, lambda: _require_leaf(leaves)

    def to_dtype(self, dtype: torch.dtype) -> "Subject":
        """The same module in another precision."""
        return replace(self, module=copy.deepcopy(self.module).to(dtype), dtype=dtype)

    def in_mode(self, mode: Mode) -> "Subject":
        """The same module in this mode. Raises CannotRun."""
        return self if mode == self.mode else replace(self, module=module_in_mode(self.module, mode), mode=mode)

    def fresh(self, mode: Mode, *, dropout: bool = False) -> "Subject":
        """A copy of the module in this mode.

        dropout: whether to leave dropout on. Raises CannotRun.
        """
        return replace(self, module=module_in_mode(self.module, mode, dropout=dropout), mode=mode)

    def uncompiled(self) -> "Subject":
        return replace(self, mode=replace(self.mode, compiled=False))

    def to_device(self, device: str) -> "Subject":
        """The same module on another device."""
        return self if device == self.device else replace(self, module=self.module.to(device), device=device)


def _require_leaf(leaves: list[Tensor]) -> Tensor:
    if not leaves:
        raise NoGradient("no nn.Embedding got the tokens, so that no gradient reaches them; give inputs= of floats")
    return leaves[0]


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


def make_subject(
    module: nn.Module, inputs: "int | MakeInput | None", output: "str | PickOutput | None", *, redraw: bool, seed: int
) -> Subject:
    """The module, copied and in eval mode.

    redraw: whether to redraw its matrices, because freshly initialised ones let little through.
    """
    module = copy.deepcopy(module).eval()
    parameters = [p for p in module.parameters() if p.is_floating_point()]
    dtype = parameters[0].dtype if parameters else torch.float32
    device = str(parameters[0].device) if parameters else "cpu"
    if redraw:
        generator = torch.Generator().manual_seed(seed)
        for parameter in parameters:
            if parameter.dim() > 1:
                values = 0.15 * torch.randn(parameter.shape, generator=generator)
                parameter.data.copy_(values.to(parameter.dtype))
    return Subject(module, _input_maker(module, inputs), _output_picker(output), device, dtype)


def _input_maker(module: nn.Module, inputs: "int | MakeInput | None") -> MakeInput:
    if callable(inputs):
        return inputs
    if inputs is not None:
        if isinstance(inputs, bool) or not isinstance(inputs, int) or inputs < 1:
            raise ArgumentError(f"inputs: {inputs!r}, expected the width of a token, or a function (tokens, generator)")
        width = inputs
        return lambda tokens, generator: torch.randn(1, tokens, width, generator=generator)
    table = next((m for m in module.modules() if isinstance(m, nn.Embedding)), None)
    if table is None:
        raise ArgumentError(
            f"inputs: {type(module).__name__} has no nn.Embedding, so that it takes no token ids; give the width of a "
            "token, as inputs=64, or a function (tokens, generator) that returns (1, tokens, width)"
        )
    size = table.num_embeddings
    return lambda tokens, generator: torch.randint(size, (1, tokens), generator=generator)


def _output_picker(output: "str | PickOutput | None") -> PickOutput:
    if callable(output):
        return output
    names = (output,) if output else ("logits", "last_hidden_state")

    def pick(return_value: Any) -> Tensor:
        for name in names:
            by_key = return_value.get(name) if isinstance(return_value, Mapping) else None
            if isinstance(tensor := getattr(return_value, name, by_key), Tensor):
                return tensor
        first_output = return_value[0] if isinstance(return_value, tuple | list) and return_value else return_value
        if output or not isinstance(first_output, Tensor):
            keys = f" of {', '.join(map(str, return_value)) or 'nothing'}" if isinstance(return_value, Mapping) else ""
            raise NoOutput(
                f"output: forward returned {type(return_value).__name__}{keys}, without {' or '.join(names)}; name the "
                "tensor that has one row for each token"
            )
        return first_output

    return pick
