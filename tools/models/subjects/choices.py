"""Near ties among scores, such as a router's of its experts: rounding decides, and either choice is right.

If two runs rank the scores of a token differently and the scores differ by no more than rounding, the second run takes
the choice of the first. Everything after it can then be compared. A larger difference of scores has another cause, and
the choice stands.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from packproof.base.light_torch import DispatchMode

_AXIS_ARGUMENT = {  # the position of the axis among the arguments
    torch.ops.aten.topk.default: 2,
    torch.ops.aten.argmax.default: 1,
    torch.ops.aten.max.dim: 1,
    torch.ops.aten.sort.default: 1,
    torch.ops.aten.sort.stable: 3,
}


@dataclass(frozen=True)
class Choice:
    """The choices of one top-k, argmax or sort for all tokens."""

    scores: Tensor
    """(tokens, r, n): the n candidates."""
    indices: Tensor
    """(tokens, r, k): the indices of the chosen ones."""

    @classmethod
    def concatenate(cls, parts: "Choices") -> "Choice | None":
        """The choices of several documents, concatenated; None unless all choose among equally many candidates."""
        choices = [choice for choice in parts if choice]
        if len({(choice.scores.shape[1:], choice.indices.shape[1:]) for choice in choices}) != 1 or len(choices) < len(
            parts
        ):
            return None
        return cls(torch.cat([choice.scores for choice in choices]), torch.cat([choice.indices for choice in choices]))

    def at_rows(self, rows: slice | Tensor) -> "Choice":
        """The choices of some tokens."""
        return Choice(self.scores[rows], self.indices[rows])

    def has_shape_of(self, choice: "Choice") -> bool:
        return self.scores.shape == choice.scores.shape and self.indices.shape == choice.indices.shape

    def has_scores_of(self, choice: "Choice") -> bool:
        """Whether both choose among bitwise equal scores."""
        return self.has_shape_of(choice) and torch.equal(self.scores, choice.scores)


AllowedChange = Callable[[int, Choice], float]
Choices = Sequence[Choice | None]  # None: the scores are not those of each token


@dataclass(eq=False)
class TieBreaker(DispatchMode):
    """Records each choice among the scores of tokens while active, and at a near tie repeats an earlier run's
    choice."""

    supports_higher_order_operators = True  # such as flex attention

    tokens: int
    """The number of tokens of the call."""
    reference_choices: Choices = ()
    """The choices of the earlier run, in the same order."""
    allowed_change: AllowedChange = lambda number, choice: 0.0
    """By how much rounding may move the scores of a choice, from its number and the earlier choice."""
    rows: Tensor | None = None
    """The rows of this run at which the tokens of the earlier run lie; None for all."""
    choices: list[Choice | None] = field(default_factory=list)
    """The choices of this run so far."""
    ties: int = 0
    """How many choices were replaced at a near tie."""
    in_forward_pass: bool = True
    """False while a checkpointed layer recomputes its forward pass in the backward pass."""

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func not in _AXIS_ARGUMENT or not (scores := args[0]).is_floating_point():
            return out
        axis = kwargs.get("dim", args[_AXIS_ARGUMENT[func]] if len(args) > _AXIS_ARGUMENT[func] else -1)
        index = out[1] if isinstance(out, tuple | list) else out
        choice = self._choice_by_token(scores, index) if axis in (-1, scores.dim() - 1) else None
        aligned_choice = self._align(choice)
        if choice is None or aligned_choice is None or aligned_choice is choice:
            return out
        aligned_index = aligned_choice.indices.reshape(index.shape)
        if not isinstance(out, tuple | list):
            return aligned_index
        gather_index = aligned_index if aligned_index.dim() == scores.dim() else aligned_index[..., None]
        return scores.gather(-1, gather_index).reshape(out[0].shape), aligned_index

    def _choice_by_token(self, scores: Tensor, index: Tensor) -> Choice | None:
        leading_shape = scores.shape[:-1]
        token_count = next((size for size in leading_shape if size != 1), 1)
        if self.tokens not in (1, token_count) or not scores.numel():
            return None
        flat_shape = (self.tokens, leading_shape.numel() // self.tokens, -1)
        return Choice(scores.detach().reshape(flat_shape), index.reshape(flat_shape))

    def _align(self, choice: Choice | None) -> Choice | None:
        if not self.in_forward_pass:  # recomputed for the backward pass: no new choice
            return next(
                (
                    recorded_choice
                    for recorded_choice in self.choices
                    if recorded_choice and choice and recorded_choice.has_scores_of(choice)
                ),
                choice,
            )
        number, aligned_choice = len(self.choices), choice
        reference_choice = self.reference_choices[number] if number < len(self.reference_choices) else None
        if choice and reference_choice:
            aligned_choice = self._align_ties(number, choice, reference_choice)
        self.choices.append(aligned_choice)
        return aligned_choice

    def _align_ties(self, number: int, choice: Choice, reference_choice: Choice) -> Choice:
        rows = torch.arange(self.tokens) if self.rows is None else self.rows
        choice_at_rows = choice.at_rows(rows)
        if not choice_at_rows.has_shape_of(reference_choice):
            return choice
        score_difference = torch.where(
            choice_at_rows.scores == reference_choice.scores,
            0.0,
            (choice_at_rows.scores - reference_choice.scores).abs(),
        ).amax(-1)
        tie = (choice_at_rows.indices != reference_choice.indices).any(-1) & (
            score_difference <= self.allowed_change(number, reference_choice)
        )
        if not bool(tie.any()):
            return choice
        self.ties += int(tie.sum())
        indices = choice.indices.clone()
        indices[rows] = torch.where(tie[..., None], reference_choice.indices, choice_at_rows.indices)
        return Choice(choice.scores, indices)
