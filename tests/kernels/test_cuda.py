"""Which implementation runs, the message if it cannot, and that CUDA C++ sources name what the wrappers pass."""

import pytest
import torch

from packproof.base.errors import ArgumentError
from packproof.kernels import cuda, selective_scan_bwd, selective_scan_fwd, selective_scan_launch, ssd_cuda_launch


def test_auto_takes_cuda_where_it_can_run_and_an_explicit_choice_is_kept() -> None:
    assert cuda.uses_cuda("ssd", "auto", "")
    assert not cuda.uses_cuda("ssd", "auto", "it is raining")
    assert cuda.uses_cuda("ssd", "cuda", "")
    assert not cuda.uses_cuda("ssd", "triton", "")


def test_cuda_where_it_cannot_run_is_refused_with_the_reason_and_the_way_out() -> None:
    with pytest.raises(
        ArgumentError, match=r"ssd: impl is 'cuda' but it is raining\n +impl='triton' computes the same"
    ):
        cuda.uses_cuda("ssd", "cuda", "it is raining")


def test_another_implementation_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ArgumentError, match="ssd: impl is 'fast' but one of 'auto', 'triton', 'cuda' was expected"):
        cuda.uses_cuda("ssd", "fast", "")


def test_tensors_on_a_cpu_are_a_reason() -> None:
    assert cuda.missing_requirement(torch.device("cpu")) == "it needs an NVIDIA GPU and the tensors are on cpu"


@pytest.mark.parametrize("kernel", cuda.signatures("selective_scan.cu"))
def test_the_scan_in_cuda_takes_arguments_of_the_one_in_triton(kernel: str) -> None:
    home = selective_scan_bwd if "_bwd_" in kernel else selective_scan_fwd
    assert set(cuda.signatures("selective_scan.cu")[kernel]) <= set(getattr(home, kernel).arg_names)


@pytest.mark.parametrize("states", [64, 128])
@pytest.mark.parametrize("source", ["ssd.cu", "ssd_bwd.cu"])
def test_ssd_compiles_without_a_gpu(source: str, states: int) -> None:
    pytest.importorskip("cuda.core")
    for chosen in (True, False):
        code = cuda.compile_source(source, "sm_90a", ssd_cuda_launch.macros(states, 2048, chosen, chosen, chosen))
        assert code.code_type == "cubin"


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("tokens", selective_scan_launch.DTYPES)
def test_the_scan_compiles_without_a_gpu(tokens: torch.dtype, target: str) -> None:
    pytest.importorskip("cuda.core")
    for gated, softplus in ((True, True), (False, False)):
        code = cuda.compile_source("selective_scan.cu", target, selective_scan_launch.macros(tokens, gated, softplus))
        assert code.code_type == "cubin"
