"""The worker process beside a GPU."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from packproof.base.errors import KernelFault, UsageError
from packproof.harness.process.execution.device import Device
from packproof.harness.process.worker import Worker
from packproof.properties.calling.call import Call

Make = Callable[..., Call]
Rogue = Callable[[str], str]

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_gpu
def test_a_result_comes_back_from_a_gpu(make_call: Make, rogue: Rogue) -> None:
    with Worker(rogue("good"), "cuda", time_limit=60) as worker:
        for guard in (False, True):
            for placement in ("contiguous", "transposed", "sliced"):
                places = dict.fromkeys(("x", "weight", "cotangent:y"), placement)
                call = make_call(2, 0, 3, guard=guard, placement=places)
                result = worker.run(call)
                x, weight, dy = call.inputs["x"], call.inputs["weight"], call.cotangents["y"]
                assert torch.equal(result.outputs["y"], x * weight)
                assert torch.equal(result.gradients["x"], dy * weight)
                torch.testing.assert_close(result.gradients["weight"], (dy * x).sum(0))


@needs_gpu
def test_a_closure_cannot_run_in_a_fork_after_autograd_beside_a_gpu() -> None:
    leaf = torch.ones((), requires_grad=True)
    torch.autograd.grad(leaf * 1, leaf)
    with Worker(lambda x, weight, cu_seqlens: x) as worker, pytest.raises(UsageError, match="autograd beside a GPU"):
        worker.open()


@needs_gpu
@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("indexes_out_of_bounds", "crashed", "CUDA error: device-side assert triggered"),
        ("writes_one_too_many", "memory", r"^wrote past the end of a torch.empty_like of shape \(3, 4\)"),
        ("hang_on_one_token", "hung", "gave no answer within 5 s"),
        ("returns_meta", "malformed", "returned y on meta, expected cuda:0"),
        ("raises", "raised", "ValueError: only even"),
    ],
)
def test_rogues_are_detected_on_a_gpu(make_call: Make, rogue: Rogue, name: str, kind: str, words: str) -> None:
    lengths = (1,) if name == "hang_on_one_token" else (2, 0, 1)
    with Worker(rogue(name), "cuda", time_limit=5, warmup_limit=5 if lengths == (1,) else 60) as worker:
        for _ in range(2):
            with pytest.raises(KernelFault, match=words) as fault:
                worker.run(make_call(*lengths, guard=True))
            assert fault.value.kind == kind


@needs_gpu
def test_triton_is_compiled_on_a_gpu(make_call: Make) -> None:
    x, weight = torch.randn(5, 4), torch.randn(4, 2)
    call = make_call(2, 3, inputs={"x": x, "weight": weight}, guard=True)
    with Worker("packproof.kernels.causal_conv1d:causal_conv1d", "cuda", time_limit=120) as worker:
        result = worker.run(call)
    assert not result.interpreted
    torch.testing.assert_close(result.outputs["y"][0], x[0] * weight[:, 1])


@pytest.mark.proof
def test_workers_on_a_gpu_inherit_the_hash_of_triton() -> None:
    script = (
        "from packproof.harness.process.zygote import prepare_imports; prepare_imports()\n"
        "from triton.runtime.cache import triton_key\n"
        "assert triton_key.cache_info().currsize == 1"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ | {"TRITON_INTERPRET": "0"})


@needs_gpu
def test_an_error_that_a_kernel_leaves_in_the_cuda_runtime_meets_no_later_call() -> None:
    runtime = ctypes.CDLL(None)
    runtime.cudaMemcpy(None, None, ctypes.c_size_t(1), 99)  # there is no such direction
    Device(torch.device("cuda")).take_error()
    torch.zeros(1, device="cuda")
