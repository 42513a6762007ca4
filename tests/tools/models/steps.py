"""Models with a fault in one mode of training alone: each has it in its second layer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.tools.models import losses
from tests.tools.models.losses import Loss
from tests.tools.models.models import VOCABULARY, WIDTH

Mixer = Callable[[], nn.Module]


class Mix(nn.Module):
    """The mean of all tokens of a document so far, through a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        lengths = cu_seqlens.diff().tolist()
        means = [d.cumsum(0) / torch.arange(1, len(d) + 1)[:, None].to(d) for d in x.split(lengths)]
        return self.proj(torch.cat(means))


class Block(nn.Module):
    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(WIDTH), mixer

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return x + self.mixer(self.norm(x), cu_seqlens)


class Stack(nn.Module):
    """Two layers and a loss; the second layer has the mixer of choice."""

    def __init__(self, mixer: Mixer = Mix, loss: Loss = losses.mean_over_tokens) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Block(Mix()), Block(mixer())])
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self._loss = loss

    def forward(self, input_ids: Tensor, cu_seqlens: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = self.embedding(input_ids)[0]
        for layer in self.layers:
            x = layer(x, cu_seqlens)
        logits = self.head(x)
        out = {"logits": logits[None]}
        return out if labels is None else {**out, "loss": self._loss(logits, labels[0], cu_seqlens)}


class ScaleLost(Mix):
    """Its keyword argument is set by the model before a call, and gone when the layer is recomputed."""

    scale: float | None = None

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return super().forward(x * (2.0 if self.scale is None else self.scale), cu_seqlens)


class ScaleLostStack(Stack):
    def __init__(self) -> None:
        super().__init__(ScaleLost)

    def forward(self, input_ids: Tensor, cu_seqlens: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        mixer = self.layers[1].get_submodule("mixer")
        assert isinstance(mixer, ScaleLost)
        mixer.scale = 1.0
        out = super().forward(input_ids, cu_seqlens, labels)
        mixer.scale = None
        return out


class RunningMean(Mix):
    """Its buffer follows the mean of what it computes: recomputed, twice."""

    running: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running", torch.zeros(WIDTH))

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        y = super().forward(x, cu_seqlens)
        if self.training:
            self.running = self.running * 0.9 + y.detach().mean(0) * 0.1
        return y


class CountedDropout(Mix):
    """Draws from its own counter, which recomputation does not set back."""

    calls = 0

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        self.calls += 1
        keep = torch.rand(WIDTH, generator=torch.Generator().manual_seed(self.calls)) > 0.5
        return self.proj(super().forward(x, cu_seqlens) * keep)


class MaskReused(Mix):
    """Keeps the mask that its dropout drew first."""

    mask: Tensor | None = None

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.rand(WIDTH) > 0.5
        return super().forward(x, cu_seqlens) * self.mask


class OtherWithoutGrad(Mix):
    """Takes a path for inference where no graph is made, as in the first pass of reentrant recomputation."""

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        y = super().forward(x, cu_seqlens)
        return y if torch.is_grad_enabled() else y * 1.5


class _Affine(torch.autograd.Function):
    """x @ w + b, with a backward pass for the case that all need a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.mT + bias

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        _, needs_weight, needs_bias = ctx.needs_input_grad
        doubled = 1 if needs_bias else 2
        return dy @ weight, dy.mT @ x * doubled if needs_weight else None, dy.sum(0) if needs_bias else None


class _AffineWithoutInput(_Affine):
    """The gradient of x is computed with the weight's alone."""

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            return torch.zeros_like(x), None, dy.sum(0) if ctx.needs_input_grad[2] else None
        return dy @ weight, dy.mT @ x, dy.sum(0) if ctx.needs_input_grad[2] else None


class NeighbourDoubled(Mix):
    function: Any = _Affine

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return self.function.apply(super().forward(x, cu_seqlens), self.weight, self.bias)


class InputGradientLost(NeighbourDoubled):
    function = _AffineWithoutInput


class Overwritten(torch.autograd.Function):
    """Writes into `.grad` itself, instead of adding to it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, parameter: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parameter = parameter[0]
        return x @ weight.mT

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        ctx.parameter.grad = dy.mT @ x
        return dy @ weight, None, None


class GradOverwritten(Mix):
    function: Any = Overwritten

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return self.function.apply(super().forward(x, cu_seqlens), self.weight, [self.weight])


class CastKept(Mix):
    """Casts its weight once under autocast, and keeps the cast of the first step."""

    cast: Tensor | None = None

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        weight = self.proj.weight
        if torch.is_autocast_enabled("cpu"):
            self.cast = weight.detach().bfloat16() if self.cast is None else self.cast
            weight = weight - weight.detach() + self.cast.float()
        return super().forward(nn.functional.linear(x, weight), cu_seqlens)


class GradientLostInCast(Mix):
    """Casts its weight under autocast without a graph."""

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            x = nn.functional.linear(x, self.proj.weight.detach().bfloat16())
        else:
            x = nn.functional.linear(x, self.proj.weight)
        return super().forward(x, cu_seqlens)


class Adapter(Mix):
    """Low rank beside a frozen matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.proj.requires_grad_(False)
        self.low, self.high = nn.Parameter(torch.randn(2, WIDTH)), nn.Parameter(torch.randn(WIDTH, 2))

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return super().forward(x, cu_seqlens) + x @ self.low.mT @ self.high.mT


def adapted() -> Stack:
    """Only the second layer's adapter needs gradients."""
    model = Stack(Adapter).requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith((".low", ".high")))
    return model
