"""packproof's own kernels: their promises on a GPU, and their tiles in the interpreter."""

import sys
from types import ModuleType

import pytest

from packproof.harness.check.targets.builtin_kernels import BUILTIN_KERNELS, BuiltinKernel


@pytest.mark.parametrize("own", BUILTIN_KERNELS.values(), ids=BUILTIN_KERNELS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_builtin_kernel_is_deterministic_isolated_and_independent(own: BuiltinKernel, device: str) -> None:
    promises = own.declaration(device).promises
    assert promises.deterministic
    assert promises.isolated
    assert promises.independent


def test_tiles_are_those_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("two_tiles")
    declared = {"grid": "sequence", "chunk": 64, "segment": 1024}
    vars(module).update(PROMISES=declared, INTERPRETED={"chunk": 16, "segment": 32})
    monkeypatch.setitem(sys.modules, "two_tiles", module)
    own = BuiltinKernel("ssd", "two_tiles")
    for device, tiles in {"cuda": (64, 1024), "cpu": (16, 32)}.items():
        promises = own.declaration(device).promises
        assert (promises.grid, promises.chunk, promises.segment) == ("sequence", *tiles)
