"""Imports point one way: between the folders, between the rooms of harness/, between modules; read from syntax trees.

`from packproof import x` counts as the module that gives the package x. The rooms of the shelf are counted one by one.

Also what keeps a room small: a subject in its `__init__`, few modules, class names that mean one thing.
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import packproof

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src/packproof"
SHELF = "tools"  # a folder without code; src/packproof links to its rooms
# the folders of the product from the ground up: each imports from those before it
ORDER = (
    "base",
    "interpreter",
    "refs",
    "kernels",
    "layers",
    "packs",
    "parallel",
    "museum",
    "properties",
    "adapters",
    "harness",
    "models",
    "packers",
    "debug",
    "proof",
    "bench",
    "grading",
    "cli",
)
ON_THE_CHECK = {"models", "packers", "debug", "proof", "bench", "grading"}  # side by side: none imports another
# folders that may import few of those below them
BESIDE = {
    "proof": {"models"},  # the backtest asks about modules, by conventions of its own
    "grading": {"bench"},  # what a call costs at least, and the sizes of models
}
BELOW = {
    "interpreter": {"base"},
    "refs": {"base"},
    "kernels": {"base", "interpreter", "refs"},
    "layers": {"base", "refs", "kernels"},
    "packs": {"base", "refs"},
    "parallel": {"base", "refs", "kernels", "layers"},
    "museum": {"base", "refs", "parallel"},
    "properties": {"base", "refs"},
    "adapters": {"base", "refs", "properties"},
}
LAYOUTS = {f"packproof.refs.{name}" for name in ("packing", "attention_options", "rotary_options", "overloads")}
FACES = {"kernels": "packproof.kernels.namespace"}  # of a folder without __init__: what gives it its names
OUTSIDE = {
    "base": {"torch"},
    "interpreter": {"torch", "triton", "numpy"},
    "refs": {"torch", "einops"},
    "kernels": {"torch", "triton", "cuda"},  # cuda.core compiles CUDA C++, where it is installed
    "layers": {"torch"},
    "packs": {"torch"},
    "parallel": {"torch", "safetensors"},
    "museum": {"torch", "triton"},
    "properties": {"torch", "einops", "hypothesis"},
}
# Each room of harness/ and the rooms that it imports: all of them stand above it.
ROOMS: dict[str, set[str]] = {
    "process": set(),
    "report": set(),
    "tiers": {"process", "report"},
    "check": {"process", "report", "tiers"},
    "pytest": {"check", "process", "report"},
}
MOST_MODULES = 18
# a module for each op, bug or package of a peer: flat, and long
CATALOGUES = {"adapters/peers": 21, "kernels": 40, "museum": 24, "refs": 20}
NO_INIT = {"kernels"}  # it would shadow another package of that name
FORWARDS = {"harness/validation", "harness/pytest_plugin"}  # folders without code: names that users had


def place(room: str) -> Path:
    """The folder of a name imported as packproof.<room>."""
    return ROOT / SHELF / room if (ROOT / SHELF / room).exists() else ROOT / room


def module_name(path: Path) -> str:
    """The import name of a file: a folder of the root, or of the shelf, is imported as packproof.<folder>."""
    base = SOURCES if path.is_relative_to(SOURCES) else ROOT / SHELF if path.is_relative_to(ROOT / SHELF) else ROOT
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(["packproof", *(parts[:-1] if parts[-1] == "__init__" else parts)])


FILES = [
    *SOURCES.glob("*.py"),
    *(path for folder in ORDER for path in sorted(place(folder).rglob("*.py"))),
    ROOT / "refs/overloads.pyi",  # types alone, which references and kernels import for type checkers
]
TREE = {module_name(path): path.read_text() for path in FILES}
PACKAGES = sorted({path.parent.relative_to(ROOT).as_posix() for path in FILES if path.parent != SOURCES} - FORWARDS)


@cache
def telling(source: str) -> tuple[ast.AST, ...]:
    """The imports and classes of a source, wherever in it."""
    return tuple(n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom | ast.ClassDef))


def imported(source: str, modules: Mapping[str, str] = TREE) -> Iterator[str]:
    """Every module that a source imports, wherever in it; `from a import b` counts as a.b where that is a module.

    What `packproof` gives counts as packproof/__init__, unless it is a folder with a face of its own.
    """
    for node in telling(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, "relative import"
            assert node.level == 0, "relative import"
            for alias in node.names:
                yield _home(node.module, alias.name, modules)


def _home(module: str, name: str, modules: Mapping[str, str]) -> str:
    full = f"{module}.{name}"
    if module == "packproof" and name in NO_INIT:
        return FACES[name] if FACES[name] in modules else module
    return full if full in modules or full.removeprefix("packproof.") in (*ORDER, "tests") else module


def wrong_imports(folder: str, source: str) -> list[str]:
    """The imports that a module of that folder may not have."""
    allowed = {*BELOW.get(folder, ORDER[: ORDER.index(folder)]), folder}
    if folder in ON_THE_CHECK:
        allowed -= ON_THE_CHECK - {folder} - BESIDE.get(folder, set())
    wrong = []
    for name in sorted(set(imported(source))):
        top, *rest = name.split(".")
        if top == "packproof":
            below = bool(rest) and rest[0] in allowed
            if folder == "kernels" and below and rest[0] == "refs":
                below = name in LAYOUTS
            if name == "packproof.version":
                below = folder == "interpreter" or folder in ORDER[ORDER.index("harness") :]
            if not below:
                wrong.append(name)
        elif folder in OUTSIDE and top not in OUTSIDE[folder] and top not in sys.stdlib_module_names:
            wrong.append(name)
    return wrong


def rooms_imported(room: str, source: str) -> set[str]:
    """The other rooms of harness/ that a module of that room imports."""
    parts = [name.split(".") for name in imported(source)]
    return {part[2] for part in parts if part[:2] == ["packproof", "harness"] and len(part) > 2} - {room}


def file_of(module: str) -> str:
    return module


def room_of(module: str) -> str:
    """packproof.harness.check of a module of the harness, packproof.refs of one of another folder."""
    parts = module.split(".")
    return ".".join(parts[: 3 if parts[1:2] == ["harness"] else 2])


def folder_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def circle(modules: Mapping[str, str], part: Callable[[str], str] = file_of) -> list[str]:
    """Parts of the product that import each other in a circle, the largest one; [] if none do.

    A module may import the package that holds it.
    """
    edges: dict[str, set[str]] = {part(name): set() for name in modules}
    for name, source in modules.items():
        edges[part(name)] |= {part(other) for other in imported(source, modules) if other in modules}
    reach = {name: reached(name, edges) for name in edges}
    groups = [sorted(b for b in reach[a] if a in reach[b]) for a in edges]
    return max(groups, key=len, default=[])


def reached(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    """What one part imports, and what that imports, and so on; other parts than itself first."""
    seen, open_ends = set[str](), edges[start] - {start}
    while open_ends:
        seen |= open_ends
        open_ends = set().union(*(edges[name] - {name} for name in open_ends)) - seen
    return seen


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
    folders = {path.parent for path in (ROOT / "harness").glob("*/__init__.py")}
    assert {path.name for path in folders if path.relative_to(ROOT).as_posix() not in FORWARDS} == set(rooms)
    assert [path.name for path in (ROOT / "harness").glob("*.py")] == ["__init__.py"]
    assert [room for at, room in enumerate(rooms) if not ROOMS[room] <= set(rooms[:at])] == []


@pytest.mark.parametrize("part", [file_of, room_of, folder_of])
def test_nothing_imports_itself_in_a_circle(part: Callable[[str], str]) -> None:
    assert circle(TREE, part) == []


def test_the_shelf_has_no_code_of_its_own() -> None:
    assert [path.name for path in (ROOT / SHELF).glob("*.*")] == []
    assert {path.name for path in (ROOT / SHELF).iterdir()} - {"__pycache__"} == {*ON_THE_CHECK, "cli"}


def test_each_folder_has_its_link() -> None:
    links = {path.name: path.resolve() for path in SOURCES.iterdir() if path.is_symlink()}
    assert links == {room: place(room) for room in ORDER}


@pytest.mark.parametrize("folder", sorted(FORWARDS))
def test_a_name_that_users_had_is_a_line_that_forwards(folder: str) -> None:
    for file in (ROOT / folder).iterdir():
        statements = ast.parse(file.read_text()).body if file.suffix == ".py" else []
        assert (
            len([n for n in statements if not isinstance(n, ast.Import | ast.ImportFrom)]) <= 2
        )  # a docstring, and it


def test_the_root_is_short() -> None:
    """The first page that people see; folders that begin with a dot apart."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    folders = {path.partition("/")[0] for path in listed.split() if "/" in path}
    assert len([folder for folder in folders if not folder.startswith(".")]) <= 17


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
        ("refs", "from packproof.properties import ops"),
        ("refs", "from packproof.version import __version__"),
        ("base", "from packproof.refs.packing import PackLayout"),
        ("interpreter", "from packproof.properties.calling.call import Call"),
        ("kernels", "from packproof.refs.rotary import rope"),
        ("kernels", "from packproof.refs import rope"),
        ("kernels", "from packproof import refs"),
        ("kernels", "from packproof import pack"),
        ("kernels", "from packproof.properties.calling.call import Call"),
        ("kernels", "import hypothesis"),
        ("kernels", "from packproof.layers.mamba import MambaBlock"),
        ("layers", "import triton"),
        ("layers", "from packproof.properties import ops"),
        ("layers", "import packproof"),
        ("properties", "from packproof.kernels.rope import rope"),
        ("properties", "from packproof import harness"),
        ("properties", "import packproof"),
        ("museum", "from packproof.kernels.rope import rope"),
        ("museum", "import packproof"),
        ("properties", "from packproof import museum"),
        ("adapters", "from packproof.kernels.rope import rope"),
        ("adapters", "from packproof.harness.check.check import check"),
        ("properties", "from packproof.adapters import adapt"),
        ("harness", "from packproof import tests"),
        ("harness", "import packproof"),
        ("harness", "from packproof import check"),
        ("harness", "from packproof.models.check import check_module"),
        ("bench", "from packproof.models.check import check_module"),
        ("proof", "from packproof.cli.main import run"),
    ],
)
def test_a_forbidden_import_is_seen(folder: str, source: str) -> None:
    assert len(wrong_imports(folder, source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import packproof.harness.check.check",
        "from packproof.harness.check import check",
        "from packproof.harness import check",
        "def f():\n    from packproof.harness.check.check import check",
        "if TYPE_CHECKING:\n    from packproof.harness.check.check import check",
    ],
)
def test_a_room_that_imports_another_is_seen(source: str) -> None:
    assert rooms_imported("report", source) == {"check"}
    assert rooms_imported("check", source) == set()


