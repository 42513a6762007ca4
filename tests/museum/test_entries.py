"""The data are as docs/quality.md describes them, and lead to kernels that can be called without the harness."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from packproof.museum import classes, controls, entries
from packproof.properties.cases.drawing import DTYPES
from packproof.properties.declarations.promises import Promises
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import OPS

ROOT = Path(__file__).parents[2]
ENTRIES = entries()
REQUIRED = {"id", "op", "class", "title", "cause", "trigger", "properties", "links", "kernel"}
OPTIONAL = {"promises", "dtype", "gradients", "needs_gpu"}


def test_the_fields_of_the_data_are_those_of_the_documentation() -> None:
    data = json.loads((ROOT / "museum/entries.json").read_text())
    assert set(data) == {"version", "classes", "controls", "entries"}
    for entry in data["entries"]:
        assert set(entry) >= REQUIRED, entry["id"]
        assert set(entry) <= REQUIRED | OPTIONAL, entry["id"]
    page = (ROOT / "docs/quality.md").read_text()
    assert [name for name in REQUIRED | OPTIONAL if f"`{name}`" not in page] == []


def test_ids_are_unique() -> None:
    data = json.loads((ROOT / "museum/entries.json").read_text())
    assert len(ENTRIES) == len(data["entries"])
    assert len(controls()) == len(data["controls"])


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_is_consistent(name: str) -> None:
    entry = ENTRIES[name]
    assert entry.op in OPS
    assert entry.bug_class in classes()
    assert entry.dtype in DTYPES
    assert entry.properties
    assert set(entry.properties) <= set(PROPERTIES)
    assert Promises(**entry.promises)
    assert all(link.startswith("https://") for link in entry.links)
    assert callable(entry.load())


def test_no_two_entries_are_equal() -> None:
    assert len({entry.kernel for entry in ENTRIES.values()}) == len(ENTRIES)


@pytest.mark.proof
def test_the_museum_needs_no_harness() -> None:
    code = (
        "import sys; from packproof.museum import controls, entries\n"
        "kernels = [e.load() for e in [*entries().values(), *controls().values()]]\n"
        "print([m for m in sys.modules if m.startswith(('packproof.harness', 'packproof.properties', 'hypothesis'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "src")
    assert done.stdout == "[]\n"
