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

from packproof.properties.light_torch import DispatchMode

_AXIS_AT = {  # the position of the axis among the arguments
    torch.ops.aten.topk.default: 2,
    torch.ops.aten.argmax.default: 1,
    torch.ops.aten.max.dim: 1,
    torch.ops.aten.sort.default: 1,
    torch.ops.aten.sort.stable: 3,
}


@dataclass(frozen=True)
class Chosen:
    """The choices of one top-k, argmax or sort for all tokens."""

    scores: Tensor
    """(tokens, r, n): the n candidates."""
    chosen: Tensor
    """(tokens, r, k): the indices of the chosen ones."""

    @classmethod
    def joined(cls, parts: "Made") -> "Chosen | None":
        """The choices of several documents, concatenated; None unless all choose among equally many candidates."""
        made = [part for part in parts if part]
        if len({(part.scores.shape[1:], part.chosen.shape[1:]) for part in made}) != 1 or len(made) < len(parts):
            return None
        return cls(torch.cat([part.scores for part in made]), torch.cat([part.chosen for part in made]))

    def of(self, rows: slice | Tensor) -> "Chosen":
        """The choices of some tokens."""
        return Chosen(self.scores[rows], self.chosen[rows])

    def like(self, other: "Chosen") -> bool:
        return self.scores.shape == other.scores.shape and self.chosen.shape == other.chosen.shape

    def repeats(self, other: "Chosen") -> bool:
        """Whether both choose among bitwise equal scores."""
        return self.like(other) and torch.equal(self.scores, other.scores)


Allowed = Callable[[int, Chosen], float]
Made = Sequence[Chosen | None]  # None: the scores are not those of each token


@dataclass(eq=False)
class TieBreaker(DispatchMode):
    """Records each choice among the scores of tokens while active, and at a near tie repeats an earlier run's
    choice."""

    supports_higher_order_operators = True  # such as flex attention

    tokens: int
    """The number of tokens of the call."""
    earlier: Made = ()
    """The choices of the earlier run, in the same order."""
    allowed: Allowed = lambda number, choice: 0.0
    """By how much rounding may move the scores of a choice, from its number and the earlier choice."""
    rows: Tensor | None = None
    """The rows of this run at which the tokens of the earlier run lie; None for all."""
    made: list[Chosen | None] = field(default_factory=list)
    """The choices of this run so far."""
    ties: int = 0
    """How many choices were replaced at a near tie."""
    forward: bool = True
    """False while a checkpointed layer recomputes its forward pass in the backward pass."""

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func not in _AXIS_AT or not (scores := args[0]).is_floating_point():
            return out
        axis = kwargs.get("dim", args[_AXIS_AT[func]] if len(args) > _AXIS_AT[func] else -1)
        index = out[1] if isinstance(out, tuple | list) else out
        choice = self._by_token(scores, index) if axis in (-1, scores.dim() - 1) else None
        kept = self._made_alike(choice)
        if choice is None or kept is None or kept is choice:
            return out
        new = kept.chosen.reshape(index.shape)
        if not isinstance(out, tuple | list):
            return new
        wide = new if new.dim() == scores.dim() else new[..., None]
        return scores.gather(-1, wide).reshape(out[0].shape), new

    def _by_token(self, scores: Tensor, index: Tensor) -> Chosen | None:
        lead = scores.shape[:-1]
        first = next((size for size in lead if size != 1), 1)
        if self.tokens not in (1, first) or not scores.numel():
            return None
        flat = (self.tokens, lead.numel() // self.tokens, -1)
        return Chosen(scores.detach().reshape(flat), index.reshape(flat))

    def _made_alike(self, choice: Chosen | None) -> Chosen | None:
        if not self.forward:  # recomputed for the backward pass: no new choice
            return next((m for m in self.made if m and choice and m.repeats(choice)), choice)
        number, kept = len(self.made), choice
        earlier = self.earlier[number] if number < len(self.earlier) else None
        if choice and earlier:
            kept = self._kept(number, choice, earlier)
        self.made.append(kept)
        return kept

    def _kept(self, number: int, choice: Chosen, earlier: Chosen) -> Chosen:
        rows = torch.arange(self.tokens) if self.rows is None else self.rows
        mine = choice.of(rows)
        if not mine.like(earlier):
            return choice
        apart = torch.where(mine.scores == earlier.scores, 0.0, (mine.scores - earlier.scores).abs()).amax(-1)
        tie = (mine.chosen != earlier.chosen).any(-1) & (apart <= self.allowed(number, earlier))
        if not bool(tie.any()):
            return choice
        self.ties += int(tie.sum())
        chosen = choice.chosen.clone()
        chosen[rows] = torch.where(tie[..., None], earlier.chosen, mine.chosen)
        return Chosen(choice.scores, chosen)
