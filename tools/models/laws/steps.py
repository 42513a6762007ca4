"""The training steps that are compared: over a whole pack, or over micro-batches of its documents."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from packproof.models.laws.losses import LossOfPack
from packproof.models.laws.rounding import cast
from packproof.models.subjects.choices import Choice
from packproof.models.subjects.conventions import Convention
from packproof.models.subjects.pack import Pack
from packproof.models.subjects.subject import Subject
from packproof.models.subjects.tested_module import ModuleCall, Step, StepPart


@dataclass(frozen=True)
class StepObjective:
    """What a step differentiates: the loss, or a random sum of outputs where the module takes no labels."""

    subject: Subject
    """The module in its own precision, which inputs are drawn for."""
    convention: Convention
    seed: int
    question: LossOfPack | None
    """How the module is asked for its loss; None: it takes no labels."""

    def with_draw(self, draw: int) -> "StepObjective":
        """The same with other inputs and labels; draw 0 is its own."""
        question = self.question and replace(self.question, seed=self.question.seed + draw)
        return replace(self, seed=self.seed + draw, question=question)

    def call(self, subject: Subject, called_pack: Pack, pack: Pack, rows: slice) -> ModuleCall:
        """The call for some rows of a pack."""
        if self.question:
            return self.question.call(subject, called_pack, pack, rows, self.question.labels(pack))
        x = cast(self.subject.input(pack.tokens, self.seed)[:, rows], subject)
        return ModuleCall(x, self.convention, called_pack)

    def parts(
        self, subject: Subject, parts: Sequence["PartOfPack"], factors: Sequence[float] | None = None
    ) -> tuple[StepPart, ...]:
        """The micro-batches of a step of this subject.

        factors: by how much each part's loss is multiplied; None: 1.
        """
        return tuple(
            StepPart(
                replace(self.call(subject, subject.pack(part.lengths), part.pack, part.rows), seed=part.seed),
                part.pack.tokens,
                part.rows.start,
                self.seed,
                factor,
            )
            for part, factor in zip(parts, factors or [1.0] * len(parts), strict=True)
        )


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
    reference_choices: tuple[Choice | None, ...] | None = None,
) -> Step:
    """One step over these parts, whose gradients add up. Raises ModuleRefused.

    factors: by how much each part's loss is multiplied; None: 1.
    reference_choices: choices among scores that a call repeats; None: those of the call stand.
    """
    return subject.module.step(objective.parts(subject, parts, factors), repeats=reference_choices)


def whole(pack: Pack) -> list[PartOfPack]:
    """The pack as one micro-batch."""
    return [PartOfPack(pack, range(len(pack.lengths)))]


def micro_batches(pack: Pack) -> list[PartOfPack]:
    """The first document, and all others: of unequal token counts."""
    count = len(pack.lengths)
    return [PartOfPack(pack, range(1)), PartOfPack(pack, range(1, count), seed=1)] if count > 1 else whole(pack)
