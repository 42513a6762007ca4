"""A kernel's domain: conditions are data, and every case and every call that a property makes of one lies inside."""

import re
from collections.abc import Callable

import pytest
import torch

from packproof import refs
from packproof.base.errors import UsageError
from packproof.harness.check.probing.conditions import keys_conditions, largest_accepted, sizes_condition
from packproof.properties.cases.case import Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.fitting import find_filler
from packproof.properties.cases.layouts import boundary_classes
from packproof.properties.cases.random_cases import random_cases
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import OPS

DOMAINS = [
    ("attention", "k in (64, 128); k == v"),
    ("attention", "hq // hk in (1, 4); 16 <= k <= 32"),
    ("causal_conv1d", "d % 8 == 0; tokens % 16 == 0; slack == 0"),
    ("causal_conv1d", "length > 0; tokens <= 64; bias"),
    ("causal_conv1d", "sequences <= 4; not (bias and activation == 'silu')"),
    ("rope", "r % 16 == 0"),
    ("ssd", "n in (16, 64); length % 16 == 0"),
    ("attention", "length == 1; length_k > 0"),
    ("attention", "length <= 4; tokens_k % 16 == 0; longest_k <= 512; slack == 0"),
    ("attention", "cu_seqlens_k; length <= length_k"),
    ("attention", "causal or window_size in ((-1, -1), (3, 0))"),
]


@pytest.mark.parametrize(("op", "text"), DOMAINS)
def test_every_case_lies_inside(op: str, text: str) -> None:
    space = Space(OPS[op], "float32", Promises(), domain=Domain.of(text))
    space.domain.check(OPS[op], "a test")
    found = [*golden_cases(space), *random_cases(space, 6, 0)]
    assert len(found) > 15
    for law in PROPERTIES.values():
        for case in law.suited(space, found):
            assert space.domain.allows(OPS[op], case), (law.name, case)


def test_no_case_is_drawn_that_would_not_fit_the_memory() -> None:
    assert not Space(OPS["causal_conv1d"], "float32", Promises(), domain=Domain.of("d > 100000")).plain_sizes


@pytest.mark.parametrize("text", ["tokens % 16 == 0", "tokens % 16 == 0; slack == 0"])
def test_a_multiple_keeps_every_boundary_class(text: str) -> None:
    """Slack fills up, or a last sequence does."""
    whole, part = (Space(OPS["rope"], "float32", Promises(), domain=Domain.of(d)) for d in ("", text))
    every, kept = (
        frozenset().union(*(boundary_classes(c.lengths, 16, 4) for c in golden_cases(s))) for s in (whole, part)
    )
    of_totals = {"total kC", "total kC+1", "total < C", "one sequence", "empty last"}
    assert every - kept <= (of_totals if "slack" in text else set())


@pytest.mark.parametrize("text", ["tokens % 16 == 0", "tokens % 16 == 0; slack == 0", "sequences >= 3; slack == 0"])
def test_a_part_of_a_pack_is_filled_up_and_what_is_made_of_that_cut_off(text: str) -> None:
    op, domain = OPS["causal_conv1d"], Domain.of(text)
    sample = draw(op, Case((5, 0, 3), "float64", (("d", 3), ("w", 4)))).alone(0)
    more = find_filler(op, domain, sample)
    assert more is not None
    filled = sample.followed_by(*more)
    assert domain.holds({"tokens": filled.shape("x")[0], "slack": filled.slack, "sequences": len(filled.lengths)})
    y = refs.causal_conv1d(**filled.inputs, cu_seqlens=filled.cu_seqlens)
    assert isinstance(y, torch.Tensor)
    assert y[:5].equal(refs.causal_conv1d(**sample.inputs, cu_seqlens=sample.cu_seqlens))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("k in", "cannot be read"),
        ("k = 3", "cannot be read"),
        ("__import__('os')", "has \"__import__('os')\""),
        ("k.real == 3", "has 'k.real'"),
        ("k ** 9 == 3", "has 'k ** 9 == 3'"),
        ("'a' * 9 == 3", "has \"'a' * 9\""),
        ("[k for k in (1,)]", "expected comparisons"),
        ("k" * 501, "a condition of 501 characters"),
    ],
)
def test_what_is_no_condition_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Domain.of(text)


# each is legal Python, and as a condition true of every call, of none, or of the opposite
SILENT = {
    "length > 0, d == 8": "write 'length > 0; d == 8'",
    "d % 8": "write 'd % 8 == 0', 'd % 8 != 0'",
    "not d % 8": "write 'd % 8 == 0'",
    "-d": "'-d' is a number",
    "length": "write 'length > 0'",
    "not slack": "write 'slack > 0', 'slack == 0'",
    "bias and d // 8": "write 'd // 8 == 0'",
    "d == 64 or 128": "128 alone is no condition; write 'NAME == 128', or all values in one tuple: 'k in (64, 128)'",
    "'d == 8'": "alone is no condition",
    "True": "True alone is no condition",
    "()": "conditions stand apart by ';'",
    "dtype": "write 'dtype == bf16'",
    "dtype == bf16 or fp16": "'fp16' alone is no condition; write 'dtype == fp16', or 'dtype in (bf16, fp16)'",
    "k == 'bf16'": "a dtype is written without quotes: bf16",
    "d in (64)": "'in' takes a tuple; write 'd in (64,)'",
    "d not in 64": "'not in' takes a tuple; write 'd not in (64,)'",
    "activation in 'silu'": "'in' takes a tuple",
    "d == (64, 128)": "a tuple is compared by 'in'; write 'd in (64, 128)'",
    "d != (64, 128)": "write 'd not in (64, 128)'",
    "(d, w) == (8, 4)": "(d, w) is compared as a whole; write a comparison of each",
    "d in ((64,), 128)": "'(64,)' is compared with a value",
    "(d == 8) == True": "'d == 8' is compared with a value; write each comparison of its own",
    "d < (w or 3)": "'w or 3' is compared with a value",
    "8 == 8": "names nothing of a call",
    "bf16 == fp16": "names nothing of a call",
}


