"""Shared by the tests of the process layer: calls of y = x * weight, the rogues by name, a place of temporary files."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from packproof.harness.process import zygote_client
from packproof.properties.calling.call import Call


@pytest.fixture
def make_call() -> Callable[..., Call]:
    """`make_call(*lengths, dtype=..., **fields of Call)`: a call of y = x * weight with x (t, 4) and weight (4,)."""

    def make(*lengths: int, dtype: torch.dtype = torch.float32, **fields: Any) -> Call:
        generator = torch.Generator().manual_seed(0)
        tokens = sum(lengths)
        x, weight, dy = (
            torch.randn(shape, generator=generator).to(dtype) for shape in ((tokens, 4), (4,), (tokens, 4))
        )
        defaults: dict[str, Any] = {
            "inputs": {"x": x, "weight": weight},
            "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0).int(),
            "options": {},
            "outputs": ("y",),
            "wrt": ("x", "weight"),
            "cotangents": {"y": dy},
        }
        return Call(**{**defaults, **fields})

    return make


@pytest.fixture
def rogue() -> Callable[[str], str]:
    """The target of a kernel in rogues.py."""
    return lambda name: f"{Path(__file__).with_name('rogues.py')}:{name}"


@pytest.fixture
def no_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is there from which workers are forked: the test starts the first."""
    monkeypatch.setattr(zygote_client, "_shared_zygotes", {})


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[Path]:
    """Where temporary files lie."""
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path / "temporary")
    Path(tempfile.tempdir).mkdir()
    yield Path(tempfile.tempdir)
    tempfile.tempdir = before
