"""From a module or its factory to the subject of the laws: copied, in eval mode, with redrawn matrices."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from packproof.base.errors import ArgumentError
from packproof.models.running.local_module import LocalModule, PickOutput
from packproof.models.subjects.copies import copy_module
from packproof.models.subjects.refusals import NoOutput
from packproof.models.subjects.subject import MakeInput, Subject
from packproof.models.subjects.tested_module import ModuleFacts


def build_module(module: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """The module itself, or the one made by a function under this seed. Raises ArgumentError."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        built_module = module if isinstance(module, nn.Module) else module()
    if not isinstance(built_module, nn.Module):
        raise ArgumentError(
            f"module: {type(built_module).__name__}, expected an nn.Module or a function that returns one"
        )
    return built_module


def make_subject(
    module: nn.Module, inputs: "int | MakeInput | None", output: "str | PickOutput | None", *, redraw: bool, seed: int
) -> Subject:
    """The module in this process, copied and in eval mode; see `local_module` and `input_maker`."""
    local = local_module(module, output, redraw=redraw, seed=seed)
    return Subject(local, input_maker(local.facts, inputs))


def local_module(module: nn.Module, output: "str | PickOutput | None", *, redraw: bool, seed: int) -> LocalModule:
    """The module, copied and in eval mode.

    redraw: whether to redraw its matrices, because freshly initialised ones let little through.
    """
    module = copy_module(module).eval()
    if redraw:
        generator = torch.Generator().manual_seed(seed)
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.dim() > 1:
                values = 0.15 * torch.randn(parameter.shape, generator=generator)
                parameter.data.copy_(values.to(parameter.dtype))
    return LocalModule(module, _output_picker(output))


def input_maker(facts: ModuleFacts, inputs: "int | MakeInput | None") -> MakeInput:
    """Draws tokens for a module. Raises ArgumentError.

    inputs: the width of a token, or a function; None for ids of its first embedding.
    """
    if callable(inputs):
        return inputs
    if inputs is not None:
        if isinstance(inputs, bool) or not isinstance(inputs, int) or inputs < 1:
            raise ArgumentError(f"inputs: {inputs!r}, expected the width of a token, or a function (tokens, generator)")
        width = inputs
        return lambda tokens, generator: torch.randn(1, tokens, width, generator=generator)
    size = facts.embedding_rows
    if size is None:
        raise ArgumentError(
            f"inputs: {facts.kind} has no nn.Embedding, so that it takes no token ids; give the width of a "
            "token, as inputs=64, or a function (tokens, generator) that returns (1, tokens, width)"
        )
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
