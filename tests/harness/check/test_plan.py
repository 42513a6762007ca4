"""The cells of a plan, and the units in which they run: directly, without a process."""

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest

from packproof.harness.check.partition import UNITS, CoreShares, CoreSupply, Unit, divide
from packproof.harness.check.plan import plan
from packproof.harness.check.request import CheckRequest
from packproof.harness.check.targets.builtin_kernels import BUILTIN_KERNELS
from packproof.harness.check.targets.target import CheckTarget
from packproof.harness.report.events import Cell
from packproof.properties.declarations.declaration import Declaration
from packproof.properties.declarations.promises import Promises
from packproof.properties.laws.property import Property, SharedResults
from packproof.properties.laws.torch_integration import OPCHECK
from tests.harness.rogues_op import SCALED

PROPERTIES = ("reference", "packing", "causality", "carry", "opcheck")


def target(
    name: str = "m:scaled",
    *,
    dtypes: tuple[str, ...] = ("float32",),
    properties: tuple[str | Property, ...] = PROPERTIES,
    questions: bool = False,
    sanitizer: str | None = None,
) -> CheckTarget:
    request = CheckRequest(name, dtypes=dtypes, properties=properties, questions=questions, sanitizer=sanitizer)
    return CheckTarget(request, name, name, SCALED, SCALED.name, Declaration(parameters=("x", "weight")))


def cells(kernel: CheckTarget) -> tuple[Cell, ...]:
    return plan(kernel.request, [kernel]).cells


def units(kernels: Sequence[CheckTarget], cores: int) -> list[Unit]:
    return list(divide([(kernel, cells(kernel)) for kernel in kernels], cores))


def properties_of(unit: Unit) -> str:
    return " ".join(cell.property for cell in unit.cells)


def test_cells_come_dtype_by_dtype_and_unpromised_ones_last() -> None:
    kernel = target(dtypes=("float32", "bfloat16"), properties=("packing", "determinism"), questions=True)
    listed = [(cell.dtype, cell.property, cell.unpromised, cell.counts) for cell in cells(kernel)]
    for dtype in kernel.dtypes:
        assert [row[1:] for row in listed if row[0] == dtype] == [
            ("packing", "", True),
            ("determinism", "", True),
            ("packing", "same bits", False),
            ("determinism", "same bits", False),
        ]
    assert [row[0] for row in listed] == ["float32"] * 4 + ["bfloat16"] * 4


def test_an_unpromised_property_counts_if_the_request_is_strict() -> None:
    kernel = target(properties=("determinism",), questions=True)
    strict = replace(kernel, request=replace(kernel.request, strict=True))
    assert [cell.counts for cell in cells(kernel)] == [True, False]
    assert [cell.counts for cell in cells(strict)] == [True, True]


def test_a_promise_that_the_kernel_makes_is_no_question() -> None:
    kernel = target(properties=("packing", "determinism"), questions=True)
    promises = Promises(grid="sequence", deterministic=True)
    assert not any(c.unpromised for c in cells(replace(kernel, declared=replace(kernel.declared, promises=promises))))


def test_a_kernel_under_test_for_an_unpromised_property_has_its_cell_alone() -> None:
    kernel = replace(target(properties=("determinism",), questions=True), unpromised="same bits")
    assert [(cell.unpromised, cell.counts) for cell in cells(kernel)] == [("same bits", False)]


def test_a_sanitizer_has_a_cell_and_a_unit_for_each_dtype() -> None:
    kernel = target(dtypes=("float32", "bfloat16"), sanitizer="memcheck")
    planned = units([kernel], 1)
    assert [(unit.kind, properties_of(unit), unit.cells[0].dtype) for unit in planned] == [
        ("sanitize", "memcheck", "float32"),
        ("sanitize", "memcheck", "bfloat16"),
    ]


