"""The API page has an entry for each public name, made from its signature and docstring."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import packproof
from packproof import adapters, kernels, refs

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def api() -> ModuleType:
    """docs/api.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("packproof_docs_api", ROOT / "docs/api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def public_names() -> set[str]:
    names = {f"{p.__name__}.{name}" for p in (packproof, refs, adapters) for name in p.__all__}
    return names | {f"packproof.kernels.{name}" for name in vars(kernels)["_homes"]}


def test_each_public_name_has_an_entry(api: ModuleType) -> None:
    page = api.fill((ROOT / "docs/api.md").read_text())
    described = [entry for entry in api.entries() if f"}} {entry.name}" in page]
    assert {name for entry in described for name in (entry.name, *entry.others)} == public_names()
    for entry in described:
        assert page.count(f"}} {entry.name}(") + page.count(f"}} {entry.name}\n") == 1, entry.name
        assert page.count(entry.text()) == 1, entry.name


def test_each_function_and_class_has_a_docstring(api: ModuleType) -> None:
    assert [entry.name for entry in api.entries() if callable(entry.value) and not entry.value.__doc__] == []


def test_signatures_have_the_public_names_of_types(api: ModuleType) -> None:
    shown = api.signature(packproof.check)
    assert "op: str | packproof.Op | None = None" in shown
    assert "properties: Sequence[str | packproof.Property] | None = None" in shown
    assert api.signature(packproof.pack).startswith("(tensors: Sequence[Tensor], slack: int = 0) -> ")
    assert not [entry.name for entry in api.entries() if "0x" in entry.text().partition("\n")[0]]


def test_docstrings_become_markdown(api: ModuleType) -> None:
    text = "Scale.\n\nx: (t, d).\ny: a * b < `a * b`.\nRaises ArgumentError.\n\n>>> f(1)\n2\n\n    code(x)"
    assert api.markdown(text) == (
        "Scale.\n\n- x: (t, d).\n- y: a \\* b \\< `a * b`.\n\nRaises ArgumentError.\n\n"
        "```python\n>>> f(1)\n2\n```\n\n    code(x)"
    )


def test_a_comment_that_stands_for_nothing_is_refused(api: ModuleType) -> None:
    with pytest.raises(ValueError, match="stands for no public name"):
        api.fill("<!-- api: packproof.refs.nothing -->")
