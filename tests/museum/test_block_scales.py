"""Kernels of block scales in every format: correct ones agree with the references, and every moved scale is found."""

from collections.abc import Iterator, Mapping

from packproof.harness.process.execution.execute import InProcess
from packproof.museum.groups import quantized, scaled
from packproof.properties.cases.case import Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.invariance import REFERENCE
from packproof.properties.ops.catalogue import OPS
from tests.sweeps import sweep

FORMATS = {
    "scaled_grouped_mm": ("mxfp4", "mxfp8", "nvfp4", "fp8"),
    "quantize_blocks": ("mxfp8", "mxfp8_up", "mxfp4", "nvfp4", "fp8"),
}
KERNELS = {"scaled_grouped_mm": scaled, "quantize_blocks": quantized}
CORRECT = {
    "scaled_grouped_mm": ("correct", "dequantized", "row_by_row"),
    "quantize_blocks": ("correct", "by_reciprocals", "in_padded_blocks"),
}
MOVED = {
    "scaled_grouped_mm": (
        *("scales_of_the_next_row", "scales_of_the_next_block", "lanes_one_late", "groups_not_padded"),
        *("padding_multiplied", "read_without_swizzle", "blocks_of_weights_transposed"),
    ),
    "quantize_blocks": (
        *("blocks_one_late", "blocks_of_the_pack", "last_block_reads_the_next_group", "largest_of_the_row_before"),
        *("stored_one_row_late", "stored_one_block_late"),
    ),
}


def in_every_format(kernels: Mapping[str, tuple[str, ...]]) -> list[tuple[str, str, str]]:
    return [(op, name, form) for op, names in kernels.items() for name in names for form in FORMATS[op]]


def cases(op: str, block_format: str) -> Iterator[Case]:
    domain = Domain.of((f"block_format == {block_format!r}",))
    return golden_cases(Space(OPS[op], "float32", Promises(), domain=domain))


def violations(op: str, name: str, block_format: str) -> Iterator[object]:
    """What the comparison with the reference finds in golden layouts."""
    kernel = KernelUnderTest(OPS[op], InProcess(getattr(KERNELS[op], name)), Promises())
    for case in cases(op, block_format):
        yield from REFERENCE.check(kernel, case)


@sweep("kernel", in_every_format(CORRECT)[::2], in_every_format(CORRECT))
def test_a_correct_kernel_agrees_with_the_reference(kernel: tuple[str, str, str]) -> None:
    assert list(violations(*kernel)) == []


@sweep("kernel", in_every_format(MOVED)[::3], in_every_format(MOVED))
def test_a_moved_block_or_scale_is_found(kernel: tuple[str, str, str]) -> None:
    assert next(violations(*kernel), None) is not None
