"""Mutants of packproof's own Triton kernels: the change, its position, and the source of the changed file."""

import ast
import importlib
import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from packproof.proof.mutants.operators import OPERATORS, Edit, Scope, Text

KERNELS = (Path(__file__).absolute().parents[2] / "kernels").resolve()
_OBJECT_ATTRIBUTE = (
    "device_caches"  # Triton's compiled code of a launched function, held by a method bound to the object
)


@dataclass(frozen=True)
class Mutant:
    """One edit of one function in a file of kernels."""

    id: str
    """module:function:operator:ordinal. The ordinal counts the operator's edits of the function from top to bottom, and
    so stays the same when the function moves."""
    file: str
    """Its name in kernels/."""
    function: str
    operator: str
    original: str
    """The text of the file without the edit."""
    edit: Edit
    lines: range
    """The lines of the changed statement."""

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py")

    @property
    def source(self) -> str:
        """The text of the file with the edit."""
        return self.original[: self.edit.start] + self.edit.new + self.original[self.edit.end :]

    @property
    def line(self) -> int:
        return self.original.count("\n", 0, self.edit.start) + 1

    @property
    def change(self) -> tuple[str, str]:
        """The changed line or lines, before and after."""
        source = self.original
        start = source.rfind("\n", 0, self.edit.start) + 1
        end = source.find("\n", self.edit.end)
        was = source[start:end]
        now = source[start : self.edit.start] + self.edit.new + source[self.edit.end : end]
        return " ".join(was.split()), " ".join(now.split())

    @property
    def diff(self) -> str:
        was, now = self.change
        return f"kernels/{self.file}:{self.line}\n- {was}\n+ {now}"


def mutants_of(module: str, source: str) -> Iterator[Mutant]:
    """Every mutant of the Triton functions of a module, in the order of the source."""
    text = Text(source)
    for function in ast.parse(source).body:
        if not isinstance(function, ast.FunctionDef) or not _for_triton(function):
            continue
        scope = Scope(function, text)
        count = dict.fromkeys(OPERATORS, 0)
        for node, lines in scope.nodes:
            for name, operator in OPERATORS.items():
                for edit in operator(node, scope):
                    mutant_id = f"{module}:{function.name}:{name}:{count[name]}"
                    yield Mutant(mutant_id, f"{module}.py", function.name, name, source, edit, lines)
                    count[name] += 1


def _for_triton(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(d).split("(")[0] == "triton.jit" for d in function.decorator_list)


def all_mutants() -> list[Mutant]:
    """The mutants of all kernel modules."""
    return [m for file in sorted(KERNELS.glob("*.py")) for m in _mutants_in(file)]


def _mutants_in(file: Path) -> Iterator[Mutant]:
    return mutants_of(file.stem, file.read_text(encoding="utf-8"))


@contextmanager
def install(mutant: Mutant) -> Iterator[None]:
    """Replace the mutant's function by the mutant, inside the block."""
    attributes = vars(getattr(_module(mutant), mutant.function))
    original = dict(attributes)
    _replace_function(mutant)
    try:
        yield
    finally:
        attributes.clear()
        attributes.update(original)


def control_of(mutant: Mutant) -> Mutant:
    """The control of a mutant: its function without the edit, with the id module:function."""
    original = mutant.original[mutant.edit.start : mutant.edit.end]
    return replace(mutant, id=f"{mutant.module}:{mutant.function}", edit=replace(mutant.edit, new=original))


def install_permanently(name: str) -> None:
    """Replace a function by the mutant or control with this id, for the rest of the process."""
    mutants = _mutants_in(KERNELS / f"{name.partition(':')[0]}.py")
    _replace_function({candidate.id: candidate for m in mutants for candidate in (m, control_of(m))}[name])


def _replace_function(mutant: Mutant) -> None:
    """Change the function object itself: all modules share it, interpreted or compiled."""
    source, file = mutant.source, f"<{mutant.id}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file  # Triton reads it there
    tree = ast.parse(source)
    tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == mutant.function]
    namespace: dict[str, object] = {}
    module = _module(mutant)
    exec(compile(tree, file, "exec"), vars(module), namespace)
    attributes = {name: value for name, value in vars(namespace[mutant.function]).items() if name != _OBJECT_ATTRIBUTE}
    vars(getattr(module, mutant.function)).update(attributes)


def _module(mutant: Mutant) -> ModuleType:
    return importlib.import_module(f"packproof.kernels.{mutant.module}")
