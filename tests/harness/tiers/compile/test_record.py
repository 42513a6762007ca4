"""The record of compiled forms: what has not changed is not compiled again, and what it says is put to the test."""

import json
from pathlib import Path
from typing import Any

import pytest
from triton.runtime import JITFunction

from packproof.base.errors import UsageError
from packproof.harness.tiers.compile import resources
from packproof.harness.tiers.compile.record import read_record
from packproof.harness.tiers.compile.variants import CompileResult, compile_variants
from packproof.kernels.variant import Variant
from tests.in_process import environment

SAMPLES = Path(__file__).parents[2] / "compile_samples.py"
FIELDS = ("registers", "spills", "shared", "dot", "atomics", "refilled", "key")
CHANGE = ("tl.atomic_add(y,", "tl.atomic_max(y,")


class Clone:
    """A machine that has compiled nothing yet, with two kernels and a record."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.source, self.record = folder / "samples.py", folder / "compiled.json"
        self._cache = folder / "cache"
        self.source.write_text(SAMPLES.read_text())

    def compiled(self, record: Path | None = None) -> dict[str, CompileResult]:
        given = None if record is None else str(record)
        with environment(TRITON_CACHE_DIR=str(self._cache)):
            return {one["variant"]: one for one in compile_variants(f"{self.source}:good", ("sm_90",), record=given)}

    def write(self, forms: dict[str, CompileResult], **instead: object) -> None:
        lines = [{field: one[field] for field in FIELDS} | instead for one in forms.values()]  # type: ignore[literal-required]
        self.record.write_text(json.dumps(lines))


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CompileResult]:
    """What another clone found in the same files."""
    return Clone(tmp_path_factory.mktemp("machine") / "first").compiled()


@pytest.fixture
def clones(tmp_path: Path, forms: dict[str, CompileResult]) -> tuple[Clone, dict[str, CompileResult]]:
    return Clone(tmp_path / "second"), forms


def test_the_key_is_the_same_elsewhere_and_only_a_sample_is_compiled(
    clones: tuple[Clone, dict[str, CompileResult]],
) -> None:
    clone, forms = clones
    clone.write(forms)
    again = clone.compiled(clone.record)
    assert sorted(one["compiled"] for one in again.values()) == [False, True]
    assert all({f: one[f] for f in FIELDS} == {f: forms[name][f] for f in FIELDS} for name, one in again.items())  # type: ignore[literal-required]


def test_a_record_that_says_something_else_fails(clones: tuple[Clone, dict[str, CompileResult]]) -> None:
    clone, forms = clones
    clone.write(forms, registers=7)
    failures = [one["failure"] for one in clone.compiled(clone.record).values() if one["failure"]]
    assert len(failures) == 1
    assert failures[0].startswith("does not take what the record says: registers ")
    assert failures[0].endswith(", not 7")


def test_what_has_changed_is_compiled(clones: tuple[Clone, dict[str, CompileResult]]) -> None:
    clone, forms = clones
    clone.write(forms, atomics=["never"])
    clone.source.write_text(SAMPLES.read_text().replace(*CHANGE))
    changed = clone.compiled(clone.record)["sum"]
    assert (changed["compiled"], "max" in changed["atomics"], changed["failure"]) == (True, True, "")


def _kernel() -> None:
    pass


@pytest.mark.parametrize(("added", "same"), [(b"", True), (b"\0", False)])
def test_the_key_has_what_amd_libraries_hold_not_where_triton_is_installed(
    added: bytes, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant, backend = Variant("nothing", JITFunction(_kernel), {}, {}), resources._backend("gfx942")
    parse = backend.parse_options

    def elsewhere(given: dict[str, Any]) -> Any:
        options = parse(given)
        assert options.extern_libs
        for _, file in options.extern_libs:
            (tmp_path / Path(file).name).write_bytes(Path(file).read_bytes() + added)
        moved = tuple((name, str(tmp_path / Path(file).name)) for name, file in options.extern_libs)
        object.__setattr__(options, "extern_libs", moved)
        return options

    here = resources.cache_key(variant, "gfx942")
    monkeypatch.setattr(backend, "parse_options", elsewhere)
    assert (resources.cache_key(variant, "gfx942") == here) == same


@pytest.mark.parametrize("text", ["", "3", "[]x", '[{"key": "1"}]', "[3]", '{"key": "1"}', '["key"]'])
def test_a_file_that_is_no_record(text: str, tmp_path: Path) -> None:
    file = tmp_path / "compiled.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"record: .*compiled.json has no compiled forms"):
        read_record(str(file))
