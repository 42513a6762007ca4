"""The two precisions of a comparison: float64 and float32, or float32 and bfloat16 for a module with fp32 inside."""

import pytest
import torch
from torch import Tensor, nn

from packproof.models.laws.equality import PackedAndAlone
from packproof.models.running.construction import make_subject
from packproof.models.subjects.conventions import CONVENTIONS
from tests.tools.models.models import WIDTH


class Scale(nn.Module):
    """Computes in the dtype of its input."""

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return x[0] * 3


class ScaleInFloat32(nn.Module):
    """Computes in float32 whatever the dtype of its input."""

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return (x[0].float() * 3).to(x.dtype)


class Embedding(nn.Module):
    """Takes token ids, and computes in the dtype of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, WIDTH)

    def forward(self, input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
        return self.embedding(input_ids[0])


@pytest.mark.parametrize(
    ("module", "width", "high", "low"),
    [
        (Scale(), WIDTH, torch.float64, torch.float32),
        (ScaleInFloat32(), WIDTH, torch.float32, torch.bfloat16),
        (Embedding(), None, torch.float64, torch.float32),
    ],
)
def test_a_module_is_judged_in_float64_unless_it_computes_in_less(
    module: nn.Module, width: int | None, high: torch.dtype, low: torch.dtype
) -> None:
    subject = make_subject(module, width, None, redraw=False, seed=0)
    comparison = PackedAndAlone.at_two_precisions(subject, CONVENTIONS["cu_seqlens"], seed=0)
    assert (comparison.high_precision.dtype, comparison.low_precision.dtype) == (high, low)
