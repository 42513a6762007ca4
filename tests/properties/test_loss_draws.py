"""Inputs of losses as they are drawn: boundaries inside of sequences, log-probabilities, logits of routers."""

import pytest
import torch

from packproof.harness.process.execution.execute import InProcess
from packproof.museum import controls, entries
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.comparison import record_comparisons
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import OPS

LENGTHS = (4, 0, 7, 1)


def sample_of(op: str, seed: int, regime: str = "normal", dtype: str = "float32") -> Sample:
    sizes = tuple(OPS[op].sizes[0].items())
    return draw(OPS[op], Case(LENGTHS, dtype, sizes, slack=2, present=("mask",), regime=regime, seed=seed))


def test_a_boundary_lies_inside_of_its_sequence_and_at_its_ends() -> None:
    splits = [sample_of("dpo_loss", seed).inputs["chosen_lengths"].tolist() for seed in range(12)]
    assert all(0 <= k <= n for drawn in splits for k, n in zip(drawn, LENGTHS, strict=True))
    assert {0, 7} <= {drawn[2] for drawn in splits}
    assert len({drawn[2] for drawn in splits}) > 4


def test_a_boundary_stays_inside_of_a_sequence_that_is_cut() -> None:
    sample = sample_of("dpo_loss", 0)
    assert sample.inputs["chosen_lengths"].tolist() == [2, 0, 3, 0]
    assert sample.resized(2, 1, sample).inputs["chosen_lengths"].tolist() == [2, 0, 1, 0]


@pytest.mark.parametrize("regime", ["normal", "wide"])
def test_log_probabilities_beyond_a_mask_are_far_apart(regime: str) -> None:
    sample = sample_of("policy_loss", 1, regime)
    counts = sample.inputs["mask"] == 1
    gain = (sample.inputs["logprobs"] - sample.inputs["old_logprobs"]).abs()
    assert float(gain[counts].max()) <= 2
    assert bool((gain[~counts] > 100).any()) == (regime == "wide")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_router_has_no_ties(dtype: str) -> None:
    x = sample_of("router_balance_loss_sequences", 0, dtype=dtype).inputs["logits"]
    assert float(x.abs().max()) <= 8
    assert all(len(set(row)) == len(row) for row in x.tolist())


def test_a_mask_that_is_multiplied_after_the_exponential_is_detected() -> None:
    entry = entries()["N19"]
    space = Space(OPS[entry.op], "float32", Promises())
    kernel = KernelUnderTest(OPS[entry.op], InProcess(entry.load()), Promises())
    cases = [case for case in golden_cases(space) if case.regime == "wide"]
    assert any(first_violation(kernel, PROPERTIES["reference"], case) is not None for case in cases)


@pytest.mark.parametrize("name", ["losses.router_load_one_hot", "losses.cross_entropy_online"])
def test_isolation_of_a_loss_without_gradients_is_judged_in_packs_of_several(name: str) -> None:
    """Without slack no row could be compared."""
    control = controls()[name]
    op = OPS[control.op]
    kernel = KernelUnderTest(op, InProcess(control.load()), Promises(), gradients=False)
    space = Space(op, "float32", Promises())
    cases = [case for case in golden_cases(space) if len(case.lengths) > 1][:3]
    for case in PROPERTIES["isolation"].suited(space, cases):
        with record_comparisons() as made:
            assert first_violation(kernel, PROPERTIES["isolation"], case) is None
        assert made, case


def test_a_choice_is_the_same_in_every_dtype() -> None:
    drawn = [sample_of("router_load", 2, dtype=dtype).inputs["logits"].float() for dtype in ("float32", "bfloat16")]
    assert torch.equal(drawn[0].argsort(-1), drawn[1].argsort(-1))
