"""Train a block on a pack and on the same sequences one by one, and bound the difference of the losses.

The loss is the mean square error over the tokens and channels of the pack; one by one the gradients of the sequences
are accumulated. In exact arithmetic both runs take the same steps of gradient descent, of length η. In floating point
a run may be off from that, to first order:

- Sums are taken in another order. A sum of n terms is off by at most ε = 6 √n u times the sum of their absolute
  values, u = 2^-24, if roundings are independent (Higham & Mary 2019, with λ = 6: all but once in 10^4); n is the
  longest sum there is, over tokens or channels. So the loss L is off by ε L, and the gradient of step i by ε Bᵢ, with
  Bᵢ the sum of the norms of the sequences' gradients.
- In bf16 the gradient of a parameter is stored once for each call: another u' Bᵢ, u' = 2^-8.
- An error of gradient i moves the parameters by η times that. Later steps do not magnify it as long as the training is
  stable. It changes the loss of step k by the gradient gₖ times it.
- Parameters that differ at all may be cast to two neighbours in bf16: another u' Σ |gₖ| |θₖ| for every step but the
  first. Tensors along the tokens are rounded alike in both runs, and where a sum of fp32 lies so close to a tie that
  they are not, the mean over all elements, which the loss is, moves no more than the sum.

Together: ε (Lₖ + |gₖ| η Σ_{i<k} Bᵢ) + u' (|gₖ| η Σ_{i<k} Bᵢ + Σ |gₖ| |θₖ|), for each of the two runs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

STEPS, RATE = 20, 0.1
SINGLE = 2.0**-24
STORED = {torch.float32: 0.0, torch.bfloat16: 2.0**-8}


@dataclass(frozen=True)
class Task:
    """Sequences of tokens and a block's targets for them: (t, d_model) in the dtype of the training."""

    lengths: Sequence[int]
    tokens: Tensor
    targets: Tensor

    @classmethod
    def of(cls, lengths: Sequence[int], d_model: int, dtype: torch.dtype, device: str = "cpu") -> "Task":
        g = torch.Generator().manual_seed(1)
        tokens, targets = (torch.randn(sum(lengths), d_model, generator=g).to(device, dtype) for _ in range(2))
        return cls(lengths, tokens, targets)

    def alone(self) -> list["Task"]:
        """Each sequence as a pack of one."""
        pieces = (x.split(list(self.lengths)) for x in (self.tokens, self.targets))
        return [Task((n,), *piece) for n, *piece in zip(self.lengths, *pieces, strict=True)]

    def loss(self, block: nn.Module) -> Tensor:
        """The sum of squared errors, in fp32."""
        offsets = torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32, device=self.tokens.device)
        return (block(self.tokens, cu_seqlens=offsets).float() - self.targets.float()).square().sum()


@dataclass(frozen=True)
class Run:
    """The loss of every step, and its error bound."""

    losses: list[float]
    budgets: list[float]


def train(block: nn.Module, packs: Sequence[Task], rate: float, steps: int) -> Run:
    """Gradient descent on the mean over the tokens of all packs, run one after the other."""
    parameters, tokens = list(block.parameters()), sum(len(p.tokens) for p in packs)
    count = sum(p.tokens.numel() for p in packs)
    sums = 6 * math.sqrt(max(tokens, *(p.shape[-1] for p in parameters))) * SINGLE
    stored = STORED[packs[0].tokens.dtype]
    losses, budgets, moved = [], [], 0.0
    for k in range(steps):
        loss, norms, gradient = 0.0, 0.0, [torch.zeros_like(p) for p in parameters]
        for pack in packs:
            part = pack.loss(block) / count
            found = torch.autograd.grad(
                part, parameters, materialize_grads=True
            )  # an empty sequence reaches few parameters
            gradient = [total + g for total, g in zip(gradient, found, strict=True)]
            loss, norms = loss + float(part.detach()), norms + norm(found)
        drift = norm(gradient) * rate * moved
        cast = sum(float((g * p).detach().abs().sum()) for g, p in zip(gradient, parameters, strict=True)) if k else 0.0
        losses.append(loss)
        budgets.append(sums * (loss + drift) + stored * (drift + cast))
        moved += norms
        with torch.no_grad():
            for p, g in zip(parameters, gradient, strict=True):
                p.sub_(rate * g)
    return Run(losses, budgets)


def norm(tensors: Sequence[Tensor]) -> float:
    return float(torch.stack([x.double().square().sum() for x in tensors]).sum().sqrt())


def excess(make: Callable[[], nn.Module], task: Task, rate: float = RATE, steps: int = STEPS) -> float:
    """The largest difference between the losses of a step, as a multiple of the budget of both runs.

    make: builds the block, the same each time. The second run, one by one, computes the norms Bᵢ. Raises AssertionError
    if the block did not learn, since a constant loss shows little.
    """
    packed, alone = train(make(), [task], rate, steps), train(make(), task.alone(), rate, steps)
    assert packed.losses[-1] < 0.95 * packed.losses[0], packed.losses
    every = zip(packed.losses, alone.losses, alone.budgets, strict=True)
    ratios = [abs(a - b) / (2 * budget) for a, b, budget in every]
    return max(math.inf if math.isnan(r) else r for r in ratios)  # a NaN is no agreement