def test_kernels_with_the_same_variants_are_compiled_once_in_one_unit() -> None:
    builtins = [kernel for kernel in BUILTIN_KERNELS.values() if kernel.op in ("ssd", "simple_gla", "rope")]
    request = CheckRequest(properties=("compile",))
    kernels = [replace(target(builtin.target), request=request, builtin=builtin) for builtin in builtins]
    planned = plan(request, kernels)
    (unit,) = planned.units
    modules = list(dict.fromkeys(builtin.kernel_module for builtin in builtins))
    assert len(modules) < len(builtins)
    assert unit.kind == "compile"
    assert unit.cells == planned.cells
    assert list(unit.kernel_modules.values()) == modules


def test_every_row_of_the_table_has_a_unit_for_all_that_properties_share() -> None:
    assert set(UNITS) == set(get_args(CoreSupply))
    assert all(set(row) == set(get_args(SharedResults)) for row in UNITS.values())


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (1, ["reference packing causality carry", "opcheck"]),
        (2, ["reference", "packing causality carry", "opcheck"]),
        (3, ["reference", "packing causality carry", "opcheck"]),
        (4, ["reference", "packing carry", "causality", "opcheck"]),
        (16, ["reference", "packing carry", "causality", "opcheck"]),
    ],
)
def test_more_cores_share_less(cores: int, expected: list[str]) -> None:
    assert [properties_of(unit) for unit in units([target()], cores)] == expected


@pytest.mark.parametrize(
    ("cores", "kernels", "n_split"),
    [(1, 3, 0), (2, 2, 0), (2, 3, 1), (3, 2, 0), (3, 4, 1), (4, 6, 2), (4, 7, 0)],
)
def test_a_kernel_beside_idle_cores_is_split_in_two(cores: int, kernels: int, n_split: int) -> None:
    """Three on two cores: the third in two halves, one on each core. They share reference answers too."""
    every = [target(str(number), properties=PROPERTIES[:4]) for number in range(kernels)]
    planned = [(unit.target.name, properties_of(unit)) for unit in units(every, cores)]
    reference = ["reference"] if cores > kernels else []
    together = [*reference, "packing causality carry" if reference else "reference packing causality carry"]
    n_whole = kernels - n_split
    expected = [(kernel.name, names) for kernel in every[:n_whole] for names in together]
    halves = ("reference causality", "packing carry")
    assert planned == [*expected, *((kernel.name, half) for kernel in every[n_whole:] for half in halves)]


@pytest.mark.parametrize(("kernels", "dtypes"), [(7, ["float32"]), (8, ["float32", "float64"])])
def test_each_of_many_kernels_has_one_process_for_all_dtypes(kernels: int, dtypes: list[str]) -> None:
    """Four for each core: the dtypes follow one another, and no kernel is split."""
    every = [target(str(k), dtypes=("float32", "float64"), properties=("carry",)) for k in range(kernels)]
    planned = units(every, 2)
    assert [cell.dtype for cell in planned[0].cells] == dtypes
    assert len(planned) * len(dtypes) == 2 * kernels


def test_a_kernel_that_is_listed_twice_needs_cores_twice() -> None:
    assert CoreShares.for_kernels([("m:f", ("float32",))] * 2, 4).cores_per_kernel == 2
    assert CoreShares.for_kernels([], 4).cores_per_kernel == 4


def test_a_skipped_property_has_no_process_of_its_own() -> None:
    """A property that cannot tell has one, and reports why."""

    def reason(_: object) -> str:
        raise RuntimeError("no reason")

    unsure = replace(OPCHECK, name="unsure", skip_reason=reason)
    properties = ("causality", "opcheck", "torch_compile", unsure)
    kernel = target(dtypes=("float64",), properties=properties)
    assert [properties_of(unit) for unit in units([kernel], 2)] == ["causality opcheck torch_compile", "unsure"]


def test_each_cell_has_a_unit_of_its_own_on_request() -> None:
    kernel = target()
    planned = plan(kernel.request, [kernel], one_cell_each=True)
    assert [unit.cells for unit in planned.units] == [(cell,) for cell in planned.cells]
