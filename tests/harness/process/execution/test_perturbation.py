"""Pauses in PTX, compilers that put them there, and calls repeated under perturbation, as far as no GPU is needed."""

import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import pytest
import torch
from torch import Tensor

from packproof.harness.process.execution.perturbation import ptx, repetition
from packproof.harness.process.execution.perturbation.compilers import pauses_compiled_in
from packproof.harness.process.execution.perturbation.ptx import with_pauses
from packproof.kernels import cuda

PTX = """\
//
.version 8.0
.target sm_90a
.address_size 64
.extern .func  (.param .b32 result) other
(
	.param .b64 from
)
;
.func  (.param .b32 result) helper(.param .b32 a)
{
	.reg .b32 %r<3>;
	ld.param.b32 %r1, [a];
	add.s32 %r2, %r1, 1;
	st.param.b32 [result], %r2;
	ret;
}
.visible .entry kernel(
	.param .u64 y,
	.param .u64 x
)
.reqntid 128
{
	.reg .pred %p<3>;
	.reg .b32 %r<9>;
	.reg .f32 %f<5>;
	.reg .b64 %rd<4>;
	.shared .align 16 .b8 tile[2048];
	.shared .align 8 .b8 barrier[8];
	ld.param.u64 %rd1, [x];
	cvta.to.global.u64 %rd2, %rd1;
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, barrier;
	setp.eq.s32 %p1, %r1, 0;
	@%p1 mbarrier.init.shared::cta.b64 [%r2], 128;
	bar.sync 	0;
$L__BB0_1: // a loop
	ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd2];
	// begin inline asm
	cp.async.wait_group 0;
	// end inline asm
	mbarrier.arrive.shared::cta.b64 _, [%r2];
	{
.reg .pred done;
again:
mbarrier.try_wait.parity.shared::cta.b64 done, [%r2], 0;
@!done bra again;
}
	st.shared.f32 [tile], %f1;
	@%p1 atom.global.add.f32 %f2, [%rd2], %f1;
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 0;
	fence.proxy.async.shared::cta;
	st.global.f32 [%rd2], %f2;
	@%p1 bra $L__BB0_1;
	ret;
}
	.section	.debug_abbrev
	{
.b8 1
	}
"""
# bar.sync, wait_group, arrive, try_wait, wgmma.wait_group, fence; ld.global, st.shared, atom, st.global
PLACES = 10
FUNCTIONS = 2


def _ptxas() -> str:
    spec = importlib.util.find_spec("triton")
    binary = Path(spec.origin or "").parent / "backends/nvidia/bin/ptxas" if spec else Path("none")
    if not binary.exists():
        pytest.skip("no ptxas comes with this triton")
    return str(binary)


def test_pauses_are_all_that_is_added() -> None:
    changed = with_pauses(PTX, seed=5)
    assert changed.count(ptx._PAUSE) == 2 * PLACES
    entry = ptx._ENTRY.replace("SEED", "5")
    assert changed.count(entry) == FUNCTIONS
    assert changed.replace(ptx._PAUSE, "").replace(entry, "") == PTX


def test_barriers_and_memory_have_a_pause_on_both_sides() -> None:
    changed = with_pauses(PTX, seed=5)
    for line in ("	bar.sync 	0;\n", "	st.shared.f32 [tile], %f1;\n", "	wgmma.wait_group.sync.aligned 0;\n"):
        assert f"{ptx._PAUSE}{line}{ptx._PAUSE}" in changed
    for line in (
        "	ld.param.u64 %rd1, [x];\n",
        "	@%p1 mbarrier.init.shared::cta.b64 [%r2], 128;\n",
    ):
        assert f"{ptx._PAUSE}{line}" not in changed, line


