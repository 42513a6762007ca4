"""Imports point one way: between the folders, between the rooms of harness/, between modules; read from syntax trees.

Also what keeps a room small: a subject in its `__init__`, few modules, class names that mean one thing.
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src/packproof"
ORDER = ("refs", "kernels", "layers", "packs", "parallel", "museum", "properties", "adapters", "harness")
LAYOUT_AND_ERRORS = {
    f"packproof.refs.{name}"
    for name in ("errors", "packing", "arguments", "attention_options", "rotary_options", "signatures", "overloads")
}
OUTSIDE = {
    "refs": {"torch", "einops"},
    "kernels": {"torch", "triton", "cuda"},  # cuda.core compiles CUDA C++, where it is installed
    "layers": {"torch"},
    "packs": {"torch"},
    "parallel": {"torch"},
    "museum": {"torch", "triton"},
    "properties": {"torch", "einops", "hypothesis"},
}
# Each room of harness/ and the rooms that it imports: all of them stand above it.
ROOMS: dict[str, set[str]] = {
    "results": set(),
    "targets": set(),
    "interpreter": set(),
    "execution": {"interpreter"},
    "worker": {"execution", "interpreter", "results", "targets"},
    "diagnosis": {"results"},
    "compile": {"results", "targets"},
    "compute_sanitizer": {"execution", "results", "targets", "worker"},
    "engine": {"compile", "compute_sanitizer", "diagnosis", "execution", "results", "targets", "worker"},
    "debug": {"engine", "execution", "interpreter", "results", "targets", "worker"},
    "modules": {"engine", "interpreter", "results", "targets", "worker"},
    "architectures": {"modules", "results", "worker"},
    "reports": {"results"},
    "bench": {"engine", "execution", "results", "targets", "worker"},
    "stacks": {"bench", "results"},
    "validation": {"compile", "engine", "execution", "results", "targets", "worker"},
    "peers": {"engine", "reports", "results", "worker"},
    "pytest_plugin": {"engine", "results", "targets", "worker"},
    "cli": {
        *{"architectures", "bench", "debug", "engine", "modules", "peers", "reports", "results"},
        *{"stacks", "targets", "validation", "worker"},
    },
}
MOST_MODULES = 18
CATALOGUES = {"kernels": 36, "refs": 24}  # a module for each op or bug: flat, and long
NO_INIT = {"kernels"}  # it would shadow another package of that name; packproof/__init__ gives it its docstring


def module_name(path: Path) -> str:
    """The import name of a file: the folders lie at the root and are imported as packproof.<folder>."""
    base = SOURCES if path.is_relative_to(SOURCES) else ROOT
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(["packproof", *(parts[:-1] if parts[-1] == "__init__" else parts)])


FILES = [
    *SOURCES.glob("*.py"),
    *(path for folder in ORDER for path in sorted((ROOT / folder).rglob("*.py"))),
    ROOT / "refs/overloads.pyi",  # types alone, which references and kernels import for type checkers
]
TREE = {module_name(path): path.read_text() for path in FILES}
PACKAGES = sorted({path.parent.relative_to(ROOT).as_posix() for path in FILES if path.parent != SOURCES})


@cache
def telling(source: str) -> tuple[ast.AST, ...]:
    """The imports and classes of a source, wherever in it."""
    return tuple(n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom | ast.ClassDef))


def imported(source: str, modules: Mapping[str, str] = TREE) -> Iterator[str]:
    """Every module that a source imports, wherever in it; `from a import b` counts as a.b where that is a module."""
    for node in telling(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, "relative import"
            assert node.level == 0, "relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_module = name in modules or name.removeprefix("packproof.") in (*ORDER, "tests")
                yield name if is_module else node.module


def wrong_imports(folder: str, source: str) -> list[str]:
    """The imports that a module of that folder may not have."""
    allowed = ORDER[: ORDER.index(folder) + 1]
    wrong = []
    for name in sorted(set(imported(source))):
        top, *rest = name.split(".")
        if top == "packproof":
            below = bool(rest) and rest[0] in allowed
            if folder in {"kernels", "museum", "properties"} and below and rest[0] != folder:
                below = rest[0] == "refs" and (folder != "kernels" or name in LAYOUT_AND_ERRORS)
            if folder == "adapters" and below:
                below = rest[0] in {"refs", "properties", "adapters"}
            if not below and (folder, name) != ("harness", "packproof.version"):
                wrong.append(name)
        elif folder in OUTSIDE and top not in OUTSIDE[folder] and top not in sys.stdlib_module_names:
            wrong.append(name)
    return wrong


def rooms_imported(room: str, source: str) -> set[str]:
    """The other rooms of harness/ that a module of that room imports."""
    parts = [name.split(".") for name in imported(source)]
    return {part[2] for part in parts if part[:2] == ["packproof", "harness"] and len(part) > 2} - {room}


def cycle(modules: Mapping[str, str]) -> list[str]:
    """Modules that import each other in a circle, [] if none do. A module may import the package that holds it."""
    edges = {name: set(imported(source, modules)) & modules.keys() - {name} for name, source in modules.items()}
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def shared_classes(modules: Mapping[str, str]) -> list[str]:
    """Names that more than one class has, in whatever modules."""
    nodes = (node for source in modules.values() for node in telling(source))
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return [name for name, count in names.items() if count > 1]


@pytest.mark.parametrize("folder", ORDER)
def test_imports_point_downwards(folder: str) -> None:
    inside = {name: source for name, source in TREE.items() if f"{name}.".startswith(f"packproof.{folder}.")}
    found = {name: wrong_imports(folder, source) for name, source in inside.items()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_the_rooms_of_its_line(room: str) -> None:
    sources = (s for name, s in TREE.items() if f"{name}.".startswith(f"packproof.harness.{room}."))
    assert set().union(*(rooms_imported(room, source) for source in sources)) == ROOMS[room]


def test_the_table_has_every_room_after_those_that_it_imports() -> None:
    rooms = list(ROOMS)
    assert {path.parent.name for path in (ROOT / "harness").glob("*/__init__.py")} == set(rooms)
    assert [path.name for path in (ROOT / "harness").glob("*.py")] == ["__init__.py"]
    assert [room for at, room in enumerate(rooms) if not ROOMS[room] <= set(rooms[:at])] == []


def test_no_module_imports_itself_in_a_circle() -> None:
    assert cycle(TREE) == []


def test_no_two_classes_share_a_name() -> None:
    assert shared_classes(TREE) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_names_its_subject_and_is_small(package: str) -> None:
    init = ROOT / package / "__init__.py"
    if package in NO_INIT:
        assert not init.exists()
    else:
        assert ast.get_docstring(ast.parse(init.read_text())), f"{package}/__init__.py has no docstring"
    count = len([path for path in (ROOT / package).glob("*.py") if path != init])
    assert count <= CATALOGUES.get(package, MOST_MODULES)
    assert package not in CATALOGUES or count > MOST_MODULES, f"{package} needs no line in CATALOGUES"


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("refs", "import packproof.kernels.rope"),
        ("refs", "def f():\n    import triton"),
        ("refs", "from packproof.properties import op"),
        ("refs", "from packproof.version import __version__"),
        ("kernels", "from packproof.refs.rotary import rope"),
        ("kernels", "from packproof.refs import rope"),
        ("kernels", "from packproof import refs"),
        ("kernels", "import hypothesis"),
        ("kernels", "from packproof.layers.mamba import MambaBlock"),
        ("layers", "import triton"),
        ("layers", "from packproof.properties import op"),
        ("layers", "import packproof"),
        ("properties", "from packproof.kernels.rope import rope"),
        ("properties", "from packproof import harness"),
        ("properties", "import packproof"),
        ("museum", "from packproof.kernels.rope import rope"),
        ("museum", "import packproof"),
        ("properties", "from packproof import museum"),
        ("adapters", "from packproof.kernels.rope import rope"),
        ("adapters", "from packproof.harness.targets.location import Location"),
        ("properties", "from packproof.adapters import adapt"),
        ("harness", "from packproof import tests"),
        ("harness", "import packproof"),
        ("harness", "from packproof import check"),
    ],
)
def test_a_forbidden_import_is_seen(folder: str, source: str) -> None:
    assert len(wrong_imports(folder, source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import packproof.harness.engine.check",
        "from packproof.harness.engine import check",
        "from packproof.harness import engine",
        "def f():\n    from packproof.harness.engine.check import check",
        "if TYPE_CHECKING:\n    from packproof.harness.engine.check import check",
    ],
)
def test_a_room_that_imports_another_is_seen(source: str) -> None:
    assert rooms_imported("results", source) == {"engine"}
    assert rooms_imported("engine", source) == set()


@pytest.mark.parametrize(
    "modules",
    [
        {"packproof.a": "import packproof.b", "packproof.b": "def f():\n    import packproof.a"},
        {"packproof": "if TYPE_CHECKING:\n    from packproof.a import x", "packproof.a": "from packproof import x"},
        {"packproof.a": "import packproof.b", "packproof.b": "import packproof.c", "packproof.c": "import packproof.a"},
    ],
    ids=["inside a function", "through the package", "of three"],
)
def test_a_circle_is_seen(modules: dict[str, str]) -> None:
    assert set(cycle(modules)) == set(modules)
    assert cycle({**modules, "packproof.a": ""}) == []


def test_two_classes_of_one_name_are_seen() -> None:
    assert shared_classes({"a": "class Row: ...", "b": "def f():\n    class Row: ..."}) == ["Row"]


def run_without(modules: tuple[str, ...], code: str) -> str:
    """The output of code in a Python where the modules cannot be imported."""
    block = f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n"
    done = subprocess.run(
        [sys.executable, "-c", block + code], capture_output=True, text=True, check=True, cwd=ROOT / "src"
    )
    return done.stdout


def test_references_need_neither_triton_nor_hypothesis() -> None:
    code = "from packproof import refs; print(all(callable(getattr(refs, name)) for name in refs.__all__))"
    assert run_without(("triton", "hypothesis"), code) == "True\n"


def test_importing_packproof_imports_nothing_heavy() -> None:
    code = (
        "import packproof; print([name for name in ('torch', 'triton', 'hypothesis', 'numpy') if name in sys.modules])"
    )
    assert run_without((), code) == "[]\n"


def test_a_kernel_without_triton_gives_the_way_out() -> None:
    code = "from packproof import kernels\ntry:\n    kernels.rope\nexcept ImportError as error:\n    print(error)"
    expected = "packproof.kernels.rope needs triton: install it, or use packproof.refs.rope\n"
    assert run_without(("triton", "triton.language"), code) == expected


@pytest.mark.parametrize("package", ["packproof", "packproof.refs", "packproof.adapters", "packproof.layers"])
def test_dir_shows_the_public_names_alone(package: str) -> None:
    code = f"import {package}; print(dir({package}) == sorted({package}.__all__), {package}.__all__)"
    assert run_without((), code).startswith("True [")


def test_dir_shows_the_kernels_alone() -> None:
    code = "from packproof import kernels; print(*dir(kernels))"
    names = "attention causal_conv1d hadamard linear_attention quantize_fp8 retention rope"
    names += " rope_hadamard rope_qk round_fp8 selective_scan"
    names += " simple_gla ssd"
    assert run_without((), code) == f"{names}\n"


def test_every_public_name_is_there() -> None:
    code = "import packproof; print([name for name in packproof.__all__ if getattr(packproof, name, None) is None])"
    assert run_without((), code) == "[]\n"
