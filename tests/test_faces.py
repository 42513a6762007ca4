"""From outside, a room is entered by its faces alone: the packages with `__all__`, the room itself and those inside it.

`from packproof.harness import report` takes the attributes of `report` that its source names.
"""

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module

import pytest

from tests.test_imports import FILES, FORWARDS, ORDER, ROOMS, TREE, module_name

FOLDERS = {module_name(path) for path in FILES if path.name == "__init__.py"}
ROOM_NAMES = [*(folder for folder in ORDER if folder != "harness"), *(f"harness.{room}" for room in ROOMS)]
MOST_NAMES = 20

_FOR_USERS = "the names of its face are for users and on the page of the API; these are for the rooms above"
# What is entered by its modules too, and why: a whole folder, or single modules.
OPEN = {
    "base": "the ground floor: a module has one subject and few names, and most are needed before torch",
    "refs": "its face has the ops; error bounds and kernels need the layouts and the steps inside an op",
    "kernels": "a folder without __init__, whose face is a namespace; ranks run the steps of a kernel one by one",
    "parallel": "its face has the ops; the bench times their exchanges one by one",
    "adapters.adapter": _FOR_USERS,
    "adapters.binding": _FOR_USERS,
    "adapters.call_lines": _FOR_USERS,
}
# Faces whose names users import; the other rooms need few of them.
FOR_USERS = {f"packproof.{name}" for name in ("refs", "layers", "packs", "parallel", "properties", "adapters")}


def names_of(package: str) -> frozenset[str]:
    """`__all__` of a package; none of a module."""
    statements = ast.parse(TREE[package]).body if package in FOLDERS else []
    lists = [n.value for n in statements if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    return frozenset(ast.literal_eval(lists[0]) if lists else ())


FACES = {package: names for package in sorted(FOLDERS - {"packproof"}) if (names := names_of(package))}


def typed_homes(source: str) -> dict[str, str]:
    """The imports of a package for type checkers alone: the module of each name."""
    blocks = [n for n in ast.parse(source).body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    nodes = [n for block in blocks for n in block.body if isinstance(n, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in nodes for alias in node.names}


def is_inside(module: str, room: str) -> bool:
    return f"{module}.".startswith(f"packproof.{room}.")


@cache
def names_taken(source: str) -> tuple[tuple[str, str], ...]:
    """What a source takes of packproof: module and name. No name for `import a.b`, attributes for a face as a whole."""
    return tuple(_names_taken(ast.parse(source)))


def _names_taken(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in FACES:
                    yield from ((full, name) for name in _attributes(tree, alias.asname or alias.name))
                elif full in TREE and alias.name not in FACES.get(str(node.module), ()):
                    yield full, ""
                else:
                    yield str(node.module), alias.name


def _attributes(tree: ast.Module, name: str) -> set[str]:
    nodes = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute))
    return {n.attr for n in nodes if isinstance(n.value, ast.Name) and n.value.id == name}


def taken_from_outside(room: str) -> set[tuple[str, str]]:
    """What the rest of the product takes of a room."""
    forwards = tuple(f"packproof.{folder}".replace("/", ".") for folder in FORWARDS)
    outside = [s for name, s in TREE.items() if not is_inside(name, room) and not name.startswith(forwards)]
    return {pair for source in outside for pair in names_taken(source) if is_inside(pair[0], room)}


def defining_modules(source: str) -> set[str]:
    """The modules that define what a source takes, through faces."""

    def home(module: str, name: str) -> str:
        inner = typed_homes(TREE[module]).get(name) if module in FACES else None
        return home(inner, name) if inner else module

    return {home(module, name) for module, name in names_taken(source)}


def past_faces(pairs: set[tuple[str, str]]) -> set[str]:
    """The modules that are entered past a face."""
    return {module.removeprefix("packproof.") for module, name in pairs if name not in FACES.get(module, ())}


@pytest.mark.parametrize("room", [room for room in ROOM_NAMES if room not in OPEN])
def test_a_room_is_entered_by_its_faces_alone(room: str) -> None:
    assert past_faces(taken_from_outside(room)) - OPEN.keys() == set()


def test_what_is_entered_by_its_modules_is_listed_for_a_reason() -> None:
    entered = set().union(*(past_faces(taken_from_outside(room)) for room in ROOM_NAMES))
    assert {name for name in OPEN if not any(is_inside(f"packproof.{module}", name) for module in entered)} == set()


@pytest.mark.parametrize("face", [face for face in FACES if face not in FOR_USERS])
def test_a_face_is_narrow(face: str) -> None:
    assert len(FACES[face]) <= MOST_NAMES


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_each_name_of_a_face_is_taken_from_outside(room: str) -> None:
    names = {(face, name) for face in FACES.keys() - FOR_USERS if is_inside(face, room) for name in FACES[face]}
    assert names - taken_from_outside(room) == set()


@pytest.mark.parametrize("face", ["packproof", *FACES])
def test_each_name_of_a_face_is_there(face: str) -> None:
    """Lazy names are imported, from the modules where type checkers find them."""
    package = import_module(face)
    for name in package.__all__:
        getattr(package, name)
    lazy_names = vars(package).get("_homes", {})
    assert {name: home for name, home in typed_homes(TREE[face]).items() if name in package.__all__} == lazy_names


@pytest.mark.parametrize(
    "source",
    [
        "import packproof.harness.report.events",
        "from packproof.harness.report import events",
        "from packproof.harness import report\nreport.events",
        "def f():\n    from packproof.harness.report.events import Verdict",
        "if TYPE_CHECKING:\n    from packproof.harness.report.formats.table import texts",
    ],
)
def test_a_way_past_a_face_is_seen(source: str) -> None:
    assert past_faces(set(names_taken(source))) != set()


@pytest.mark.parametrize(
    "source",
    [
        "from packproof.harness.report import Verdict",
        "from packproof.harness.report import formats\nformats.texts",
        "from packproof.harness import report\nreport.Verdict",
    ],
)
def test_a_face_is_no_way_past_itself(source: str) -> None:
    assert past_faces(set(names_taken(source))) == set()