def test_ptxas_takes_it(tmp_path: Path) -> None:
    module = tmp_path / "kernel.ptx"
    for text in (PTX, with_pauses(PTX, seed=5)):
        module.write_text(text, encoding="utf-8")
        command = [_ptxas(), "-arch=sm_90a", str(module), "-o", str(tmp_path / "kernel.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_of_many_loads_the_seed_draws_some() -> None:
    load = "	ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd2];\n"
    many = PTX.replace(load, load * 1000)
    first, again, other = (with_pauses(many, seed) for seed in (1, 1, 2))
    assert first == again
    assert first.count(ptx._PAUSE) < 2 * (ptx._MOST_MEMORY + PLACES)
    assert first.replace("xor.b32 %packproof_state, %packproof_state, 1;", "") != other


TRITON = """\
import torch, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from packproof.harness.process.execution.perturbation.compilers import pauses_compiled_in

@triton.jit
def kernel(x, N: tl.constexpr):
    tl.store(x, tl.sum(tl.load(x + tl.arange(0, N))))

class Driver:
    get_current_device = get_current_stream = lambda self, *_: 0
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)

triton.runtime.driver.set_active(Driver())
compiled = []
for seed in (None, 3, None, 3, 4):
    if seed is None:
        compiled.append(kernel.warmup(torch.float32, 512, grid=(1,)))
    else:
        with pauses_compiled_in(seed):
            compiled.append(kernel.warmup(torch.float32, 512, grid=(1,)))
print([k.asm["ptx"].count("nanosleep") > 0 for k in compiled])
print(compiled[0] is compiled[2], compiled[1] is compiled[3], len({k.hash for k in compiled}))  # a hash names a file
"""


@pytest.mark.proof
def test_triton_keeps_kernels_with_pauses_apart_on_disk_too(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    script = tmp_path / "compiles.py"
    script.write_text(TRITON, encoding="utf-8")
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[False, True, False, True, True]", "True True 3"], done.stderr


class _Program:
    """cuda.core's, which compiles nothing: PTX becomes a cubin that says what it was made of."""

    def __init__(self, text: str, kind: str, options: object) -> None:
        self._text, self._kind = text, kind

    def compile(self, target: str, cache: object = None) -> object:
        return SimpleNamespace(code=(PTX if target == "ptx" else f"cubin of {self._kind}: {self._text}").encode())


def test_the_sources_in_cuda_are_compiled_from_changed_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    core: Any = ModuleType("cuda.core")
    core.Program, core.ProgramOptions = _Program, lambda **_: None
    core.utils = ModuleType("cuda.core.utils")
    core.utils.FileStreamProgramCache = pytest.MonkeyPatch.context
    for name, module in {"cuda": ModuleType("cuda"), "cuda.core": core, "cuda.core.utils": core.utils}.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pauses_compiled_in(7):
        changed = cuda.compile_source("causal_conv1d.cu", "sm_90", ())
    plain = cuda.compile_source("causal_conv1d.cu", "sm_90", ())
    assert changed.code.decode() == f"cubin of ptx: {with_pauses(PTX, 7)}"
    assert plain.code.decode().startswith("cubin of c++: ")


class NoLoad:
    """No other work: there is no GPU."""

    def __init__(self, device: torch.device, random_source: random.Random) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def hold_back(self) -> None:
        pass

    def disturb(self) -> None:
        pass


def _repeat(values: list[float], monkeypatch: pytest.MonkeyPatch) -> repetition.Repetition[dict[str, Tensor]]:
    monkeypatch.setattr(repetition, "Load", NoLoad)
    answers = iter([values[0], values[0], *values[1:]])  # the second call compiles

    def call() -> dict[str, Tensor]:
        return {"y": torch.tensor([0.0, next(answers)])}

    return repetition.repeat_perturbed(
        call, lambda: None, dict, calls=len(values) - 1, device=torch.device("cpu"), seed=0
    )


@pytest.mark.parametrize(
    ("values", "different", "farthest"),
    [
        ([1.0] * 7, 0, 1.0),
        ([1.0, 1.0, 3.0, 1.0, -4.0, 1.0], 2, -4.0),
        ([torch.nan] * 6, 0, torch.nan),
        ([1.0, 5.0, torch.nan, 1.0], 2, torch.nan),
        ([torch.inf, torch.inf, 1.0], 1, 1.0),
        ([0.0, 1e-45], 1, 1e-45),
    ],
)
def test_the_farthest_answer_is_kept_and_all_others_are_counted(
    values: list[float], different: int, farthest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated = _repeat(values, monkeypatch)
    assert (repeated.calls, repeated.different) == (len(values) - 1, different)
    assert torch.equal(repeated.farthest["y"][1:].nan_to_num(7), torch.tensor([farthest]).nan_to_num(7))
