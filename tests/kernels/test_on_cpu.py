"""Kernels on CPU tensors are right or refuse, and debugging tools run them, without preparation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import packproof
from packproof.refs.errors import ArgumentError, UsageError

HERE = Path(__file__).parent
SCALED = """
import torch, triton, triton.language as tl

@triton.jit
def _scale(x, weight, y, n, d: tl.constexpr, wrong: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, i < n) * tl.load(weight + i % d, i < n) + wrong, i < n)

def scaled(x, weight, *, cu_seqlens, wrong=0):
    y = torch.empty_like(x)
    _scale[(1,)](x, weight, y, x.numel(), x.shape[1], wrong, triton.next_power_of_2(max(x.numel(), 1)))
    return y

def off(x, weight, *, cu_seqlens):
    return scaled(x, weight, cu_seqlens=cu_seqlens, wrong=1)
"""


def test_interpreted_kernels_are_within_the_budget() -> None:
    """In values and gradients, with the repair that they install themselves."""
    command = [sys.executable, str(HERE / "on_cpu.py")]
    ran = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("within the budget") == 10


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted in this process")
def test_a_kernel_that_is_not_interpreted_refuses_cpu_tensors() -> None:
    with pytest.raises(ArgumentError, match="set TRITON_INTERPRET=1 before triton is imported"):
        packproof.kernels.rope(
            *(torch.zeros(2, 1, 2), torch.zeros(2, 1), torch.zeros(2, 1)), cu_seqlens=torch.tensor([0, 2])
        )


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted in this process")
def test_diff_interprets_a_triton_kernel(tmp_path: Path) -> None:
    from tests.harness.rogues_op import SCALED as OP  # noqa: PLC0415

    (tmp_path / "scale.py").write_text(SCALED)
    assert not packproof.diff(f"{tmp_path / 'scale.py'}:scaled", case=[3, 0, 2], op=forward_only(OP))
    found = packproof.diff(f"{tmp_path / 'scale.py'}:off", case=[3, 0, 2], op=forward_only(OP))
    assert [(d.tensor, d.rows) for d in found.divergences] == [("y", 5)]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted in this process")
def test_gradcheck_says_how_where_no_worker_can_import_it() -> None:
    x = torch.randn(4, 1, 2)

    def closure(x, cos, sin, *, cu_seqlens):
        return packproof.kernels.rope(x, cos, sin, cu_seqlens=cu_seqlens)

    inputs = {"x": x, "cos": torch.ones(4, 1), "sin": torch.zeros(4, 1)}
    packproof.gradcheck(packproof.kernels.rope, inputs, cu_seqlens=torch.tensor([0, 4]), op="rope")
    with pytest.raises(UsageError, match=r"set TRITON_INTERPRET=1 before triton is imported, or give the kernel as"):
        packproof.gradcheck(closure, inputs, cu_seqlens=torch.tensor([0, 4]), op="rope")


def forward_only(op: packproof.Op) -> packproof.Op:
    """The op with tables alone, which have no gradients."""
    return packproof.Op(**{**vars(op), "constants": frozenset(op.inputs)})
