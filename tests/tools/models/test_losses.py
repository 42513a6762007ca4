"""The loss of a model: labels that cross, reductions that are none, gradients, and what cannot be judged."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from packproof.base.errors import UsageError
from packproof.harness.report.events import RunFinished, Verdict
from packproof.models.check import run_module_check
from packproof.models.request import module_request
from tests.tools.models import losses
from tests.tools.models.losses import CausalModel, LanguageModel, Loss, NamedItems
from tests.tools.models.models import Attention, Hybrid

LAYOUTS = ((5, 9, 7), (1, 2, 1, 4))


def verdict_of_loss(module: nn.Module, convention: str = "cu_seqlens", labels: str = "auto") -> Verdict:
    request = module_request(module, convention=convention, labels=labels, profile="quick", records=False)
    *_, end = run_module_check(replace(request, layouts=LAYOUTS, laws=("loss",)))
    assert isinstance(end, RunFinished)
    [verdict] = end.verdicts
    return verdict


def lines_of(verdict: Verdict) -> str:
    assert verdict.status == "failed"
    assert verdict.failure
    return "\n".join(verdict.failure.lines)


def test_labels_that_are_shifted_over_the_whole_row() -> None:
    verdict = verdict_of_loss(LanguageModel(losses.over_row))
    assert lines_of(verdict).startswith("the label of document 1's first token crosses: the loss ")
    assert verdict.failure
    assert (verdict.failure.lengths, verdict.failure.tensor) == ((1, 1), "label")


@pytest.mark.parametrize(
    ("loss", "note"),
    [
        (losses.mean_over_tokens, "the loss is the mean over tokens"),
        (losses.mean_over_sequences, "the loss is the mean over sequences"),
        (losses.summed, "the loss is the sum"),
        (losses.aligned, "the loss is the mean over tokens"),
        (losses.per_token, "the loss of each token"),
    ],
)
def test_a_loss_of_its_documents_holds(loss: Loss, note: str) -> None:
    verdict = verdict_of_loss(LanguageModel(loss))
    assert (verdict.status, verdict.reason) == ("passed", note)


@pytest.mark.parametrize(
    ("loss", "lengths", "text"),
    [
        (
            losses.rolled,
            (1, 1),
            "the loss is no sum or mean over tokens or mean over sequences of the documents' losses",
        ),
        (losses.over_rows, (1, 2), "the loss is no sum or mean over tokens or mean over sequences"),
        (losses.chunk_means, None, "the loss is no sum or mean over tokens or mean over sequences"),
        (losses.balanced_over_pack, (1, 2), "the loss is no sum or mean over tokens or mean over sequences"),
        (losses.half_gradient, None, "gradient of embedding.weight: off by "),
    ],
)
def test_a_loss_that_is_no_reduction_of_the_documents(loss: Loss, lengths: tuple[int, ...] | None, text: str) -> None:
    verdict = verdict_of_loss(LanguageModel(loss))
    assert text in lines_of(verdict)
    assert verdict.failure
    assert lengths in (None, verdict.failure.lengths)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (losses.detached, "the loss has no gradient"),
        (
            losses.of_logits_alone,
            "the loss does not change with its labels, so that one that crosses could not be seen",
        ),
    ],
)
def test_what_cannot_be_judged_is_not_held(loss: Loss, reason: str) -> None:
    verdict = verdict_of_loss(LanguageModel(loss))
    assert (verdict.status, verdict.reason) == ("inconclusive", reason)


def test_labels_as_a_padding_free_collator_sends_them() -> None:
    model = CausalModel(losses.by_items)
    verdict = verdict_of_loss(model, "hf_position_ids")
    note = (
        "the loss is the mean over tokens; with -100 as the label of each document's first token, without which labels"
    )
    assert verdict.status == "passed"
    assert verdict.reason.startswith(note)
    assert verdict_of_loss(model, "hf_position_ids", "shifted").status == "passed"
    assert "--labels first_ignored" in lines_of(verdict_of_loss(model, "hf_position_ids", "every"))


def test_num_items_in_batch() -> None:
    assert verdict_of_loss(NamedItems(losses.by_items), "hf_position_ids").status == "passed"
    ignored = verdict_of_loss(NamedItems(losses.by_count), "hf_position_ids")
    assert lines_of(ignored).startswith("num_items_in_batch changes nothing")
    text = lines_of(verdict_of_loss(NamedItems(losses.mean_by_items), "hf_position_ids"))
    assert text.startswith("with num_items_in_batch:\nthe loss is not the sum of the documents' losses")
    assert "it is the mean over tokens" in text


def test_labels_of_another_kind() -> None:
    """One for a whole sequence, as a classifier takes them: no loss of tokens can be asked for."""

    def of_sequence(logits: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(logits[-1:], labels[:1])[None].expand(3, 3)

    asked = verdict_of_loss(LanguageModel(of_sequence))
    assert asked.status == "skipped"
    assert asked.reason.startswith("the module refused: loss: forward took labels and returned dict without one")
    assert verdict_of_loss(LanguageModel(of_sequence), labels="every").status == "inconclusive"


def test_a_model_without_labels_is_not_asked() -> None:
    request = module_request(Hybrid(mixers=[Attention]), convention="cu_seqlens", profile="quick", records=False)
    [setting] = request.settings()
    assert "loss" not in {cell.property for cell in request.cells(setting)}
    labelled = module_request(
        LanguageModel(losses.summed), convention="cu_seqlens", labels="none", profile="quick", records=False
    )
    assert "loss" not in {cell.property for cell in labelled.cells(setting)}
    with pytest.raises(UsageError, match="no labels is called 'all'"):
        module_request(
            LanguageModel(losses.summed), convention="cu_seqlens", labels="all", profile="quick", records=False
        )
