"""One training step of a module, as a trainer runs it: forward, `loss.backward()`, and what lies in `.grad` then."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.utils.checkpoint import set_checkpoint_early_stop

from packproof.models.running.called_module import CalledModule
from packproof.models.subjects.choices import Choice, TieBreaker
from packproof.models.subjects.modes import compiler_settings
from packproof.models.subjects.refusals import failed_call
from packproof.models.subjects.subject import output_rows
from packproof.models.subjects.tested_module import Step, StepPart


def run_step(
    model: CalledModule, parts: Sequence[StepPart], *, repeats: tuple[Choice | None, ...] | None = None
) -> Step:
    """One step over these parts, whose gradients add up. Raises ModuleRefused; see `TestedModule.step`."""
    module, values, input_gradients = model.module, list[Tensor](), list[Tensor]()
    choices: TieBreaker | None = None
    is_autocast = model.mode.variant == "autocast"
    module.zero_grad(set_to_none=True)
    with torch.enable_grad(), set_checkpoint_early_stop(enable=False):
        for part in parts:
            x = part.call.x.detach().clone()
            x.requires_grad_(x.is_floating_point())
            if repeats is not None:
                choices = TieBreaker(x.shape[1], repeats, lambda *_: float("inf"))
            with (
                choices or nullcontext(),
                torch.autocast(x.device.type, torch.bfloat16) if is_autocast else nullcontext(),
            ):
                value, scalar = _value(model, part, x)
            if choices:
                choices.in_forward_pass = False
            values.append(value.detach())
            if scalar.requires_grad:
                _run_backward(model, scalar * part.factor)
            input_gradients += [torch.zeros_like(x) if x.grad is None else x.grad] if x.requires_grad else []
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    buffers = {n: b.detach().clone() for n, b in module.named_buffers() if not b.is_complex()}
    return Step(tuple(values), gradients, tuple(input_gradients), buffers, tuple(choices.choices) if choices else ())


def _value(model: CalledModule, part: StepPart, x: Tensor) -> tuple[Tensor, Tensor]:
    """The compared output or loss, and the scalar to differentiate."""
    out = model.picked(model.return_value(part.call, x), part.call)
    if part.call.picks == "loss":
        return out, out.sum()
    out = output_rows(out, x.shape[1])
    shape = (part.tokens, *out.shape[1:])
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(part.seed), dtype=torch.float64)
    return out, (out * weight[part.first_row : part.first_row + len(out)].to(out)).sum()


def _run_backward(model: CalledModule, scalar: Tensor) -> None:
    try:
        with compiler_settings() if model.mode.compiled else nullcontext():
            scalar.backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        raise failed_call(error, "in the backward pass, ") from error
