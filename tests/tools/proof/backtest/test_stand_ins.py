"""Stand-ins for what a framework imports, whether its package is installed or not."""

from importlib import import_module
from pathlib import Path

import pytest

from packproof.proof.backtest.adapters.training.stand_ins import stand_in


@pytest.mark.parametrize("name", ["toys_installed", "toys_broken", "toys_absent"])
def test_parts_of_a_package_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "toys_installed").mkdir()
    (tmp_path / "toys_installed/__init__.py").write_text("colour = 'red'\n")
    (tmp_path / "toys_broken.py").write_text("from json import nothing\n")
    monkeypatch.syspath_prepend(tmp_path)
    stand_in(f"{name}.utils", name)
    package, part = import_module(name), import_module(f"{name}.utils")
    assert isinstance(part.anything, type)
    assert package.utils is part
    assert (package.colour == "red") == (name == "toys_installed")
