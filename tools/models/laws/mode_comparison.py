"""A training step in another mode against one in plain train mode: losses, gradients and buffers."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from packproof.base.reductions import MEAN_OVER_TOKENS, SUM, shares
from packproof.models.laws.equality import gradient_differences
from packproof.models.laws.isolation import max_abs
from packproof.models.laws.loss_comparison import PackedLoss
from packproof.models.laws.losses import LossOfPack
from packproof.models.laws.randomness import DRAWS, follows_generator
from packproof.models.laws.rounding import Difference, difference_of, median, two_precisions
from packproof.models.laws.steps import PartOfPack, StepObjective, micro_batches, run_step, whole
from packproof.models.subjects.modes import Mode
from packproof.models.subjects.pack import FIRST_LENGTHS, Pack
from packproof.models.subjects.subject import Subject
from packproof.models.subjects.tested_module import ParameterFacts, Step

PLAIN = "plain training"
GRADIENT_OF, BUFFER = "gradient of ", "buffer "
_AUTOCAST_SAFETY, _AUTOCAST_VACUOUS = 4, 0.5  # of norms: a lost or doubled gradient is off by its whole size
_AUTOCAST_DRAWS = 5
_AUTOCAST_MOVES = 4  # of all weights, by at most what rounding each of them and its input moves a product
_DECAY = 0.5  # of weights between two steps

Freeze = Callable[[int, ParameterFacts], bool]
_FROZEN: Mapping[str, Freeze] = {
    "every second parameter frozen": lambda number, _: number % 2 == 0,
    "the others frozen": lambda number, _: number % 2 == 1,
    "matrices frozen": lambda _, parameter: parameter.axes > 1,
    "all but matrices frozen": lambda _, parameter: parameter.axes <= 1,
}


@dataclass(frozen=True)
class StepPair:
    """A step in the mode, and what it is compared with. The same calls again show where they part."""

    differences: Sequence[Difference]
    """Values first, then buffers, then gradients from the last parameter to the first, as the backward pass runs."""
    condition: str = ""
    """Which of several steps it is, such as the frozen parameters; "" for the only one."""
    plain_subject: Subject | None = None
    mode_subject: Subject | None = None
    plain_parts: Sequence[PartOfPack] = ()
    mode_parts: Sequence[PartOfPack] = ()
    objective: StepObjective | None = None
    """What these calls compute; None: what the comparison has."""
    reason: str = ""
    """Why they were not compared, "" if they were."""

    @property
    def first_failure(self) -> Difference | None:
        return next((difference for difference in self.differences if difference.fails), None)


@dataclass(frozen=True)
class ModeComparison:
    """Compares steps of a module in a mode with those in plain train mode."""

    base: Subject
    """The module as it came, in eval mode."""
    mode: Mode
    objective: StepObjective

    def pairs(self, pack: Pack) -> Iterator[StepPair]:
        """The comparisons of one pack. Raises ModuleRefused and CannotRun."""
        if self.mode.variant == "accumulation":
            yield self._fresh_and_used(pack)
            yield self._union_and_parts(pack)
        elif self.mode.variant == "frozen":
            yield from self._frozen(pack)
        elif self.mode.variant == "autocast":
            yield from self._autocast(pack)
        else:
            yield self._plain_and_other(pack)

    @cached_property
    def _dtypes(self) -> tuple[torch.dtype, torch.dtype]:
        """The highest precision of all computations of the module, and a lower one."""
        if self.mode.variant == "autocast":
            return torch.float32, torch.bfloat16
        pack = self.base.pack(FIRST_LENGTHS)
        call = self.objective.call(self.base, pack, pack, slice(None))
        high, low = two_precisions(self.base.fresh(self.mode.plain), call)
        return high.dtype, low.dtype

    def _in_mode(self, *, dropout: bool = False) -> Subject:
        """A fresh copy in the mode, at the higher precision."""
        return self.base.fresh(self.mode, dropout=dropout).to_dtype(self._dtypes[0])

    def _plain(self, *, dropout: bool = False) -> list[Subject]:
        """Fresh copies in plain train mode, at the higher and the lower precision."""
        plain_subject = self.base.fresh(self.mode.plain, dropout=dropout)
        return [plain_subject.to_dtype(dtype) for dtype in self._dtypes]

    @cached_property
    def _compiled(self) -> Subject:
        """Kept from pack to pack, since torch.compile takes long."""
        return self._in_mode()

    def _plain_and_other(self, pack: Pack) -> StepPair:
        """Dropout is on where layers are recomputed: it draws the same numbers then."""
        dropout = self.mode.checkpointing and not self.mode.compiled
        mode_subject = self._compiled if self.mode.compiled else self._in_mode(dropout=dropout)
        plain_subject, low = self._plain(dropout=dropout)
        for subject in (mode_subject, low):
            subject.module.copy_buffers(plain_subject.module)
        steps = [run_step(subject, self.objective, whole(pack)) for subject in (mode_subject, plain_subject, low)]
        return StepPair(self._differences(*steps), "", plain_subject, mode_subject, whole(pack), whole(pack))

    def _frozen(self, pack: Pack) -> Iterator[StepPair]:
        plain_subject, low = self._plain()
        steps = [run_step(subject, self.objective, whole(pack)) for subject in (plain_subject, low)]
        for condition, is_frozen in _FROZEN.items():
            mode_subject = self._in_mode()
            trainable = [(k, p) for k, p in enumerate(mode_subject.facts.parameters) if p.requires_grad]
            frozen = tuple(k for k, p in trainable if is_frozen(k, p))
            if not 0 < len(frozen) < len(trainable):
                continue
            mode_subject.module.freeze(frozen)
            step = run_step(mode_subject, self.objective, whole(pack))
            differences = self._differences(step, *steps)
            yield StepPair(differences, condition, plain_subject, mode_subject, whole(pack), whole(pack))

    def _autocast(self, pack: Pack) -> Iterator[StepPair]:
        """Two steps, with other weights in the second: a cast that is kept is the first one's.

        Of few tokens rounding may be small by chance: what fails is judged by several draws together. A threshold in
        the module may be crossed under autocast and in no step in bf16: steps with moved weights cross it, too.
        """
        mode_subject, (plain_subject, low) = self._in_mode(), self._plain()
        subjects = (mode_subject, plain_subject, low)
        name = "loss" if self.objective.question else "output"
        for condition in ("", "in a second step, with other weights"):
            draws = [self._steps_of_draw(subjects, pack, 0)]
            differences = _norm_differences(name, draws)
            if any(difference.fails for difference in differences):
                others = (*subjects, *(_moved(plain_subject, seed) for seed in range(_AUTOCAST_MOVES)))
                draws = [self._steps_of_draw(others, pack, draw) for draw in range(_AUTOCAST_DRAWS)]
                differences = _norm_differences(name, draws)
            yield StepPair(differences, condition, plain_subject, mode_subject, whole(pack), whole(pack))
            for subject in subjects:
                subject.module.decay(_DECAY)

    def _steps_of_draw(self, subjects: Sequence[Subject], pack: Pack, draw: int) -> list[Step]:
        """In the mode, plain, and those that round, with other inputs in each draw and the choices of plain."""
        objective, (mode_subject, plain_subject, *rounded) = self.objective.with_draw(draw), subjects
        plain_step = run_step(plain_subject, objective, whole(pack), reference_choices=())
        mode_step, *rounded_steps = (
            run_step(subject, objective, whole(pack), reference_choices=plain_step.choices)
            for subject in (mode_subject, *rounded)
        )
        return [mode_step, plain_step, *rounded_steps]

    def _fresh_and_used(self, pack: Pack) -> StepPair:
        """Each micro-batch after the others, and in a module that has run none, with the same dropout."""
        parts = micro_batches(pack)
        used = self._in_mode(dropout=True)
        step = run_step(used, self.objective, parts)
        fresh_steps = [
            [run_step(subject, self.objective, [part]) for subject in self._plain(dropout=True)] for part in parts
        ]
        fresh_step, low_step = (_total(steps) for steps in zip(*fresh_steps, strict=True))
        fresh, _ = self._plain(dropout=True)
        if not all(value.isfinite().all() for value in fresh_step.values):  # no label of a micro-batch counts
            return StepPair([])
        differences = [d for d in self._differences(step, fresh_step, low_step) if not d.name.startswith(BUFFER)]
        return StepPair(differences, "a micro-batch after another one", fresh, used, parts[-1:], parts)

    def _union_and_parts(self, pack: Pack) -> StepPair:
        """Micro-batches of unequal token counts, and one pack of all their documents."""
        parts, objective, factors = micro_batches(pack), self.objective, None
        if question := self._with_items(pack):
            objective = replace(objective, question=question)
        plain_subject, low = self._plain()
        union, low_union = (run_step(subject, objective, whole(pack)) for subject in (plain_subject, low))
        step = run_step(self._in_mode(), objective, parts)
        is_scalar = union.values[0].dim() == 0
        if not union.values[0].isfinite().all():  # no label counts
            return StepPair([])
        if is_scalar and not question:
            factors = self._shares(pack, parts, [float(v) for v in step.values], float(union.values[0]))
            step = run_step(self._in_mode(), objective, parts, factors=factors)
        values = (
            _weighted_sum(step.values, factors)
            if is_scalar
            else torch.cat([value if value.dim() else value[None] for value in step.values])
        )
        step = replace(step, values=(values,), input_gradients=_joined(step.input_gradients))
        differences = [d for d in self._differences(step, union, low_union) if not d.name.startswith(BUFFER)]
        if any(d.fails for d in differences) and self._draws_numbers(objective, pack):
            return StepPair([], reason=DRAWS)
        condition = "the step over micro-batches, and over one pack of all"
        if differences[0].fails:  # the calls show gradients of the sum alone
            fresh, _ = self._plain()
            return StepPair(differences, condition, fresh, self._in_mode(), whole(pack), parts, objective)
        return StepPair(differences, condition)

    def _draws_numbers(self, objective: StepObjective, pack: Pack) -> bool:
        """Whether the step follows torch's generator, though dropout was turned off."""
        (part,), (subject, _) = whole(pack), self._plain()
        return follows_generator(lambda seed: run_step(subject, objective, [replace(part, seed=seed)]).values[0])

    def _with_items(self, pack: Pack) -> LossOfPack | None:
        """The question with num_items_in_batch, if the module takes it."""
        question = self.objective.question
        if question and (question.takes_items or (question.may_take_items and self._changes_with_items)):
            return question.with_items(2 * pack.tokens)
        return None

    @cached_property
    def _changes_with_items(self) -> bool:
        question = self.objective.question
        assert question
        return self._packed_loss().is_changed_by(question.with_items(2 * sum(FIRST_LENGTHS)))

    def _packed_loss(self) -> PackedLoss:
        """Of a fresh copy: the module as it came has run nothing."""
        assert self.objective.question
        plain_subject = self.base.fresh(self.mode.plain)
        return PackedLoss(self.objective.question, plain_subject, plain_subject)

    def _shares(
        self, pack: Pack, parts: Sequence[PartOfPack], losses: Sequence[float], union: float
    ) -> Sequence[float]:
        """The shares of micro-batches by the reduction that explains the union best."""
        counts = self._packed_loss().counts(pack)
        tokens = [sum(counts[j] for j in part.documents) for part in parts]
        sequences = [sum(counts[j] > 0 for j in part.documents) for part in parts]
        candidates = [shares(SUM, tokens), shares(MEAN_OVER_TOKENS, tokens), shares(MEAN_OVER_TOKENS, sequences)]
        return min(
            candidates,
            key=lambda factors: abs(sum(f * loss for f, loss in zip(factors, losses, strict=True) if f) - union),
        )

    def _differences(self, mode_step: Step, plain_step: Step, low_step: Step) -> list[Difference]:
        high_dtype, low_dtype = self._dtypes
        units = torch.finfo(high_dtype).eps, torch.finfo(low_dtype).eps
        name = "loss" if self.objective.question else "output"
        values = [
            difference_of(
                name if len(plain_step.values) == 1 else f"{name} of micro-batch {k}",
                *tensors,
                *units,
                max_abs(tensors[1]),
            )
            for k, tensors in enumerate(zip(mode_step.values, plain_step.values, low_step.values, strict=True))
        ]
        inputs = [
            difference_of("gradient of the input", *tensors, *units, max_abs(tensors[1]))
            for tensors in zip(
                mode_step.input_gradients, plain_step.input_gradients, low_step.input_gradients, strict=True
            )
        ]
        buffers = [
            difference_of(f"{BUFFER}{key}", values_in_mode, plain_values, low_values, *units, max_abs(plain_values))
            for key, values_in_mode, plain_values, low_values in _changed_buffers(mode_step, plain_step, low_step)
        ]
        gradients = gradient_differences(mode_step.gradients, plain_step.gradients, low_step.gradients, *units)
        all_differences = [*values, *buffers, *reversed(gradients), *inputs]
        return [replace(difference, baseline=PLAIN) for difference in all_differences]