@pytest.mark.parametrize(
    "modules",
    [
        {"packproof.a": "import packproof.b", "packproof.b": "def f():\n    import packproof.a"},
        {"packproof": "if TYPE_CHECKING:\n    from packproof.a import x", "packproof.a": "from packproof import x"},
        {"packproof": "from packproof.a import x", "packproof.a": "from packproof import kernels"},
        {"packproof.a": "import packproof.b", "packproof.b": "import packproof.c", "packproof.c": "import packproof.a"},
    ],
    ids=["inside a function", "through the package", "through the names of a folder without __init__", "of three"],
)
def test_a_circle_is_seen(modules: dict[str, str]) -> None:
    assert set(circle(modules)) == set(modules)
    assert circle({**modules, "packproof.a": ""}) == []


def test_a_circle_of_rooms_and_folders_is_seen() -> None:
    modules = {
        "packproof.harness.a.x": "import packproof.harness.b.x",
        "packproof.harness.a.y": "",
        "packproof.harness.b.x": "import packproof.models.x",
        "packproof.harness.b.y": "import packproof.harness.a.y",
        "packproof.models.x": "",
        "packproof.models.y": "import packproof.harness.b.y",
    }
    assert circle(modules) == []
    assert circle(modules, room_of) == ["packproof.harness.a", "packproof.harness.b", "packproof.models"]
    assert circle(modules, folder_of) == ["packproof.harness", "packproof.models"]


