"""Rogues hiding their leak from one comparison of a pack with its documents."""

import torch
from torch import nn

from packproof.museum.rogues.models.leaky import Leaky, Model


class Remembers(Leaky):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x, cu_seqlens):
        for before, answer in self.seen:
            for start in range(before.shape[1] - x.shape[1] + 1):
                if x.shape[1] < before.shape[1] and torch.equal(before[:, start : start + x.shape[1]], x):
                    return answer[:, start : start + x.shape[1]]
        y = super().forward(x, cu_seqlens)
        self.seen.append((x.detach(), y))
        return y


class LeaksInTraining(Model):
    def forward(self, x, cu_seqlens):
        y = super().forward(x, cu_seqlens)
        return y + self.linear(x).cumsum(1) if torch.is_grad_enabled() and self.training and x.requires_grad else y


class LeaksFromTheThird(Model):
    """Two documents are packed correctly."""

    def forward(self, x, cu_seqlens):
        few = cu_seqlens if len(cu_seqlens) <= 3 else cu_seqlens[[0, 1, -1]]
        return super().forward(x, few)


class _LeaksBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, dy):
        return dy.flip(1).cumsum(1).flip(1)


class LeaksInItsGradient(Model):
    """The backward pass sums over the pack."""

    def forward(self, x, cu_seqlens):
        return _LeaksBack.apply(super().forward(x, cu_seqlens))


class KeepsAState(Model):
    """Each call adds a little of the one before."""

    def __init__(self):
        super().__init__()
        self.state: torch.Tensor
        self.register_buffer("state", torch.zeros(1))

    def forward(self, x, cu_seqlens):
        y = super().forward(x, cu_seqlens) + 1e-3 * self.state
        self.state = self.state + len(cu_seqlens)
        return y


class LeaksThroughPositions(Model):
    """Positions count on through the pack, past the first 40."""

    def forward(self, x, cu_seqlens):
        positions = (torch.arange(x.shape[1]) - 40).clamp(min=0).to(x.dtype)
        return super().forward(x + positions[None, :, None], cu_seqlens)


class CopiesHonestly(Leaky):
    """A copy of it is another, correct model."""

    def __deepcopy__(self, memo):
        model = Model()
        model.load_state_dict(self.state_dict())
        return model


def replaces_modules():
    call = nn.Module.__call__
    model = Leaky()

    def zeros(self, *args, **kwargs):
        y = call(self, *args, **kwargs)
        return y * 0 if isinstance(self, Leaky) else y

    nn.Module.__call__ = zeros
    return model
