"""Reductions over the pack: what the laws ask of them, and how a report names the reduction that was computed."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import packproof
from packproof.adapters import Padded, adapt
from packproof.base.errors import UsageError
from packproof.harness.check.diagnosis.reduction import reduction_line
from packproof.harness.check.targets.reference_trial import try_laws, try_reference
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, judge_case
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import OPS
from tests.properties import losses

LAWS = [PROPERTIES[name] for name in ("packing", "isolation", "permutation", "metadata", "reference", "gradients")]
LAYOUTS = [((2, 5, 1, 3), 0, 2), ((4, 0, 3), 2, 1), ((1,), 0, 3)]
CORRECT = [
    (losses.SUM, losses.by_sum),
    (losses.MEAN, losses.by_token),
    (losses.MEAN_OF_MEANS, losses.by_sequence),
    (losses.LARGEST, losses.by_largest),
]


def violations(op: packproof.Op, kernel: Any, dtype: str, laws: Any = LAWS) -> dict[str, tuple[Case, Any]]:
    """The first violation of each law, with its case."""
    space, subject = Space(op, dtype, Promises()), KernelUnderTest(op, InProcess(kernel), Promises())
    cases = [Case(lengths, dtype, (("n", 5),), slack=slack, seed=seed) for lengths, slack, seed in LAYOUTS]
    first: dict[str, tuple[Case, Any]] = {}
    for law in laws:
        for case in law.suited(space, cases):
            violation, refusal = judge_case(subject, law, case)
            assert refusal is None, refusal
            if violation is not None:
                first.setdefault(law.name, (case, violation))
    return first


@pytest.mark.parametrize(("op", "kernel", "dtype"), [(*pair, "float32") for pair in CORRECT])
def test_a_correct_reduction_keeps_every_law(op: packproof.Op, kernel: Any, dtype: str) -> None:
    """In 16 bits the share of a sequence is rounded, too: tests/quality/test_correct_kernels.py has all dtypes."""
    assert violations(op, kernel, dtype) == {}


def test_the_share_of_a_sequence_is_rounded_in_16_bits() -> None:
    assert violations(losses.MEAN, losses.by_token, "bfloat16", LAWS[:2]) == {}


@pytest.mark.parametrize(
    ("op", "kernel", "followed"),
    [
        (losses.MEAN, losses.by_sequence, "`mean over sequences`"),
        (losses.MEAN, losses.by_sum, "`sum`"),
        (losses.SUM, losses.by_token, "`mean over tokens`"),
        (losses.SUM, losses.by_largest, "`maximum`"),
        (losses.MEAN, losses.by_row, "`mean over all tokens, also those that do not count`"),
        (losses.MEAN_OF_MEANS, losses.by_sums_of_means, "`sum of the means of sequences`"),
        (losses.MEAN, losses.by_chunk_of_three, "no reduction of its sequences"),
    ],
)
def test_another_reduction_is_detected_and_named(op: packproof.Op, kernel: Any, followed: str) -> None:
    first = violations(op, kernel, "float32", LAWS[:1])
    case, violation = first["packing"]
    assert violation.location == "the pack"
    subject = KernelUnderTest(op, InProcess(kernel), Promises())
    [line] = reduction_line(subject, case, violation)
    assert line.startswith(f"loss follows {followed}")
    assert line.endswith(f"declared is `{op.reductions['loss']}`")


def test_a_wrong_share_of_the_gradient_alone_is_detected() -> None:
    class OfRows(torch.autograd.Function):
        """The mean over the tokens that count; its gradient is divided by the number of rows."""

        @staticmethod
        def forward(ctx: Any, loss: torch.Tensor, factor: float) -> torch.Tensor:
            ctx.factor = factor
            return loss.clone()

        @staticmethod
        def backward(ctx: Any, *incoming: torch.Tensor) -> Any:
            return incoming[0] * ctx.factor, None

    def kernel(logits: torch.Tensor, labels: torch.Tensor, *, cu_seqlens: torch.Tensor) -> torch.Tensor:
        inside = labels[: int(cu_seqlens[-1])]
        factor = int((inside != losses.IGNORED).sum()) / max(len(inside), 1)
        result: torch.Tensor = OfRows.apply(losses.by_token(logits, labels, cu_seqlens=cu_seqlens), factor)
        return result

    first = violations(losses.MEAN, kernel, "float32", LAWS[:2])
    assert {str(violation.tensor) for _, violation in first.values()} == {"gradient of logits"}


def sample_of(op: packproof.Op, lengths: tuple[int, ...], seed: int, slack: int = 0) -> Sample:
    return draw(op, Case(lengths, "float32", (("n", 5),), seed=seed, slack=slack))


def test_labels_are_drawn_with_their_traps() -> None:
    samples = {seed: sample_of(losses.MEAN, (4, 3, 5), seed, slack=2) for seed in range(4)}
    labels = {seed: sample.inputs["labels"] for seed, sample in samples.items()}
    assert all(set(x[12:].tolist()) == {losses.IGNORED} for x in labels.values())
    assert labels[0][0] == 0
    assert labels[0][11] == 4
    assert samples[0].counts == [4, 3, 5]
    assert 0 < min(samples[1].counts) < 5
    assert 0 in samples[2].counts
    assert labels[3][4] in (labels[3][3], losses.IGNORED) or labels[3][3] == losses.IGNORED
    assert {x.dtype for x in labels.values()} == {torch.int32, torch.int64}


def test_ids_and_masks_are_drawn_for_every_row() -> None:
    inputs = {"logits": "t n", "ids": "t", "mask": "t"}
    draws, constants = {"ids": "id|n", "mask": "mask"}, frozenset({"ids", "mask"})
    op = losses.loss_op(losses.mean, "sum", inputs=inputs, draws=draws, constants=constants, counted="mask")
    samples = [sample_of(op, (4, 3, 5), seed, slack=2) for seed in range(4)]
    assert [{int(s.inputs["ids"][k]) for s in samples} for k in (0, 11)] == [{0, 4}, {0, 4}]
    assert all(int(s.inputs["ids"].min()) >= 0 and not s.inputs["mask"][12:].any() for s in samples)
    assert all(sum(s.counts) == int(s.inputs["mask"].sum()) for s in samples)


def test_another_ignored_label_comes_with_labels_of_its_own() -> None:
    """Property `reuse` calls with other options: labels that do not count any more would be no ids."""
    options = (("shift", False), ("ignore_index", -100), ("label_smoothing", 0.0), ("z_loss", 0.0))
    case = Case((2,), "float32", (("nv", 5),), options=options, seed=3)
    subject = KernelUnderTest(OPS["cross_entropy"], InProcess(losses.cross_entropy), Promises())
    assert int(subject.sample(case).inputs["labels"].min()) == losses.IGNORED
    assert judge_case(subject, PROPERTIES["reuse"], case) == (None, None)


def test_a_loss_over_ranks_is_judged_by_the_cuts_that_it_takes() -> None:
    def over_ranks(logits: Any, labels: Any, *, cu_seqlens: Any, cuts: Any = ()) -> torch.Tensor:
        """The mean of the means of the ranks."""
        ends = [0, *cuts, int(cu_seqlens[-1])]
        parts = [(logits[a:b], labels[a:b]) for a, b in pairwise(ends) if (labels[a:b] != losses.IGNORED).any()]
        means = [losses.by_token(*part, cu_seqlens=torch.tensor([0, len(part[0])])) for part in parts]
        return torch.stack(means).mean() if means else logits[:0].sum()

    def in_one(logits: Any, labels: Any, *, cu_seqlens: Any, cuts: Any = ()) -> torch.Tensor:
        result: torch.Tensor = losses.by_token(logits, labels, cu_seqlens=cu_seqlens)
        return result

    case = Case((3, 4), "float32", (("n", 5),), cuts=(2,))
    for kernel, is_wrong in ((over_ranks, True), (in_one, False)):
        subject = KernelUnderTest(losses.MEAN, InProcess(kernel), Promises(), takes_cuts=True)
        violation, _ = judge_case(subject, PROPERTIES["partition"], case)
        assert (violation is not None) == is_wrong


def test_the_padding_of_a_convention_does_not_count() -> None:
    def padded(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        offsets = torch.tensor([0, labels.numel()])
        result: torch.Tensor = losses.by_token(logits.flatten(0, 1), labels.flatten(), cu_seqlens=offsets)
        return result

    kernel = adapt(padded, op=losses.MEAN, tokens=Padded(), metadata={}, slack=False)
    sample = sample_of(losses.MEAN, (4, 0, 3), 1)
    expected = losses.mean(**sample.inputs, cu_seqlens=sample.cu_seqlens)
    torch.testing.assert_close(kernel(**sample.inputs, cu_seqlens=sample.cu_seqlens), expected)


def test_incoming_gradients_of_a_part_have_its_share() -> None:
    sample = sample_of(losses.MEAN, (4, 3, 5), 0)
    whole, alone = sample.cotangents["loss"], sample.alone(1).cotangents["loss"]
    assert torch.allclose(alone, whole * 3 / 12)
    assert torch.equal(sample_of(losses.SUM, (4, 3), 0).alone(1).cotangents["loss"], whole)
    sample = sample_of(losses.LARGEST, (1, 9), 0)
    assert [bool(sample.alone(j).cotangents["loss"]) for j in (0, 1)] == [False, True]
    assert sample.select([1, 0]).cotangents["loss"] == whole


def test_a_declaration_that_its_reference_does_not_keep_is_refused() -> None:
    op = replace(losses.MEAN_OF_MEANS, reductions={"loss": "mean over tokens"})
    with pytest.raises(UsageError, match=r"breaks packing .* mean over tokens of the sequences"):
        try_laws(op, [PROPERTIES["packing"]])


def test_a_loss_of_another_shape_or_without_a_gradient_is_a_fault() -> None:
    for kernel, text in (
        (
            lambda logits, labels, *, cu_seqlens: losses.by_sum(logits, labels, cu_seqlens=cu_seqlens)[None],
            r"loss has shape (1,), expected () (a scalar)",
        ),
        (
            lambda logits, labels, *, cu_seqlens: losses.by_sum(logits, labels, cu_seqlens=cu_seqlens).detach(),
            "loss came back detached: no gradient reaches any input",
        ),
    ):
        (_, violation), *_ = violations(losses.SUM, kernel, "float32", LAWS[:1]).values()
        assert violation.text == text


def test_a_loss_that_does_not_read_its_labels_is_refused() -> None:
    def blind(logits: torch.Tensor, labels: torch.Tensor, *, cu_seqlens: torch.Tensor) -> torch.Tensor:
        return logits[: int(cu_seqlens[-1])].logsumexp(-1).sum()

    with pytest.raises(UsageError, match="returns the same loss whatever labels holds"):
        try_reference(losses.loss_op(blind, "sum"))


def test_the_loss_of_the_page_on_declaring_an_op() -> None:
    page = (Path(__file__).parents[2] / "docs/new_op.md").read_text()
    [source] = re.findall(r"`mean_loss.py`:\n\n```python\n(.*?)```", page, re.S)
    names: dict[str, Any] = {}
    exec(source, names)
    op = replace(names["MEAN_CROSS_ENTROPY"], fixed=frozenset())
    assert violations(op, losses.by_token, "float32", LAWS[:1]) == {}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"reductions": {}}, r"declare how it follows from them, by reductions=\{'loss': 'sum'\}"),
        ({"reductions": {"loss": "mean"}}, "'mean over tokens', 'mean over sequences', 'maximum'"),
        ({"reductions": {"logits": "sum"}}, "outputs without an axis for tokens or sequences"),
        ({"counted": "logits"}, "an input drawn as a label or a mask: labels"),
        ({"inputs": {"logits": "t n", "labels": "s"}}, r"inputs\['labels'\] is 's', expected 't', or 't\?'"),
        ({"constants": frozenset()}, "labels, which has no gradient"),
        ({"draws": {"labels": "label"}}, "'label|' and an axis: n"),
    ],
)
def test_a_wrong_declaration_is_refused_with_the_way_out(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        try_reference(losses.loss_op(losses.mean, "mean over tokens", **fields))
