"""Sweeps: a sample of them in each run of the tests, all in `make proof`."""

from collections.abc import Sequence
from typing import Any

import pytest


def sweep(names: str, sample: Sequence[Any], rest: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrizes a test by a sample, and in `make proof` by the rest of the sweep."""
    rows = [row for row in rest if row not in sample]
    several = "," in names
    proofs = [pytest.param(*(row if several else [row]), marks=pytest.mark.proof) for row in rows]
    return pytest.mark.parametrize(names, [*sample, *proofs], ids=_id)


def _id(value: Any) -> str:
    return str(getattr(value, "name", getattr(value, "__name__", value)))
