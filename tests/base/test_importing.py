"""A file of a user's is run as it is now."""

import os
import sys
from pathlib import Path

import pytest

from packproof.base.importing import load_module


def test_a_file_mended_within_a_second_and_of_the_same_size_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "path", [])
    file = tmp_path / "mended_kernel.py"
    for kept in (1, 0):
        file.write_text(f"kept = {kept}\n")
        os.utime(file, (1e9, 1e9))
        monkeypatch.delitem(sys.modules, "packproof_target_mended_kernel", raising=False)
        assert load_module(file).kept == kept