def _moved(plain_subject: Subject, seed: int) -> Subject:
    """A copy whose weights are moved at random by up to two roundings to bf16."""
    moved = plain_subject.copy()
    moved.module.perturb(torch.finfo(torch.bfloat16).eps, seed)
    return moved


def _norm_differences(name: str, draws: Sequence[Sequence[Step]]) -> list[Difference]:
    """By norms over all draws of a step in the mode, plain and at the lower precision: autocast rounds no more than the
    module in bf16, each number in another way. A scalar may round little by chance: the budget is that of the median
    tensor at least.

    draws: in each the step in the mode, the plain one, and those that round.
    """
    tensors: dict[str, list[Sequence[Tensor]]] = {name: []}
    for steps in draws:
        tensors[name] += zip(*(step.values for step in steps), strict=True)
        for parameter in reversed(list(steps[1].gradients)):
            tensors.setdefault(f"{GRADIENT_OF}{parameter}", []).append([step.gradients[parameter] for step in steps])
    changes = {key: _norm(x - y for x, y, *_ in rows) for key, rows in tensors.items()}
    roundings = {
        key: max(_norm(row[k] - row[1] for row in rows) for k in range(2, len(draws[0])))
        for key, rows in tensors.items()
    }
    sizes = {key: _norm(y for _, y, *_ in rows) for key, rows in tensors.items()}
    usual = median([roundings[key] / size for key, size in sizes.items() if size])
    largest_gradient = max((size for key, size in sizes.items() if key != name), default=0.0)
    return [_norm_difference(key, changes[key], roundings[key], usual, size, size if key == name else largest_gradient)
            for key, size in sizes.items()]  # fmt: skip


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.hypot(*(float(x.double().norm()) for x in tensors))