def test_two_classes_of_one_name_are_seen() -> None:
    assert shared_classes({"a": "class Row: ...", "b": "def f():\n    class Row: ..."}) == ["Row"]


def run_without(modules: tuple[str, ...], code: str) -> str:
    """The output of code in a Python where the modules cannot be imported."""
    block = f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n"
    done = subprocess.run(
        [sys.executable, "-c", block + code], capture_output=True, text=True, check=True, cwd=ROOT / "src"
    )
    return done.stdout


def test_references_need_neither_triton_nor_hypothesis_and_a_kernel_gives_the_way_out() -> None:
    code = "from packproof import kernels, refs\nprint(all(callable(getattr(refs, name)) for name in refs.__all__))\n"
    code += "try:\n    kernels.rope\nexcept ImportError as error:\n    print(error)"
    way_out = "packproof.kernels.rope needs triton: install it, or use packproof.refs.rope"
    assert run_without(("triton", "triton.language", "hypothesis"), code) == f"True\n{way_out}\n"


def test_importing_packproof_imports_nothing_heavy() -> None:
    code = (
        "import packproof; print([name for name in ('torch', 'triton', 'hypothesis', 'numpy') if name in sys.modules])"
    )
    assert run_without((), code) == "[]\n"


def test_dir_shows_the_public_names_alone() -> None:
    """Before anything else is imported: each package in the state that a user's first line leaves it in."""
    names = ("packproof", "packproof.refs", "packproof.adapters", "packproof.layers")
    code = f"import importlib\nfor name in {names}:\n    package = importlib.import_module(name)\n"
    code += "    print(package.__all__ != [] and dir(package) == sorted(package.__all__))\n"
    code += "from packproof import kernels\nprint(*dir(kernels))"
    kernels = "attention causal_conv1d grouped_mm hadamard linear_attention quantize_fp8 retention rope"
    kernels += " rope_hadamard rope_qk round_fp8 selective_scan"
    kernels += " simple_gla ssd"
    assert run_without((), code) == len(names) * "True\n" + f"{kernels}\n"


def test_every_public_name_is_there() -> None:
    assert [name for name in packproof.__all__ if getattr(packproof, name, None) is None] == []
