"""One training step of a module, as a trainer runs it: forward, `loss.backward()`, and what lies in `.grad` then."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import set_checkpoint_early_stop

from packproof.models.laws.equality import cast
from packproof.models.laws.losses import LossOfPack
from packproof.models.subjects.choices import Choices, TieBreaker
from packproof.models.subjects.conventions import Convention
from packproof.models.subjects.modes import compiler_settings
from packproof.models.subjects.pack import Pack
from packproof.models.subjects.subject import Subject, failed_call


@dataclass(frozen=True)
class Step:
    """What a step leaves."""

    values: Sequence[Tensor]
    """The loss, or the outputs, of each pack."""
    gradients: Mapping[str, Tensor]
    """What was added to `.grad`, by parameter that needs one; zeros where it got none."""
    input_gradients: Sequence[Tensor]
    """The gradients of inputs that are no ids, pack by pack."""
    buffers: Mapping[str, Tensor]
    choices: Choices = ()
    """The choices of the last pack among scores."""


@dataclass(frozen=True)
class StepObjective:
    """What a step differentiates: the loss, or a random sum of outputs where the module takes no labels."""

    subject: Subject
    """The module in its own precision, which inputs are drawn for."""
    convention: Convention
    seed: int
    question: LossOfPack | None
    """How the module is asked for its loss; None: it takes no labels."""

    def value(self, subject: Subject, called_pack: Pack, pack: Pack, rows: slice, x: Tensor) -> tuple[Tensor, Tensor]:
        """The compared output, and the scalar to differentiate."""
        if self.question:
            loss = self.question.with_input(subject, called_pack, x, self.question.labels(pack)[rows])
            return loss, loss.sum()
        out = subject.call(x, self.convention, called_pack)
        shape = (pack.tokens, *out.shape[1:])
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64)
        return out, (out * weight[rows].to(out)).sum()


@dataclass(frozen=True)
class PartOfPack:
    """Some documents of a pack, one after another: a micro-batch."""

    pack: Pack
    documents: range
    seed: int = 0
    """Of the random numbers of its call."""

    @property
    def rows(self) -> slice:
        return slice(self.pack.rows(self.documents[0]).start, self.pack.rows(self.documents[-1]).stop)

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self.pack.lengths[j] for j in self.documents)


def run_step(
    subject: Subject,
    objective: StepObjective,
    parts: Sequence[PartOfPack],
    *,
    factors: Sequence[float] | None = None,
    reference_choices: Choices | None = None,
) -> Step:
    """One step over these parts, whose gradients add up. Raises ModuleRefused.

    factors: by how much each part's loss is multiplied; None: 1.
    reference_choices: choices among scores that a call repeats; None: those of the call stand.
    """
    module, values, input_gradients = subject.module, list[Tensor](), list[Tensor]()
    choices: TieBreaker | None = None
    is_autocast = subject.mode.variant == "autocast"
    module.zero_grad(set_to_none=True)
    with torch.enable_grad(), set_checkpoint_early_stop(enable=False):
        for number, part in enumerate(parts):
            x = cast(objective.subject.input(part.pack.tokens, objective.seed)[:, part.rows], subject).detach().clone()
            x.requires_grad_(x.is_floating_point())
            seeded = replace(subject, call_seed=part.seed) if part.seed else subject
            if reference_choices is not None:
                choices = TieBreaker(x.shape[1], reference_choices, lambda *_: float("inf"))
            device_type = torch.device(subject.device).type
            with (
                choices or nullcontext(),
                torch.autocast(device_type, torch.bfloat16) if is_autocast else nullcontext(),
            ):
                value, scalar = objective.value(seeded, subject.pack(part.lengths), part.pack, part.rows, x)
            if choices:
                choices.in_forward_pass = False
            values.append(value.detach())
            if scalar.requires_grad:
                _run_backward(subject, scalar * (factors[number] if factors else 1.0))
            input_gradients += [torch.zeros_like(x) if x.grad is None else x.grad] if x.requires_grad else []
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    buffers = {n: b.detach().clone() for n, b in module.named_buffers()}
    return Step(values, gradients, input_gradients, buffers, choices.choices if choices else ())


def _run_backward(subject: Subject, scalar: Tensor) -> None:
    try:
        with compiler_settings() if subject.mode.compiled else nullcontext():
            scalar.backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        raise failed_call(error, "in the backward pass, ") from error


def whole(pack: Pack) -> list[PartOfPack]:
    """The pack as one micro-batch."""
    return [PartOfPack(pack, range(len(pack.lengths)))]


def micro_batches(pack: Pack) -> list[PartOfPack]:
    """The first document, and all others: of unequal token counts."""
    count = len(pack.lengths)
    return [PartOfPack(pack, range(1)), PartOfPack(pack, range(1, count), seed=1)] if count > 1 else whole(pack)
