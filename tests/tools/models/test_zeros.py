"""Outputs and gradients that are exactly 0: no difference is measured by them, and no innocent module is named."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from packproof.harness.report.events import Failure
from packproof.models.check import run_module_check
from packproof.models.laws.culprit import module_in
from packproof.models.laws.equality import PackedAndAlone
from packproof.models.laws.isolation import measure_leakage, with_document_changed
from packproof.models.request import module_request
from packproof.models.running.construction import make_subject
from packproof.models.subjects.conventions import CONVENTIONS
from packproof.models.subjects.pack import FIRST_LENGTHS
from packproof.models.subjects.subject import Subject
from packproof.models.subjects.tested_module import ModuleCall
from packproof.models.trace import first_difference
from tests.tools.models.llama import Llama
from tests.tools.models.models import WIDTH

CU_SEQLENS = CONVENTIONS["cu_seqlens"]


class LossPerToken(Llama):
    """The last token of a row has a loss of 0: of a document of one token there is nothing else."""

    within_documents = False

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, position_ids: Tensor, use_cache: bool = False
    ) -> Tensor:
        logits = super().forward(input_ids, None, position_ids, use_cache)["logits"][0]
        loss = nn.functional.cross_entropy(logits, input_ids[0].roll(-1), reduction="none")
        last = torch.ones(len(loss), dtype=torch.bool)
        last[:-1] = (position_ids[0, 1:] == 0) if self.within_documents else False
        return loss.masked_fill(last, 0.0)


class LossWithinDocuments(LossPerToken):
    within_documents = True


def failures(module: nn.Module) -> dict[str, Failure | None]:
    request = module_request(module, convention="hf_position_ids", profile="quick", records=False)
    *_, end = run_module_check(request)
    return {verdict.cell.property: verdict.failure for verdict in end.verdicts}  # type: ignore[union-attr]


def test_a_loss_of_zero_alone_names_the_module_that_differs() -> None:
    failure = failures(LossPerToken())["packing"]
    assert failure is not None
    assert failure.lengths == (1, 1)
    assert re.fullmatch(
        r"document 0: values of up to \d\S+, where the document alone has 0; rounding explains 0", failure.lines[0]
    )
    assert failure.lines[1] == "first module that differs from the document alone: the model itself (LossPerToken)"


def test_a_loss_that_ends_with_its_document_passes() -> None:
    assert not any(failures(LossWithinDocuments()).values())


class NineTokensAreZero(nn.Module):
    """Beside other documents they are a rounding of the values there."""

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        documents = x[0].split(cu_seqlens.diff().tolist())
        rounding = torch.finfo(x.dtype).eps * (len(documents) > 1)
        return torch.cat([rows.cumsum(0) * (rounding if len(rows) == 9 else 1) for rows in documents])


def test_a_rounding_beside_zeros_is_no_difference() -> None:
    subject = subject_of(NineTokensAreZero())
    comparison = PackedAndAlone.at_two_precisions(subject, CU_SEQLENS, seed=0)(subject.pack(FIRST_LENGTHS))
    assert comparison.differences[1].scale == 0
    assert comparison.differences[1].max_difference > 0
    assert (comparison.first_failure, comparison.inconclusive_reasons) == (None, [])


class Rounded(torch.autograd.Function):
    """x · weight, whose gradient of the weight has this relative error."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, error: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.error = error
        return x * weight

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return dy * weight, (dy * x).sum_to_size(weight.shape) * (1 + ctx.error), None


class UnusedExperts(nn.Module):
    """One weight rounds as products of matrices do, and the other by chance not at all in low precision."""

    def __init__(self) -> None:
        super().__init__()
        self.rounded, self.exact = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(()))
        self.unused = nn.ParameterList(nn.Parameter(torch.ones(WIDTH)) for _ in range(4))

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        y = Rounded.apply(x[0], self.rounded, 0.1 if x.dtype == torch.float32 else 0.0)
        y = Rounded.apply(y, self.exact, 1e-9 * (len(y) == sum(FIRST_LENGTHS)))
        return y + sum(0 * weight for weight in self.unused)


def test_gradients_of_zero_say_nothing_about_the_rounding_of_others() -> None:
    subject = subject_of(UnusedExperts())
    comparison = PackedAndAlone.at_two_precisions(subject, CU_SEQLENS, seed=0)(subject.pack(FIRST_LENGTHS))
    assert comparison.first_failure is None


def subject_of(module: nn.Module) -> Subject:
    return make_subject(module, WIDTH, None, redraw=False, seed=0)


class FarToken(nn.Module):
    """The first document as it is; at the others 0, or next to nothing where the first one's sum is positive."""

    def forward(self, x: Tensor) -> Tensor:
        first = torch.arange(len(x))[:, None] < FIRST_LENGTHS[0]
        return torch.where(first, x, 1e-9 * (x[: FIRST_LENGTHS[0]].sum() > 0))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(0)


class FarTokenAndMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.far, self.mean = FarToken(), Mean()

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        return self.far(x[0]) + self.mean(x[0])


class ZeroUntilChanged(nn.Module):
    """Every output is 0 at first. With another first document its outputs are values, and the others' are roundings."""

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        first = torch.arange(x.shape[1])[:, None] < FIRST_LENGTHS[0]
        changed = x[0, : FIRST_LENGTHS[0]].sum() > 0
        return x[0] * torch.where(first, changed, changed * torch.finfo(x.dtype).eps).detach()


def test_a_rounding_beside_outputs_that_are_all_zero_is_no_leak() -> None:
    subject = subject_of(ZeroUntilChanged())
    pack, seed = subject.pack(FIRST_LENGTHS), seed_of_a_first_document_that_becomes_positive(subject)
    leakage = measure_leakage(subject, CU_SEQLENS, pack, seed, sources=[0])
    assert not leakage.output.any()
    assert leakage.pairs_within_rounding == [(0, 1), (0, 2)]
    assert leakage.leaking_pairs == []


def seed_of_a_first_document_that_becomes_positive(subject: Subject) -> int:
    """The first document's values have a negative sum with this seed, and a positive one with the next."""
    sums = [float(subject.input(sum(FIRST_LENGTHS), seed)[0, : FIRST_LENGTHS[0]].sum()) for seed in range(50)]
    return next(seed for seed in range(49) if sums[seed] < 0 < sums[seed + 1])


def test_a_rounding_beside_zeros_is_not_named_as_the_leak() -> None:
    subject = subject_of(FarTokenAndMean())
    pack, tokens = subject.pack(FIRST_LENGTHS), FIRST_LENGTHS[0]
    seed = seed_of_a_first_document_that_becomes_positive(subject)
    x = subject.input(pack.tokens, seed)
    changed_x = with_document_changed(x, pack, 0, subject, seed)
    lines = subject.module.leaking_module(ModuleCall(x, CU_SEQLENS, pack), changed_x, 0)
    assert module_in(lines) == "mean (Mean)"

    module, keep = FarTokenAndMean(), (pack.document != 0)[None]
    first, second = (subject.input(pack.tokens, seed + step) for step in (0, 1))
    second[:, tokens:] = first[:, tokens:]
    assert first_difference(module, lambda: module(first), lambda: module(second), keep) == "mean (Mean)"
