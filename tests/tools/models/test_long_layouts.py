"""Models that are wrong past a number of their config or their source: one long document beside short ones."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from packproof.harness.report.events import RunFinished, Verdict
from packproof.models.check import check_module, run_module_check
from packproof.models.request import module_request
from packproof.models.subjects.pack import FIRST_LENGTHS, ModuleSizes, long_layouts


class Rotated(nn.Module):
    """Scales its tokens by the longest document of the batch, as rotary factors for long documents may be chosen."""

    by_document = False

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(**config)
        self.out = nn.Linear(4, 4)

    def limit(self) -> int:
        return int(self.config.rope_scaling["original_max_position_embeddings"])

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        lengths = cu_seqlens.diff()
        longest = lengths if self.by_document else lengths.max().expand(len(lengths))
        factors = torch.where(longest > self.limit(), 0.5, 1.0).to(x.dtype)
        documents = [document.cumsum(0) / len(document) for document in x[0].split(lengths.tolist())]
        return self.out(torch.cat([d * factor for d, factor in zip(documents, factors, strict=True)]))[None]


class RotatedByDocument(Rotated):
    by_document = True


class OfSource(Rotated):
    """With the number in its source."""

    def limit(self) -> int:
        return 2_000


class Refusing(RotatedByDocument):
    """Takes no more than 700 tokens."""

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        if x.shape[1] > 700:
            raise ValueError("too many tokens")
        return super().forward(x, cu_seqlens)


class Overrun(RotatedByDocument):
    """Writes out of bounds past 700 tokens."""

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        if x.shape[1] > 700:
            raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
        return super().forward(x, cu_seqlens)


CONFIG: dict[str, Any] = {"rope_scaling": {"original_max_position_embeddings": 1_500}}


def verdicts(module: nn.Module, profile: str = "standard") -> dict[str, Verdict]:
    request = module_request(module, convention="cu_seqlens", inputs=4, profile=profile, records=False)
    *_, end = run_module_check(request)
    assert isinstance(end, RunFinished)
    return {verdict.cell.property: verdict for verdict in end.verdicts}


@pytest.mark.parametrize(("module", "number"), [(Rotated(**CONFIG), 1_500), (OfSource(), 2_000)])
def test_a_model_that_is_wrong_past_a_number_is_detected(module: nn.Module, number: int) -> None:
    judged = verdicts(module)
    assert judged["isolation"].status == "passed"
    failure = judged["packing"].failure
    assert failure is not None
    assert max(failure.lengths) == number + 1


def test_a_model_that_follows_each_document_passes() -> None:
    check_module(RotatedByDocument(**CONFIG), convention="cu_seqlens", inputs=4)


def test_quick_has_short_documents_alone() -> None:
    assert verdicts(Rotated(**CONFIG), "quick")["packing"].status == "passed"


def test_a_call_that_loses_the_gpu_fails_and_ends_the_setting() -> None:
    """The long layout of a model whose kernel wrote out of bounds was a note, as if the model had refused it."""
    judged = verdicts(Overrun(**CONFIG))
    failure = judged["isolation"].failure
    assert failure is not None
    assert (failure.fault, failure.lengths) == ("crashed", (3, 701, 2))
    assert "the module crashed: RuntimeError: Triton Error [CUDA]: an illegal memory access" in failure.lines[0]
    assert judged["packing"].reason == "the module crashed in the property before"


def test_a_long_layout_that_is_refused_is_said_and_the_others_count() -> None:
    judged = verdicts(Refusing(**CONFIG))
    assert judged["packing"].status == "passed"
    assert judged["packing"].reason == (
        "not judged at lengths [3, 701, 2]: the module refused: ValueError: too many tokens"
    )


def test_long_layouts_are_past_each_number_with_steps_between() -> None:
    module = RotatedByDocument(sliding_window=4_096, original_max_position_embeddings=100_000, chunk_size=256)
    sizes = ModuleSizes.of(module)
    assert long_layouts(sizes, 600, 8_192) == ((3, 2_395, 2), (3, 4_097, 2))
    assert long_layouts(sizes, 600, 4_000) == ()
    assert sum(FIRST_LENGTHS) < 600
