"""Kernels on CPU tensors are correct or refuse, and debugging tools run them, without preparation."""

import importlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import packproof
from packproof.base.errors import ArgumentError, UsageError
from packproof.properties.cases.case import Case
from tests.in_process import imports_of

HERE = Path(__file__).parent
SCALED = """
import os, torch, triton, triton.language as tl

@triton.jit
def _scale(x, weight, y, n, d: tl.constexpr, wrong: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    value = tl.load(x + i, i < n).to(tl.float32) * tl.load(weight + i % d, i < n).to(tl.float32)
    tl.store(y + i, (value + wrong).to(y.dtype.element_ty), i < n)

def scaled(x, weight, *, cu_seqlens, wrong=0):
    y = torch.empty_like(x)
    _scale[(1,)](x, weight, y, x.numel(), x.shape[1], wrong, triton.next_power_of_2(max(x.numel(), 1)))
    return y

def off(x, weight, *, cu_seqlens):
    return scaled(x, weight, cu_seqlens=cu_seqlens, wrong=1)

def beside_a_gpu(x, weight, *, cu_seqlens):
    if os.environ.get("TRITON_INTERPRET") != "1":  # Triton's message on a machine with a GPU
        raise ValueError("Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)")
    return scaled(x, weight, cu_seqlens=cu_seqlens)
"""
NOT_INTERPRETED = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted in this process"
)


def python(*arguments: str, interpret: str = "1") -> str:
    """What a fresh Python prints."""
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent.parent), *(path for path in sys.path if path)])
    ran = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.proof
def test_interpretation_that_is_requested_too_late_is_refused() -> None:
    """By kernels imported after the request, and by those that share modules with others imported before."""
    printed = python(
        "-c",
        """
import os, torch, packproof
x, table, cu_seqlens = torch.zeros(2, 1, 2), torch.zeros(2, 1), torch.tensor([0, 2])
packproof.kernels.rope
os.environ["TRITON_INTERPRET"] = "1"
for call in (
    lambda: packproof.kernels.rope(x, table, table, cu_seqlens=cu_seqlens),
    lambda: packproof.kernels.causal_conv1d(x[..., 0], torch.ones(1, 4), cu_seqlens=cu_seqlens),
    lambda: packproof.diff(lambda x, weight, *, cu_seqlens: x, case=[2], op="causal_conv1d"),
):
    try:
        call()
    except packproof.PackproofError as error:
        print(type(error).__name__, error)
""",
        interpret="0",
    )
    [rope, convolution, tool] = printed.splitlines()
    assert rope.startswith("ArgumentError rope: the tensors are on cpu")
    assert convolution.startswith("PackproofError TRITON_INTERPRET=1 was set after triton was imported")
    assert tool == convolution


@pytest.mark.proof
def test_debugging_tools_repair_the_interpreter_for_a_third_party_kernel(tmp_path: Path) -> None:
    """In the process that runs it, also for a closure; nothing else in packproof has repaired it there."""
    (tmp_path / "scale.py").write_text(SCALED)
    printed = python(
        "-c",
        f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import packproof, scale
from packproof.properties.cases.case import Case
from tests.harness.rogues_op import SCALED
from tests.kernels.test_on_cpu import forward_only
case = Case((3, 0, 2), "bfloat16", tuple(SCALED.sizes[0].items()))
for kernel in (lambda x, weight, *, cu_seqlens: scale.scaled(x, weight, cu_seqlens=cu_seqlens), scale.off):
    print(len(packproof.diff(kernel, case=case, op=forward_only(SCALED)).divergences))
""",
    )
    assert printed == "0\n1\n"


@NOT_INTERPRETED
def test_a_kernel_that_is_not_interpreted_refuses_cpu_tensors() -> None:
    with pytest.raises(ArgumentError, match="set TRITON_INTERPRET=1 before triton is imported"):
        packproof.kernels.rope(
            *(torch.zeros(2, 1, 2), torch.zeros(2, 1), torch.zeros(2, 1)), cu_seqlens=torch.tensor([0, 2])
        )


@NOT_INTERPRETED
def test_debugging_tools_interpret_a_third_party_kernel(tmp_path: Path) -> None:
    from tests.harness.rogues_op import SCALED as OP  # noqa: PLC0415

    op, file = forward_only(OP), tmp_path / "scale.py"
    file.write_text(SCALED)
    case = Case((3, 0, 2), "bfloat16", tuple(OP.sizes[0].items()))
    for name in ("scaled", "beside_a_gpu"):
        assert not packproof.diff(f"{file}:{name}", case=case, op=op)
    found = packproof.diff(f"{file}:off", case=case, op=op)
    assert [(d.tensor, d.rows) for d in found.divergences] == [("y", 5)]

    with imports_of(tmp_path):
        scale = importlib.import_module("scale")
        inputs = {"x": torch.linspace(-1, 1, 10).view(5, 2).bfloat16(), "weight": torch.tensor([0.3, -0.7]).bfloat16()}
        packproof.gradcheck(scale.scaled, inputs, cu_seqlens=torch.tensor([0, 3, 5]), op=op)
        with pytest.raises(packproof.CheckFailed, match="scaled is wrong in 1 tensor\n    y: sequence"):
            packproof.gradcheck(scale.off, inputs, cu_seqlens=torch.tensor([0, 3, 5]), op=op)


@NOT_INTERPRETED
def test_gradcheck_gives_the_way_out_where_no_worker_can_import_the_kernel() -> None:
    x = torch.randn(4, 1, 2)

    def closure(x, cos, sin, *, cu_seqlens):
        return packproof.kernels.rope(x, cos, sin, cu_seqlens=cu_seqlens)

    inputs = {"x": x, "cos": torch.ones(4, 1), "sin": torch.zeros(4, 1)}
    packproof.gradcheck(packproof.kernels.rope, inputs, cu_seqlens=torch.tensor([0, 4]), op="rope")
    with pytest.raises(UsageError, match=r"set TRITON_INTERPRET=1 before triton is imported, or give the kernel as"):
        packproof.gradcheck(closure, inputs, cu_seqlens=torch.tensor([0, 4]), op="rope")


def forward_only(op: packproof.Op) -> packproof.Op:
    """The op with all inputs constant, so that it has no gradients."""
    return replace(op, constants=frozenset(op.inputs))
