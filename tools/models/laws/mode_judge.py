"""The property `modes`: a training step in a mode has the losses, gradients and buffers of plain training."""

import math
from collections.abc import Sequence

from packproof.base.wording import plural
from packproof.harness.report import Cell, Failure
from packproof.models.laws.culprit import MODE_HEADING, module_in
from packproof.models.laws.judges import Judgement, Shrinker, Trial, equality_verdict, verdict_of
from packproof.models.laws.losses import LossOfPack
from packproof.models.laws.mode_comparison import BUFFER, GRADIENT_OF, ModeComparison, StepPair
from packproof.models.laws.rounding import Difference
from packproof.models.laws.steps import StepObjective
from packproof.models.subjects.pack import Lengths, Pack
from packproof.models.subjects.refusals import ModuleRefused
from packproof.models.subjects.tested_module import ModuleFacts

_MOST_LAYOUTS = 3
_LARGEST_TOLERANCE = 0.1
_REENTRANT_HINT = (
    "reentrant recomputation gives a layer no gradient if none of its inputs needs one: let the output of the "
    "embedding need one, or recompute with use_reentrant=False"
)


def modes(trial: Trial, cell: Cell) -> Judgement:
    """Compare steps over a few packs, and shrink a failure."""
    question = LossOfPack(trial.base, trial.convention, trial.labels, trial.seed) if trial.labels else None
    if question and not trial.requires_loss and question.refusal():
        question = None
    objective = StepObjective(trial.base, trial.convention, trial.seed, question)
    comparison = ModeComparison(trial.base, trial.subject.mode, objective)
    inconclusive_reasons, examples = list[str](), 0
    for lengths in trial.layouts[:_MOST_LAYOUTS]:
        examples += 1
        for pair in comparison.pairs(trial.base.pack(lengths)):
            if pair.first_failure:
                return Judgement(
                    verdict_of(cell, "failed", examples, failure=_failure(comparison, lengths, pair, examples))
                )
            inconclusive_reasons += [pair.reason] if pair.reason else []
            inconclusive_reasons += [d.inconclusive_reason for d in pair.differences if d.inconclusive_reason]
    notes = [] if question else ["by its outputs: forward takes no labels"]
    return Judgement(equality_verdict(cell, examples, inconclusive_reasons, 0, notes))


def _failing_pair(comparison: ModeComparison, pack: Pack, failing: StepPair) -> StepPair | None:
    """The first comparison of a smaller pack that fails, like a failing one of a larger pack: one that is NaN alone, as
    the mean over no label is, has another cause."""
    is_finite = math.isfinite(_max_difference(failing))
    pairs = (pair for pair in comparison.pairs(pack) if pair.first_failure)
    return next((pair for pair in pairs if math.isfinite(_max_difference(pair)) == is_finite), None)


def _max_difference(pair: StepPair) -> float:
    return pair.first_failure.max_difference if pair.first_failure else 0.0


def _failure(comparison: ModeComparison, lengths: Lengths, pair: StepPair, example: int) -> Failure:
    shrinker, smallest_lengths, smallest_pair = Shrinker("modes"), lengths, pair
    if not comparison.mode.compiled:
        smallest_lengths, smallest_pair = shrinker.smallest(
            lengths, pair, lambda candidate: _failing_pair(comparison, comparison.base.pack(candidate), pair)
        )
    difference = smallest_pair.first_failure
    assert difference
    condition = [f"{smallest_pair.condition}:"] if smallest_pair.condition else []
    is_lost = comparison.mode.variant == "reentrant" and difference.max_difference == difference.scale
    hint = [_REENTRANT_HINT] if is_lost and difference.name.startswith(GRADIENT_OF) else []
    module_lines = _module_lines(comparison, smallest_pair, difference)
    parameter_lines = _parameter_lines(smallest_pair, difference, module_lines)
    lines = (*condition, str(difference), *module_lines, *parameter_lines, *hint)
    return Failure(smallest_lengths, difference.name, lines, example, shrinker.attempts)


def _module_lines(comparison: ModeComparison, pair: StepPair, difference: Difference) -> list[str]:
    tolerance = min(difference.allowed / (difference.reference_scale or 1.0), _LARGEST_TOLERANCE)
    lines = _culprit_lines(comparison, pair, tolerance)
    for prefix in (BUFFER, GRADIENT_OF):
        name = difference.name.removeprefix(prefix)
        if not lines and difference.name.startswith(prefix) and name in _names(comparison):
            return [_owner_line(comparison.base.facts, name)]
    return lines


def _parameter_lines(pair: StepPair, difference: Difference, module_lines: Sequence[str]) -> list[str]:
    """The parameters whose gradients differ, unless the difference names one of the module: its own, or the first."""
    path = module_in(module_lines).partition(" (")[0]
    owner = "" if path in ("", "the model itself") else f"{path}."
    failing = [d.name.removeprefix(GRADIENT_OF) for d in pair.differences if d.fails and d.name.startswith(GRADIENT_OF)]
    if not failing or difference.name.startswith(f"{GRADIENT_OF}{owner}"):
        return []
    first = next((name for name in reversed(failing) if name.startswith(owner)), failing[-1])
    others = f" and {plural(len(failing) - 1, 'other')}" if len(failing) > 1 else ""
    return [f"    gradients that differ: of {first}{others}"]


def _culprit_lines(comparison: ModeComparison, pair: StepPair, tolerance: float) -> list[str]:
    plain, other, objective = pair.plain_subject, pair.mode_subject, pair.objective or comparison.objective
    if not (plain and other) or other.mode.compiled:
        return []
    plain_parts, other_parts = objective.parts(plain, pair.plain_parts), objective.parts(other, pair.mode_parts)
    try:
        return list(other.module.mode_culprit(plain.module, other_parts, plain_parts, tolerance))
    except ModuleRefused:
        return []


def _owner_line(facts: ModuleFacts, name: str) -> str:
    """The module that has this parameter or buffer."""
    path = name.rpartition(".")[0]
    return f"{MODE_HEADING}{path or 'the model itself'} ({facts.kinds.get(path, 'a module')})"


def _names(comparison: ModeComparison) -> set[str]:
    facts = comparison.base.facts
    return {*(parameter.name for parameter in facts.parameters), *facts.buffers}
