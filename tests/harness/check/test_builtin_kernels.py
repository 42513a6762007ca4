"""packproof's own kernels: their promises on a GPU, and their tiles in the interpreter."""

from pathlib import Path

import pytest

from packproof.harness.check.targets.builtin_kernels import BUILTIN_KERNELS, BuiltinKernel
from tests.in_process import imports_of


@pytest.mark.parametrize("own", BUILTIN_KERNELS.values(), ids=BUILTIN_KERNELS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_builtin_kernel_is_deterministic_isolated_and_independent(own: BuiltinKernel, device: str) -> None:
    promises = own.declaration(device).promises
    assert promises.deterministic
    assert promises.isolated
    assert promises.independent


def test_tiles_are_those_of_the_device(tmp_path: Path) -> None:
    declared = {"grid": "sequence", "chunk": 64, "segment": 1024}
    source = f"PROMISES = {declared}\nINTERPRETED = {{'chunk': 16, 'segment': 32}}\n"
    (tmp_path / "two_tiles.py").write_text(source)
    own = BuiltinKernel("ssd", "two_tiles")
    for device, tiles in {"cuda": (64, 1024), "cpu": (16, 32)}.items():
        with imports_of(tmp_path):
            promises = own.declaration(device).promises
        assert (promises.grid, promises.chunk, promises.segment) == ("sequence", *tiles)
