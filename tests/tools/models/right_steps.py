"""Corrected versions of the models with a fault in one mode of training."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.tools.models.models import WIDTH
from tests.tools.models.steps import Adapter, GradOverwritten, Mix, NeighbourDoubled, Overwritten, Stack


class ScaleKept(Mix):
    """Its keyword argument is still there when the layer is recomputed."""

    scale = 1.0

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return super().forward(x * self.scale, cu_seqlens)


class MeanOfOutputs(Stack):
    """Its buffer is updated by the model, outside of the layers that are recomputed."""

    running: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running", torch.zeros(()))

    def forward(self, input_ids: Tensor, cu_seqlens: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        out = super().forward(input_ids, cu_seqlens, labels)
        if self.training:
            self.running = self.running * 0.9 + out["logits"].detach().mean() * 0.1
        return out


class DrawnDropout(Mix):
    """Draws from torch's generator, which recomputation sets back, other numbers in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = 0.5

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x, cu_seqlens), self.dropout, self.training)


class SameWithoutGrad(Mix):
    """Takes a path for inference where no graph is made, which computes the same."""

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        y = super().forward(x, cu_seqlens)
        return y if torch.is_grad_enabled() else y.clone().mul_(1.0)


class _AddedToGrad(Overwritten):
    """Adds to `.grad` itself, as a fused kernel for the gradient of a weight does."""

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        if ctx.parameter.requires_grad:
            gradient = (dy.mT @ x.to(dy)).to(ctx.parameter)
            ctx.parameter.grad = gradient if ctx.parameter.grad is None else ctx.parameter.grad + gradient
        return dy @ weight.to(dy), None, None


class GradAdded(GradOverwritten):
    function = _AddedToGrad


class _Affine(torch.autograd.Function):
    """x @ w + b; each gradient stands for itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.mT + bias

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        _, needs_weight, needs_bias = ctx.needs_input_grad
        return dy @ weight.to(dy), dy.mT @ x.to(dy) if needs_weight else None, dy.sum(0) if needs_bias else None


class NeighbourKept(NeighbourDoubled):
    function = _Affine


class CastOfEachVersion(Mix):
    """Casts its weight under autocast, and again once the weight was changed."""

    cast: tuple[int, Tensor] | None = None

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        weight = self.proj.weight
        if torch.is_autocast_enabled("cpu"):
            if self.cast is None or self.cast[0] != weight._version:
                self.cast = weight._version, weight.detach().bfloat16()
            weight = weight - weight.detach() + self.cast[1].float()
        return super().forward(nn.functional.linear(x, weight), cu_seqlens)


class CastWithGradient(Mix):
    """Casts its weight under autocast with a graph."""

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        weight = self.proj.weight.bfloat16() if torch.is_autocast_enabled("cpu") else self.proj.weight
        return super().forward(nn.functional.linear(x, weight), cu_seqlens)


class GapRouted(Mix):
    """One of four scales for a token, by softmax over the scores within a gap of the largest one, as PhiMoE's router:
    a token with a single score there gives the others no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.scales, self.router = nn.Parameter(torch.randn(4, WIDTH)), nn.Linear(WIDTH, 4, bias=False)

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        scores = self.router(x)
        best, chosen = scores.max(-1, keepdim=True)
        far = (best - scores) / scores.abs().clamp(min=best) > 0.02
        share = scores.masked_fill(far, -torch.inf).softmax(-1).gather(-1, chosen)
        return super().forward(x * share * self.scales[chosen[:, 0]], cu_seqlens)


class AdaptedStack(Stack):
    """Only its adapter needs gradients; as models of transformers it can make its embeddings need one."""

    def __init__(self) -> None:
        super().__init__(Adapter)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.endswith((".low", ".high")))

    def enable_input_require_grads(self) -> None:
        self.embedding.register_forward_hook(lambda _module, _args, out: out.requires_grad_())
