"""The API page has an entry for each public name, made from its signature and docstring; pages import no other."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from types import ModuleType

import pytest

import packproof
from packproof import adapters, kernels, layers, museum, packs, parallel, properties, refs

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
PYTHON = re.compile(r"```python\n(.*?)```", re.S)


@pytest.fixture(scope="module")
def api() -> ModuleType:
    """docs/api.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("packproof_docs_api", ROOT / "docs/api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PACKAGES = ("packproof", "refs", "kernels", "layers", "packs", "parallel", "adapters", "museum")


def public_names() -> set[str]:
    packages = (packproof, refs, layers, packs, parallel, adapters, properties, museum)
    names = {f"{package.__name__}.{name}" for package in packages for name in package.__all__}
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
    assert api.signature(packproof.pack).startswith("(tensors: Iterable[Tensor], slack: int = 0) -> ")
    assert not [entry.name for entry in api.entries() if "0x" in entry.text().partition("\n")[0]]


def test_docstrings_become_markdown(api: ModuleType) -> None:
    text = "Scale.\n\nx: (t, d).\ny: a * b < `a * b`.\nRaises ArgumentError.\n\n>>> f(1)\n2\n\n    code(x)"
    assert api.markdown(text) == (
        "Scale.\n\n- x: (t, d).\n- y: a \\* b \\< `a * b`.\n\nRaises ArgumentError.\n\n"
        "```python\n>>> f(1)\n2\n```\n\n    code(x)"
    )


@dataclass
class Layout:
    """A layout.

    Raises LayoutError.
    """

    lengths: tuple[int, ...]
    """Tokens of each sequence:
    - 0: `a * b`, no token;
    - 1 * 1.

    length: no field.
    """
    _offsets: int = 0
    """Not public."""


@dataclass
class PaddedLayout(Layout):
    """A layout with slack.

    rank: in the docstring of the class.
    """

    undocumented: int = 0
    slack: int = 0
    """Unused rows."""


def test_the_docstring_under_a_field_is_on_the_page(api: ModuleType) -> None:
    assert api.Entry("Layout", (), "", PaddedLayout).text().splitlines()[2:-1] == [
        "A layout with slack.",
        "",
        "- rank: in the docstring of the class.",
        "",
        "- lengths: Tokens of each sequence:",
        "  - 0: `a * b`, no token;",
        "  - 1 \\* 1.",
        "",
        "  length: no field.",
        "- slack: Unused rows.",
    ]
    assert api.Entry("Layout", (), "", Layout).text().splitlines()[-2:] == ["Raises LayoutError.", "```"]
    assert api.field_docs(make_dataclass("Made", ["lengths"])) == {}


def test_each_public_field_has_its_docstring(api: ModuleType) -> None:
    classes = [entry.value for entry in api.entries() if isinstance(entry.value, type)]
    fields = {owner: {*getattr(owner, "__dataclass_fields__", ()), *getattr(owner, "_fields", ())} for owner in classes}
    documented = {f"{owner.__name__}.{name}" for owner in classes for name in api.field_docs(owner)}
    public = {f"{owner.__name__}.{name}" for owner in classes for name in fields[owner] if not name.startswith("_")}
    assert public - documented == set()
    assert "Verdict.status" in documented


def test_a_comment_that_stands_for_nothing_is_refused(api: ModuleType) -> None:
    with pytest.raises(ValueError, match="stands for no public name"):
        api.fill("<!-- api: packproof.refs.nothing -->")


def used(source: str) -> Iterator[str]:
    """The names of packproof that a source imports, and the attributes of packages that it reads."""
    packages = {"packproof": "packproof"}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "packproof":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            packages |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("packproof."))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in packages:
            package = packages[node.value.id]
            if package.removeprefix("packproof.") in PACKAGES:
                yield f"{package}.{node.attr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_public_names_only(page: Path) -> None:
    found = {name for source in PYTHON.findall(page.read_text()) for name in used(source)}
    assert found <= public_names() | {"packproof.museum", "packproof.properties"}


@pytest.mark.parametrize(
    "source",
    [
        "from packproof.refs.recurrence import over_time",
        "import packproof.properties.ops.op",
        "from packproof import refs\ny = refs.arguments",
        "import packproof\npackproof.harness",
    ],
)
def test_a_private_name_is_seen(source: str) -> None:
    assert not set(used(source)) <= public_names()
