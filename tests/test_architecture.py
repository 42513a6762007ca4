"""ARCHITECTURE.md is short and true: its tables are those of the test of imports, its walk and its paths exist."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.test_faces import defining_modules
from tests.test_imports import BELOW, BESIDE, FILES, ON_THE_CHECK, ORDER, ROOMS, ROOT, TREE, module_name

PAGE = (ROOT / "ARCHITECTURE.md").read_text()
WALK = re.findall(r"^\| `([\w/]+\.py)` \|", PAGE, re.M)
LAW = "properties/laws/invariance.py"  # the request names it, so that no module imports it
FOLDERS = (*(path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "build"),)
SOURCES = [path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in folder.rglob("*.*") if path.is_file()]
PATH = re.compile(r"(?:[\w.]+/)+(?:[\w]+\.\w+)?")
ROOTS = ("base/", "interpreter/", "refs/", "kernels/", "properties/", "adapters/", "harness/", "tools/")


def rows(pattern: str) -> dict[str, str]:
    """The last column of each row of a table, by the folder in its first one."""
    return dict(re.findall(rf"^\| `{pattern}` \|.*\| ([^|]*?) ?\|$", PAGE, re.M))


def folders(column: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", column))


def exists(path: str) -> bool:
    """Whether a file or a folder of the repository has this path, or one that ends with it."""
    if path.endswith("/"):
        return any(f"/{path}" in f"/{source}" for source in SOURCES if not source.endswith(".pyc"))
    return any(f"/{source}".endswith(f"/{path}") for source in SOURCES)


def unknown_paths(text: str) -> list[str]:
    """The paths between backticks that do not exist."""
    names = [name for name in re.findall(r"`([^`\n]+)`", text) if PATH.fullmatch(name)]
    return [name for name in names if not exists(name)]


def test_it_is_short() -> None:
    assert len(PAGE.splitlines()) <= 120


def test_the_table_of_folders_is_the_law_of_imports() -> None:
    table = rows(r"(?:tools/)?(\w+)/")
    assert tuple(table) == ORDER
    assert {name: folders(column) for name, column in table.items() if name in BELOW} == BELOW
    on_the_check = {name: column for name, column in table.items() if column.startswith("all down to `harness`")}
    assert on_the_check.keys() == ON_THE_CHECK
    beside = {name: folders(column) - {"harness"} for name, column in on_the_check.items()}
    assert {name: others for name, others in beside.items() if others} == BESIDE
    assert {name for name, column in table.items() if column == "all above"} == {"harness", "cli"}


def test_the_table_of_rooms_is_the_law_of_imports() -> None:
    assert {name: folders(column) for name, column in rows(r"(process|report|tiers|check|pytest)").items()} == ROOMS


def test_the_walk_has_at_most_fourteen_modules() -> None:
    assert WALK[0] == "tools/cli/check.py"
    assert WALK[-1].startswith("harness/report/formats/")
    assert len(WALK) <= 14


@pytest.mark.parametrize("path", WALK)
def test_each_module_of_the_walk_is_imported_by_one_of_it(path: str) -> None:
    assert ROOT / path in FILES
    if path not in (WALK[0], LAW):
        earlier = [TREE[module_name(ROOT / name)] for name in WALK[: WALK.index(path)]]
        assert module_name(ROOT / path) in set().union(*map(defining_modules, earlier))


def test_every_path_exists() -> None:
    assert unknown_paths(PAGE) == []


@pytest.mark.parametrize("path", ["harness/engine/", "harness/check/violations.py", "check/violations.py", "engine/"])
def test_a_path_that_is_gone_is_seen(path: str) -> None:
    assert unknown_paths(f"see `{path}` and `harness/check/cell.py`, in `check/`") == [path]


def test_no_page_and_no_source_names_a_folder_that_is_gone() -> None:
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/notes/*.md"), *FILES]
    gone = {path: unknown_paths(own_paths(path)) for path in texts if path.name != "CHANGELOG.md"}
    assert {path: names for path, names in gone.items() if names} == {}


def own_paths(path: Path) -> str:
    """The paths of a text that begin with a folder of the product, one in each line."""
    return "\n".join(name for name in re.findall(r"`[^`\n]+`", path.read_text()) if name[1:].startswith(ROOTS))


def test_the_tree_without_links_has_every_module(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    subprocess.run(["make", "-s", "tree", f"tree={tree}"], cwd=ROOT, capture_output=True, check=True)
    copies = {path for path in tree.rglob("*") if not path.is_dir()}
    assert not any(path.is_symlink() for path in tree.rglob("*"))
    modules = {module_name(path) for path in FILES if path.suffix == ".py"}
    assert modules <= {
        ".".join(path.parent.parts if path.stem == "__init__" else path.with_suffix("").parts)
        for path in (path.relative_to(tree) for path in copies)
    }
