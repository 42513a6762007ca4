"""Maps of a failure: where a tensor is wrong, and what reaches what; a correct kernel has neither."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.harness.check.diagnosis.leaks import leak_map
from packproof.harness.check.diagnosis.measure import measure
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.report.maps.measurements import Evidence, Layout, LeakMap, TensorRow, compact
from packproof.harness.report.maps.text import error_lines, leak_lines, small_error_lines
from packproof.museum import convolution
from packproof.properties.calling.tensor_key import TensorKey, gradient
from packproof.properties.cases.case import Case
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.invariance import PACKING
from packproof.properties.ops.catalogue import ATTENTION, CAUSAL_CONV1D, OPS, ROPE
from packproof.properties.ops.op import Op


def case(op: Op, *lengths: int, slack: int = 0, **rest: Any) -> Case:
    options = tuple((name, values[0]) for name, values in op.options.items())
    return Case(lengths, "float32", tuple(op.sizes[0].items()), slack, options=options, **rest)


def kernel_under_test(kernel: Callable[..., Any], op: Op = CAUSAL_CONV1D, **promises: Any) -> KernelUnderTest:
    return KernelUnderTest(op, InProcess(kernel), Promises(**promises))


def measured(kernel: Callable[..., Any], name: str, at: Case, op: Op = CAUSAL_CONV1D, **promises: Any) -> Evidence:
    judged = kernel_under_test(kernel, op, **promises)
    found = first_violation(judged, PROPERTIES[name], at)
    assert found is not None
    return measure(judged, PROPERTIES[name], at, found)


def leaks(found: LeakMap) -> set[tuple[str, str]]:
    """Where from and where to."""
    return {
        (str(column), str(row))
        for row, cells in zip(found.rows, found.cells, strict=True)
        for column, cell in zip(found.columns, cells, strict=True)
        if cell.leaks
    }


def test_the_error_of_a_leak_is_where_it_leaks() -> None:
    errors = measured(convolution.C1, "packing", case(CAUSAL_CONV1D, 2, 5)).errors
    assert errors is not None
    assert [[errors.is_wrong(cell) for cell in row.cells] for row in errors.rows] == [
        [False, False],
        [True, True, True, False, False],
    ]
    assert (errors.tensor, errors.baseline_name, errors.columns) == ("y", "alone", "token")
    first, second = error_lines(errors)[1:]
    assert first == "  sequence 0  ··"
    assert second.startswith("  sequence 1  ██")
    assert second.endswith("··")


def test_the_case_in_which_it_was_found_has_a_map_too() -> None:
    judged, small, large = kernel_under_test(convolution.C1), case(CAUSAL_CONV1D, 1, 1), case(CAUSAL_CONV1D, 5, 0, 7)
    found = first_violation(judged, PACKING, small)
    assert found is not None
    first = measure(judged, PACKING, small, found, large).initial_errors
    assert first is not None
    assert [len(row.cells) for row in first.rows] == [5, 0, 7]
    assert [first.is_wrong(cell) for cell in first.rows[2].cells] == [True] * 3 + [False] * 4
    assert measure(judged, PACKING, small, found, small).initial_errors is None


def test_the_worst_element_has_its_budget_by_terms() -> None:
    worst = measured(convolution.C1, "reference", case(CAUSAL_CONV1D, 1, 1)).worst
    assert worst is not None
    assert worst.location.startswith("sequence 1, token 0, element")
    assert worst.dominant == "accumulation"
    assert worst.error == abs(worst.actual - worst.expected) > 100 * worst.budget


def test_where_bits_had_to_agree_any_difference_is_wrong() -> None:
    found = measured(convolution.C1, "packing", case(CAUSAL_CONV1D, 1, 1), grid="token")
    assert found.errors is not None
    assert found.worst is not None
    assert found.errors.bitwise
    assert found.worst.terms == ()
    assert found.errors.is_wrong(1e-9)


def test_a_leak_map_says_which_token_reaches_which() -> None:
    found = measured(convolution.C1, "packing", case(CAUSAL_CONV1D, 1, 2, 1, slack=1)).leaks
    assert found is not None
    one, two, three = "sequence 0, token 0", "sequence 1, token 0", "sequence 1, token 1"
    four = "sequence 2, token 0"
    assert leaks(found) == {(one, two), (one, three), (one, four), (two, four), (three, four)}
    assert leak_lines(found) == [
        "what reaches y: X leak, # reached as allowed, · allowed but not reached",
        "  sequence 0, token 0  |#|  | | |",
        "  sequence 1, token 0  |X|# | | |",
        "  sequence 1, token 1  |X|##| | |",
        "  sequence 2, token 0  |X|XX|#| |",
        "  slack row 0          | |  | | |",
        "  columns: sequence 0, sequence 1, sequence 2, slack",
        "  changed to other values, one row at a time: x",
    ]


def multiplies(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, **options: Any) -> Tensor:
    """Right for finite values: adds nothing times the next token of the pack."""
    return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, **options) + 0 * x.roll(-1, 0).detach()


def test_a_leak_of_nan_alone_is_found_with_nan() -> None:
    at = case(CAUSAL_CONV1D, 1, 2)
    found = leak_map(kernel_under_test(multiplies), at, TensorKey("y"), nan=True)
    assert found is not None
    assert found.probe == "NaN"
    assert leaks(found) == {
        ("sequence 1, token 0", "sequence 0, token 0"),
        ("sequence 0, token 0", "sequence 1, token 1"),
    }


SAMPLE = ("causal_conv1d", "ssd", "attention", "gated_delta_rule", "rope")  # of each kind of op one


@pytest.mark.parametrize(
    "op", [pytest.param(op, id=name, marks=[pytest.mark.proof] * (name not in SAMPLE)) for name, op in OPS.items()]
)
def test_a_reference_leaks_nowhere(op: Op) -> None:
    """In no output and in no gradient, and what may be reached by the diagonal is reached."""
    judged = kernel_under_test(op.reference, op)
    at = case(op, 3, 0, 2, slack=1)
    if op.carry:
        at = at.replace(present=(op.carry[0],)).with_option(op.carry[2], True)
    sample = judged.sample(at)
    for key in [*map(TensorKey, sample.outputs), *map(gradient, sample.wrt)]:
        found = leak_map(judged, at, key, nan=not key.is_gradient)
        assert found is not None
        assert leaks(found) == set(), key
        if key.name == sample.outputs[0]:
            reached = {
                (c, r)
                for r, cells in zip(found.rows, found.cells, strict=True)
                for c, cell in zip(found.columns, cells, strict=True)
                if cell.reached
            }
            assert {(p, p) for p in found.columns if p.kind == "token"} <= reached


def test_a_causal_op_may_not_look_ahead_and_another_may() -> None:
    at = case(ATTENTION, 3)
    both = leak_map(kernel_under_test(refs.attention, ATTENTION), at, TensorKey("y"))

    def looking(**arguments: Any) -> Tensor:
        return refs.attention(**{**arguments, "causal": False})

    ahead = leak_map(kernel_under_test(looking, ATTENTION), at.with_option("causal", True), TensorKey("y"))
    assert both is not None
    assert ahead is not None
    assert not leaks(both)
    assert leaks(ahead) == {(f"sequence 0, token {a}", f"sequence 0, token {b}") for a in range(3) for b in range(a)}


def test_long_packs_are_cut_and_huge_ones_not_probed() -> None:
    found = measured(convolution.C1, "packing", case(CAUSAL_CONV1D, 100, 3))
    assert found.errors is not None
    assert found.errors.omitted == "tokens before 0 and from 64 on"
    assert found.leaks is None
    assert small_error_lines(found.errors) == []
    assert error_lines(found.errors)[-1] == "  left out: tokens before 0 and from 64 on"
    many = measured(convolution.C1, "reference", case(CAUSAL_CONV1D, *[1] * 40)).errors
    assert many is not None
    assert len(many.rows) == 24
    assert many.omitted == "16 rows"


def test_a_fault_of_the_kernel_leaves_the_layout() -> None:
    def crash(**_: Any) -> Tensor:
        raise ValueError("no")

    found = measured(crash, "packing", case(CAUSAL_CONV1D, 1, 2))
    assert found == Evidence(Layout((1, 2)))


def test_shared_gradients_and_states_have_maps_of_elements() -> None:
    def doubled(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, **options: Any) -> Tensor:
        return refs.causal_conv1d(x, 2 * weight - weight.detach(), cu_seqlens=cu_seqlens, **options)

    found = measured(doubled, "reference", case(CAUSAL_CONV1D, 1, 2))
    assert found.errors is not None
    assert (found.errors.tensor, found.errors.columns) == ("gradient of weight", "element")
    assert [(row.label, len(row.cells)) for row in found.errors.rows] == [("row 0", 4), ("row 1", 4), ("row 2", 4)]
    assert found.leaks is not None
    assert found.leaks.rows == (TensorRow("shared"),)


@pytest.mark.parametrize(
    ("promises", "edges"),
    [
        ({"grid": "pack", "chunk": 4}, ((), (1,), ())),
        ({"grid": "sequence", "chunk": 4}, ((), (4,), ())),
        ({"grid": "token", "chunk": 4}, ((), (), ())),
        ({"chunk": 4}, ((), (), ())),
    ],
)
def test_edges_of_chunks(promises: dict[str, Any], edges: tuple[tuple[int, ...], ...]) -> None:
    layout = Layout.from_promises((3, 5, 4), 0, Promises(**promises))
    assert tuple(tuple(layout.edges(j)) for j in range(3)) == edges


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.01, ""),
        (0.12, "0.1"),
        (1.26, "1.3"),
        (12.3, "12"),
        (999.7, "1e3"),
        (3.2e6, "3e6"),
        (2e12, "2e12"),
        (torch.inf, "∞"),
    ],
)
def test_numbers_in_cells(value: float, text: str) -> None:
    assert compact(value) == text


def test_rope_has_no_leaks_from_tables() -> None:
    """Shared inputs are no columns: what they hold belongs to everybody."""
    found = leak_map(kernel_under_test(refs.rope, ROPE), case(ROPE, 1, 1), TensorKey("y"))
    assert found is not None
    assert found.sources == ("x",)
