"""Every property fails on a deliberately incorrect kernel, and passes the reference in its place."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor

from packproof import refs
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.calling.tensor_key import gradient
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.declaration import describe_kernel
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.comparison import record_comparisons
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.invariance import REFERENCE
from packproof.properties.laws.large_calls import Limits
from packproof.properties.laws.size import size_property
from packproof.properties.laws.torch_integration import OPCHECK, TORCH_COMPILE
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.catalogue import OPS
from tests.properties import segments, wrong
from tests.properties.linear_bugs import DELTA, LINEAR
from tests.properties.wrong import INCORRECT
from tests.sweeps import sweep

ON_CPU = [(k.law, k.op, k.function) for k in INCORRECT if not k.on_gpu]
FIRST = {law: (op, function) for law, op, function in reversed(ON_CPU)}


# what only the memory of a GPU holds, at sizes that any has
SMALL = PROPERTIES | {"size": size_property(Limits(sequences=40, tokens=640, history=640, elements=(2**17,)))}


def in_process(function: Callable[..., object]) -> InProcess:
    return InProcess(function, offset_reach={"beyond 2^31": 2**15, "beyond 2^32": 2**16})


def judge(name: str, op: str, function: Callable[..., object], promises: Promises) -> Violation | None:
    """The first violation over the golden cases."""
    names = describe_kernel(function)["parameters"]
    space = Space(OPS[op], "float32", promises, None if names is None else frozenset(names), on_gpu=name == "size")
    kernel = KernelUnderTest(OPS[op], in_process(function), promises)
    cases = list(golden_cases(space))
    for case in SMALL[name].suited(space, cases):
        found = first_violation(kernel, SMALL[name], case)
        if found is not None:
            return found
    return None


@pytest.mark.parametrize("name", ["packing", "isolation", "causality", "permutation", "carry", "determinism"])
def test_two_runs_that_disagree_are_shown_beside_the_reference(name: str) -> None:
    op, function = FIRST[name]
    found = judge(name, op, function, Promises(isolated=name == "isolation", deterministic=name == "determinism"))
    assert found is not None
    assert found.expected is not None
    assert found.other in found.side or "both" in found.side


@pytest.mark.parametrize("name", ["packing", "isolation", "permutation"])
def test_every_pack_of_several_is_compared_whichever_of_them_are_empty(name: str) -> None:
    promises = Promises()
    space, kernel = (
        Space(OPS["rope"], "float32", promises),
        KernelUnderTest(OPS["rope"], InProcess(refs.rope), promises),
    )
    for case in PROPERTIES[name].suited(space, list(golden_cases(space))):
        if case.n_tokens and len(case.lengths) > 1:
            with record_comparisons() as made:
                assert first_violation(kernel, PROPERTIES[name], case.replace(slack=0)) is None
            assert made, case


def test_every_property_has_an_incorrect_kernel() -> None:
    assert {kernel.law for kernel in INCORRECT} == set(PROPERTIES)


@pytest.mark.parametrize(("name", "op", "function"), ON_CPU)
def test_fails_on_an_incorrect_kernel(name: str, op: str, function: object) -> None:
    promises = Promises(isolated=name == "isolation", steady=name == "steady")
    assert judge(name, op, function, promises) is not None


# those of the linear family, attention, SSD and the scan take a second each: their forms are in test_absolute, and
# attention has these laws in test_attention; those on pools are in test_pool; Inductor takes five seconds: a correct
# kernel is compiled in tests/tools/cli/test_targets.py
def _seconds(name: str, op: str) -> bool:
    slow_op = op in (*LINEAR, *DELTA, "attention", "ssd", "selective_scan") or bool(OPS[op].pool)
    return slow_op or name == "torch_compile"


LISTED = [  # of the others one in twelve here, for time; `make proof` takes them all
    pytest.param(name, op, marks=[pytest.mark.proof] if _seconds(name, op) or (i + j) % 12 else [])
    for i, op in enumerate(OPS)
    for j, name in enumerate(PROPERTIES)
]


@pytest.mark.parametrize(("name", "op"), LISTED)
def test_passes_the_reference(name: str, op: str) -> None:
    promises = Promises(isolated=True, deterministic=True)
    assert judge(name, op, getattr(refs, op), promises) is None


SEGMENTS = Promises("sequence", segments.CHUNK, "fp32", state_entry="carry", segment=segments.SEGMENT)
CHUNKS = Promises("sequence", segments.CHUNK, "fp32", state_entry="carry")


@sweep("name", ["packing"], ["carry", "reference"])
def test_passes_a_kernel_that_hands_over_where_it_promises(name: str) -> None:
    assert judge(name, "selective_scan", segments.right, SEGMENTS) is None


@pytest.mark.parametrize("function", [segments.loses_the_carry, segments.passes_on_its_own])
def test_a_fault_past_a_segment_shows_once_its_length_is_promised(function: Callable[..., object]) -> None:
    assert judge("reference", "selective_scan", function, SEGMENTS) is not None


def test_no_fault_past_a_segment_shows_without_the_promise() -> None:
    assert judge("reference", "selective_scan", segments.loses_the_carry, CHUNKS) is None


def test_a_state_folded_in_within_a_segment_is_no_carry_at_its_chunks() -> None:
    assert judge("carry", "selective_scan", segments.right, CHUNKS) is not None


def test_a_given_state_that_enters_otherwise_than_one_handed_over_shows_at_a_segment() -> None:
    assert judge("reference", "selective_scan", segments.folds_the_first_only, SEGMENTS) is None
    assert judge("carry", "selective_scan", segments.folds_the_first_only, SEGMENTS) is not None


@pytest.mark.proof
def test_on_a_gpu_a_gradient_is_a_sum_over_thousands_of_tokens() -> None:
    """The small packs, which are all that a CPU has time for, would pass it."""
    promises = Promises()
    kernel = KernelUnderTest(OPS["causal_conv1d"], InProcess(wrong.reference_sums), promises)
    space = Space(OPS["causal_conv1d"], "float32", promises, frozenset({"x", "weight"}), on_gpu=True)
    assert REFERENCE.suited(replace(space, on_gpu=False), []) == []
    [case] = REFERENCE.suited(space, [])
    case = case.replace(sizes=(("d", 1), ("w", 1)))
    assert first_violation(kernel, REFERENCE, case.replace(lengths=(1, 400, 0, 300))) is None
    found = first_violation(kernel, REFERENCE, case)
    assert found is not None
    assert found.tensor == gradient("weight")


@pytest.mark.parametrize("op", ["rope", "rope_qk"])
def test_an_op_without_such_sums_gets_no_such_pack(op: str) -> None:
    assert REFERENCE.suited(Space(OPS[op], "float32", Promises(), on_gpu=True), []) == []


@pytest.mark.parametrize(
    ("name", "raises", "note"),
    [
        ("metadata", lambda x, offsets: len(offsets) == 1, "with zero sequences"),
        ("metadata", lambda x, offsets: len(offsets) > 1 and offsets[1] == 0, "with empty sequences put in"),
        ("isolation", lambda x, offsets: bool((x > 1e20).any()), "with 1e+30 in the other sequences"),
        ("permutation", lambda x, offsets: len(offsets) > 1 and offsets[1] == 3, "in the order [1, 0]"),
    ],
)
def test_a_fault_says_what_had_been_done_to_the_pack(
    name: str, raises: Callable[[Tensor, Tensor], bool], note: str
) -> None:
    def refusing(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        x = x * 1  # past its argument checks
        if raises(x, cu_seqlens):
            raise ValueError("not today")
        return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)

    promises = Promises(isolated=True)
    kernel = KernelUnderTest(OPS["causal_conv1d"], InProcess(refusing), promises)
    case = Case((5, 3), "float32", sizes=(("d", 3), ("w", 4)), seed=1)
    found = first_violation(kernel, PROPERTIES[name], case)
    assert found is not None
    assert (found.fault, found.note) == ("raised", note)


def test_a_kernel_that_registers_no_operator_has_nothing_for_opcheck() -> None:
    kernel = KernelUnderTest(OPS["causal_conv1d"], InProcess(refs.causal_conv1d), Promises())
    space = Space(OPS["causal_conv1d"], "float32", Promises())
    cases = OPCHECK.suited(space, list(golden_cases(space)))
    assert cases
    with record_comparisons() as made:
        assert not any(first_violation(kernel, OPCHECK, case) for case in cases)
    assert not made


@pytest.mark.parametrize("op", OPS)
def test_on_a_cpu_one_small_case_is_compiled_with_an_empty_sequence(op: str) -> None:
    space = Space(OPS[op], "float32", Promises())
    assert [case.lengths for case in TORCH_COMPILE.suited(space, list(golden_cases(space)))] == [(5, 0, 7)]


def test_a_second_packing_keeps_its_sequences() -> None:
    space = Space(OPS["attention"], "float32", Promises())
    (case,) = OPCHECK.cases(space, [Case((0, 5, 0, 7), "float32", (("hq", 1),), key_lengths=(1, 5, 2, 7))])
    assert case.lengths == (0, 5, 0, 7)
