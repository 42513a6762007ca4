"""The kernels of these tests are CUDA C++: NVRTC compiles them for Hopper, without a GPU."""

from pathlib import Path

import pytest

from packproof.kernels import cuda
from tests.kernels.emulator.trials.running import MACROS


@pytest.mark.parametrize("source", ["pipeline.cu", "products.cu", "wrappers.cu"])
def test_it_compiles_for_hopper(source: str) -> None:
    pytest.importorskip("cuda.core")
    assert cuda.compile_source(str(Path(__file__).parent / source), "sm_90a", MACROS).code_type == "cubin"
