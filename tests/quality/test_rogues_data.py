"""The data of the rogues: enough of each kind, and nothing that does harm runs outside of a throwaway root."""

import ast
from collections import Counter
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from packproof.museum.rogues import Rogue, entries, machine, throwaway
from packproof.properties.ops.catalogue import OPS

ROGUES = entries()
MODULES = sorted(Path(str(machine.__file__)).parent.glob("[a-z]*.py"))
GUARDS = ("attempt", "_for_each")
SHARED_GUARD = "from packproof.museum.rogues.throwaway import attempt"
# what the kernels call themselves
HARMLESS = {*GUARDS, "own_sum", "_done.append", "Neighbour.FOLDER.is_symlink"}
HARMLESS |= {"Path", "os.path.expanduser", "os.geteuid", "sysconfig.get_path"}


def test_there_are_many_of_each_kind_and_most_are_defended_against() -> None:
    kinds = Counter(rogue.kind for rogue in ROGUES.values())
    assert len(ROGUES) >= 160
    assert set(kinds) == set(get_args(get_type_hints(Rogue)["kind"]))
    assert min(kinds.values()) >= 6
    assert sum(not rogue.undefended for rogue in ROGUES.values()) >= 155 / 160 * len(ROGUES)


def test_each_is_a_mechanism_of_its_own() -> None:
    for field in ("title", "kernel"):
        assert [name for name, n in Counter(getattr(r, field) for r in ROGUES.values()).items() if n > 1] == []


def test_an_entry_says_what_its_kind_needs() -> None:
    for rogue in ROGUES.values():
        assert rogue.op in {"running_sum", *OPS}, rogue.id
        assert (rogue.contract is not None) == (rogue.kind in ("contract", "computed")) or rogue.id == "R90", rogue.id
        assert rogue.destroys or not rogue.harms, rogue.id
        assert rogue.destroys or rogue.kind != "machine", rogue.id


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_what_harms_others_asks_for_a_throwaway_root_first(module: Path) -> None:
    """Read, not run: a mistake here would be a mistake on this machine."""
    functions = _functions(module)
    guards = [function for function in functions if function.name in GUARDS]
    if SHARED_GUARD in module.read_text().splitlines():
        assert not guards  # none stands in its place
        guards = [function for function in _functions(Path(str(throwaway.__file__))) if function.name in GUARDS]
    assert guards
    assert all(_first_statement(guard) == "require_throwaway_root()" for guard in guards)
    for function in functions:
        if not function.name.startswith("_"):
            assert {ast.unparse(call.func) for call in _own_calls(function)} <= HARMLESS, function.name


def _functions(module: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.parse(module.read_text()).body if isinstance(node, ast.FunctionDef)]


def _first_statement(function: ast.FunctionDef) -> str:
    """The first one after the docstring."""
    return ast.unparse(function.body[1 if ast.get_docstring(function) else 0])


def _own_calls(node: ast.AST) -> list[ast.Call]:
    """The calls that a function makes itself, without those of the lambdas in it."""
    calls = [node] if isinstance(node, ast.Call) else []
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Lambda):
            calls += _own_calls(child)
    return calls