@pytest.mark.parametrize("text", SILENT)
def test_what_python_would_take_for_true_or_false_is_refused_with_the_way_to_write_it(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(SILENT[text])):
        Domain.of(text)
    with pytest.raises(UsageError, match=re.escape(SILENT[text])):
        Domain.of(["d == 8", f"w == 4; {text}"])


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("dtype == float32", "dtype == fp32"),
        ("dtype == torch.float32", "dtype == fp32"),
        ("dtype == 'float32'", "dtype == fp32"),
        ("dtype == 'fp32'", "dtype == fp32"),
        ("dtype in ('bf16', torch.float16, float64)", "dtype in (bf16, fp16, fp64)"),
        ("bias and dtype != 'torch.bfloat16'", "bias and dtype != bf16"),
        ("dtype  ==  fp32", "dtype  ==  fp32"),
    ],
)
def test_a_dtype_is_written_by_any_of_its_names(text: str, short: str) -> None:
    domain = Domain.of(text)
    assert domain.texts == (short,)
    domain.check(OPS["causal_conv1d"], "mine")


@pytest.mark.parametrize(
    "text",
    ["bias", "not bias", "not (bias and initial_states)", "return_final_states", "contiguous and not gradients"],
)
def test_a_flag_stands_alone(text: str) -> None:
    Domain.of(text).check(OPS["causal_conv1d"], "mine")


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("d", "write d == 8"),
        ("not d", "write d == 8"),
        ("bias or activation", "write activation == None or activation == silu"),
    ],
)
def test_a_size_or_an_option_with_values_is_no_flag(text: str, way: str) -> None:
    with pytest.raises(UsageError, match="without a comparison") as refused:
        Domain.of(text).check(OPS["causal_conv1d"], "mine")
    assert way in re.sub("['\"]", "", str(refused.value))


def test_a_condition_that_cannot_be_worked_out_is_named() -> None:
    with pytest.raises(UsageError, match=r"'k % 0 == 0' cannot be worked out"):
        Domain.of("k % 0 == 0").holds({"k": 3})
    with pytest.raises(UsageError, match=r"mine: domain has 'kk' in 'kk > 3', which a call of rope does not have"):
        Domain.of("kk > 3").check(OPS["rope"], "mine")


@pytest.mark.parametrize(
    ("accepted", "refused", "condition"),
    [
        ((8, 16, 24, 32), (1, 3, 12), "k % 8 == 0"),
        ((64, 128), (8, 16, 32, 96, 192, 256), "k in (64, 128)"),
        ((2, 3, 4), (1, 5, 8), "2 <= k <= 4"),
        ((16, 32, 64, 128), (8, 24, 40, 256), "k in (16, 32, 64, 128)"),
        ((16, 32, 48, 64), (8, 24, 80), "k in (16, 32, 48, 64)"),
        ((8, 16, 24, 32, 40), (4, 12, 48), "k % 8 == 0 and k <= 40"),
        ((1, 2, 3), (), ""),
    ],
)
def test_the_plainest_condition_that_fits(accepted: tuple[int, ...], refused: tuple[int, ...], condition: str) -> None:
    found = {**dict.fromkeys(accepted, True), **dict.fromkeys(refused, False)}
    assert sizes_condition("k", found, accepted[0]) == condition


def test_a_limit_is_found_to_the_token() -> None:
    assert largest_accepted(lambda n: n <= 100, 8, 1000, 1, []) == 100
    assert largest_accepted(lambda n: n <= 100, 16, 1000, 16, [96]) == 96


@pytest.mark.parametrize(
    ("accepts", "conditions"),
    [
        (lambda keys: False, ["not cu_seqlens_k"]),
        (lambda keys: True, []),
        (lambda keys: min(keys) > 0, ["length_k > 0"]),
        (lambda keys: all(m % 16 == 0 for m in keys), ["length_k % 16 == 0"]),
        (lambda keys: all(m and m % 16 == 0 for m in keys), ["length_k % 16 == 0", "length_k > 0"]),
        (lambda keys: keys[0] >= 32 and keys[1] >= 48, ["length <= length_k"]),
        (lambda keys: keys[0] <= 32 and keys[1] <= 48, ["length_k <= length"]),
        (lambda keys: keys == (32, 48), ["length_k == length"]),
    ],
)
def test_conditions_on_keys_are_those_of_the_accepted_calls(
    accepts: Callable[[tuple[int, ...]], bool], conditions: list[str]
) -> None:
    assert [*keys_conditions(accepts, (32, 48), ())] == conditions