def _norm_difference(
    name: str, change: float, rounding: float, usual_rounding: float, size: float, reference_size: float
) -> Difference:
    least = torch.finfo(torch.bfloat16).eps ** 2 * reference_size
    allowed = _AUTOCAST_SAFETY * max(rounding, usual_rounding * size, least)
    return Difference(name, change, allowed, size, reference_size, baseline=PLAIN, vacuous=_AUTOCAST_VACUOUS)


def _changed_buffers(mode_step: Step, plain_step: Step, low_step: Step) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """The buffers, by name, with other values in the mode."""
    for name, plain_values in plain_step.buffers.items():
        values_in_mode, low_values = mode_step.buffers.get(name), low_step.buffers.get(name)
        if values_in_mode is None or low_values is None:
            continue
        if values_in_mode.shape == plain_values.shape == low_values.shape and not torch.equal(
            values_in_mode.nan_to_num(), plain_values.nan_to_num()
        ):
            yield name, values_in_mode.double(), plain_values.double(), low_values.double()


def _total(steps: Sequence[Step]) -> Step:
    """The steps as one: values side by side, gradients summed."""
    gradients = {name: sum(step.gradients[name] for step in steps) for name in steps[0].gradients}
    return Step(
        tuple(value for step in steps for value in step.values),
        {name: value for name, value in gradients.items() if isinstance(value, Tensor)},
        tuple(gradient for step in steps for gradient in step.input_gradients),
        steps[-1].buffers,
    )


def _weighted_sum(values: Sequence[Tensor], factors: Sequence[float] | None) -> Tensor:
    return torch.stack([f * v for f, v in zip(factors or [1.0] * len(values), values, strict=True) if f]).sum()


def _joined(gradients: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (torch.cat(list(gradients), 1),) if gradients else ()
