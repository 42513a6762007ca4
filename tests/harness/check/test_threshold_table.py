"""Kernels that are incorrect past N tokens, sequences or tokens of a sequence: N written in six ways, or hidden."""

from pathlib import Path

import pytest

from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.events import FailureFound

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("working_folder")]

KERNEL = """
import torch
import sizes

BLOCK = {block}


class Config:
    size = {n}


CONFIG = Config()


def convolve(x, weight, cu_seqlens):
    rows, width = torch.arange(len(x)), weight.shape[1]
    ends = torch.cat([cu_seqlens.long(), torch.tensor([len(x)])])
    sequences = torch.searchsorted(ends, rows, right=True) - 1
    lengths = rows - ends[sequences]
    padded = torch.cat([x, x.new_zeros(1, x.shape[1])]).float()
    y = torch.zeros_like(padded[:-1])
    for tap in range(width):
        distance = width - 1 - tap
        y = y + padded[torch.where(lengths >= distance, rows - distance, len(x))] * weight[:, tap].float()
    y = torch.where((rows < cu_seqlens[-1])[:, None], y, torch.zeros_like(y))
    return y, {{"tokens": rows, "sequences": sequences, "length": lengths}}


def kernel(x, weight, *, cu_seqlens{parameter}):
    y, places = convolve(x, weight, cu_seqlens)
    return torch.where((places["{axis}"] >= {limit})[:, None], 2 * y, y)
"""
SIZES = (
    *(("tokens", n) for n in (300, 1_000, 4_096, 65_536)),
    *((axis, n) for axis in ("sequences", "length") for n in (300, 5_000)),
)
WAYS = {
    "literal": "{n}",
    "shift": "{odd} << {shift}",
    "product": "{factor} * BLOCK",
    "default": "size",
    "config": "CONFIG.size",
    "module": "sizes.SIZE",
}


def is_detected(folder: Path, axis: str, n: int, limit: str, profile: str) -> bool:
    """Whether a check of `reference` in fp32 finds a failing case."""
    shift, block = (n & -n).bit_length() - 1, 50 if n % 50 == 0 else 64
    written_limit = limit.format(n=n, odd=n >> shift, shift=shift, factor=n // block)
    parameter = f", size={n}" if limit == "size" else ""
    (folder / "sizes.py").write_text(f"SIZE = {n if limit == 'sizes.SIZE' else 1}\n")
    file = folder / "kernel.py"
    file.write_text(
        KERNEL.format(
            block=block, n=n if limit == "CONFIG.size" else 1, axis=axis, limit=written_limit, parameter=parameter
        )
    )
    request = CheckRequest(
        f"{file}:kernel",
        "causal_conv1d",
        profile=profile,
        dtypes=("float32",),
        properties=("reference",),
        questions=False,
    )
    return any(isinstance(event, FailureFound) for event in run_check(request))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("axis", "n"), SIZES)
def test_a_size_of_the_source_is_detected_at_standard(axis: str, n: int, way: str, working_folder: Path) -> None:
    assert is_detected(working_folder, axis, n, WAYS[way], "standard")


@pytest.mark.parametrize(("axis", "n"), SIZES)
def test_a_hidden_size_is_detected_at_thorough(axis: str, n: int, working_folder: Path) -> None:
    assert is_detected(working_folder, axis, n, "float('{n}')", "thorough")
