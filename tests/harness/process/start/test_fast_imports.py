"""What makes importing faster changes nothing else."""

import gc

import pytest

from packproof.harness.process.start.imports import fast_imports


@pytest.mark.parametrize("enabled", [True, False])
def test_after_an_import_garbage_is_collected_as_before(enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        gc.enable() if enabled else gc.disable()
        with fast_imports():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
        with pytest.raises(ImportError), fast_imports():
            raise ImportError
        assert gc.isenabled() == enabled
    finally:
        gc.enable() if was_enabled else gc.disable()
