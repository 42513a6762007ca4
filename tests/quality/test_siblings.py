"""Pairs of an incorrect kernel and its correct version, which differ in one thing: what callers do, and tests do not.

`packproof check` fails the one, with words that name the cause, and passes the other. The pairs that follow a report
are entries of the museum, or in tests/siblings with their links.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import packproof
from packproof.harness.report.failed import CheckFailed
from packproof.museum import entries
from packproof.properties.declarations.promises import Promises

FOLDER = Path(__file__).parents[1]
ENTRIES = entries()


@dataclass(frozen=True)
class Sibling:
    """An incorrect kernel and its correct version."""

    op: str
    incorrect: str
    correct: str
    says: str
    """Words of the report that name the cause."""
    profile: str = "quick"
    """The first profile that detects it."""
    promises: Mapping[str, Any] = field(default_factory=dict)

    def check(self, target: str, profile: str, **options: Any) -> None:
        terms: dict[str, Any] = {
            "op": self.op,
            "promises": Promises(**self.promises),
            "profile": profile,
            "device": "cpu",
        }
        packproof.check(target, **terms, **options)


def entry(name: str, correct: str, says: str) -> Sibling:
    """A pair in the museum; the correct one is in the same module."""
    bug = ENTRIES[name]
    return Sibling(bug.op, bug.kernel, f"{bug.kernel.partition(':')[0]}:{correct}", says, promises=bug.promises)


def pair(file: str, names: str, op: str, says: str, profile: str = "quick") -> Sibling:
    """A pair in a file of the tests. names: of the incorrect and the correct kernel."""
    incorrect, correct = (f"{FOLDER / file}.py:{name}" for name in names.split())
    return Sibling(op, incorrect, correct, says, profile)


PAGES, STEPS, SIZES = "siblings/pages", "siblings/steps", "siblings/thresholds"
SIZES_IN_SOURCE = "harness/check/threshold_kernels"
SIBLINGS: Mapping[str, Sibling] = {
    # keys that are free of queries, in pages and without
    "no keys, divided": entry("A23", "correct", "got nan, reference 0"),
    "no keys, merged": entry("A24", "correct", "got nan, reference 0"),
    "no keys, unwritten": entry("A25", "correct", "never written"),
    "splits of the first call": entry("A26", "correct", "the kernel is not deterministic"),
    "tail of the last page": pair(PAGES, "incorrect_tail correct_tables", "attention", "in page"),
    "neighbouring pages": pair(PAGES, "incorrect_neighbours correct_tables", "attention", "in pages"),
    "row of a table": pair(PAGES, "incorrect_row correct_tables", "attention", "contains sequence 0"),
    "full last page": pair(PAGES, "incorrect_last_page correct_lists", "attention", "in pages"),
    # drafts
    "a step without drafts": entry("V6", "gated_delta_rule_verify", "a=3"),
    "no first snapshot": entry("V7", "ssd_verify", "slot 0"),
    # which gradients are asked, how they arrive, and modes
    "sinks alone": entry("A27", "correct", "with a gradient of sinks alone"),
    "frozen inputs": entry("C53", "weight_of_any_inputs", "with a gradient of weight alone"),
    "a frozen head": entry("N15", "linear_cross_entropy", "with a gradient of x alone"),
    "a second backward pass": entry("N10", "linear_cross_entropy", "in a second backward pass over one graph"),
    "the gradient of a sum": entry("N11", "token_logprobs", "of one element, as of a sum"),
    "after inference mode": entry("R20", "rope", "after a first call under torch.inference_mode"),
    "decode in inference mode": pair(
        STEPS, "incorrect_decode correct_decode", "attention", "under torch.inference_mode"
    ),
    "autocast": pair(STEPS, "incorrect_autocast correct_autocast", "causal_conv1d", "under autocast to bfloat16"),
    "deterministic algorithms": pair(
        STEPS,
        "incorrect_deterministic correct_deterministic",
        "causal_conv1d",
        "and torch's deterministic algorithms on",
    ),
    # tensors that change in the backward pass
    "logits overwritten in backward": entry("N12", "cross_entropy_sum", "logits was changed during the backward pass"),
    "a gradient in the logits": entry("N13", "cross_entropy_sum", "logits was changed by the kernel"),
    "output as workspace": pair(
        STEPS,
        "incorrect_recomputation correct_recomputation",
        "causal_conv1d",
        "y was changed during the backward pass",
    ),
    # one thing changes between two calls
    "other offsets": entry("R19", "rope", "with another offsets, after calls without this change"),
    "scale of the first call": pair(STEPS, "incorrect_scale correct_scale", "attention", "softmax_scale=0.3"),
    # numbers of the source
    "padded vocabulary": entry("N14", "linear_cross_entropy", "loss follows no reduction"),
    "channels": pair(SIZES, "incorrect_channels correct_channels", "causal_conv1d", "d=257"),
    "vocabulary": pair(SIZES, "incorrect_vocabulary correct_vocabulary", "token_logprobs", "nv=1025"),
    "head width": pair(SIZES, "incorrect_width correct_width", "attention", "k=129"),
    "requests": pair(SIZES, "incorrect_requests correct_requests", "causal_conv1d_update", "sequence 64"),
    "slots": pair(SIZES, "incorrect_slots correct_slots", "cache_write", "slot 256"),
    "keys": pair(SIZES, "incorrect_keys correct_keys", "attention", "keys [513]"),
    "rows in 16 bits": pair(
        SIZES, "incorrect_integers correct_integers", "causal_conv1d", "rows 32768 to", profile="standard"
    ),
    "a config": pair(SIZES_IN_SOURCE, "length_past_a_config correct", "causal_conv1d", "row 4096 of the pack"),
    "an imported constant": pair(SIZES_IN_SOURCE, "sequences_past_a_module correct", "causal_conv1d", "sequence 300"),
    "a default": pair(
        SIZES_IN_SOURCE, "sequences_past_a_default correct", "causal_conv1d", "sequence 5000", profile="standard"
    ),
    # inputs that a kernel may omit
    "no gate": entry("L18", "simple_gla", "without g"),
    "no beta": pair(STEPS, "incorrect_beta correct_beta", "gated_delta_rule", "without beta"),
    # gradients whose terms cancel
    "a transpose in 16 bits": entry("L17", "simple_gla", "gradient of g"),
}
SAMPLE = ("slots",)

pytestmark = pytest.mark.usefixtures("working_folder")


def marked(names: Mapping[str, Any]) -> list[Any]:
    """A sample here, for time; the others are a proof."""
    return [pytest.param(name, marks=[] if name in SAMPLE else pytest.mark.proof) for name in names]


@pytest.mark.parametrize("name", marked(SIBLINGS))
def test_the_incorrect_kernel_fails_and_the_report_names_the_cause(name: str) -> None:
    sibling = SIBLINGS[name]
    options: dict[str, Any] = {"dtypes": ["fp32"]} if name in SAMPLE else {}  # for time
    with pytest.raises(CheckFailed) as failed:
        sibling.check(sibling.incorrect, sibling.profile, **options)
    assert sibling.says in str(failed.value)


@pytest.mark.proof
@pytest.mark.parametrize("profile", ["quick", "standard"])
@pytest.mark.parametrize("correct", dict.fromkeys(sibling.correct for sibling in SIBLINGS.values()))
def test_the_correct_kernel_passes(correct: str, profile: str) -> None:
    sibling = next(sibling for sibling in SIBLINGS.values() if sibling.correct == correct)
    sibling.check(correct, profile)


def test_half_of_the_pairs_follow_a_report() -> None:
    reported = [s for s in SIBLINGS.values() if any(s.incorrect == e.kernel and e.links for e in ENTRIES.values())]
    assert 2 * len(reported) >= len(SIBLINGS) - 3  # three others, of pages, have their links in tests/siblings
