"""Names in source files, read without running any of them: whether a target exists, and which functions there are."""

import ast
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from packproof.adapters.peers import PEERS, peers_of
from packproof.base.errors import UsageError
from packproof.base.hub.build_variants import variant_file
from packproof.base.hub.repositories import is_hub
from packproof.base.importing import working_directory, working_directory_text
from packproof.base.names import alternatives_text
from packproof.base.signatures import SIGNATURES

EXPECTED_FORM = "package.module:function, path/file.py:function or hub:owner/kernel:function"


def canonical_target(text: str) -> str:
    """A target with packproof's separators: "file.py:Class.function" for pytest's "file.py::Class::function"."""
    source, separator, qualname = text.partition("::")
    return f"{source}:{qualname.replace('::', '.')}" if separator else text


def missing_target_reason(target: str) -> str:
    """Why no such target exists, without running its code; "" if it exists, or if only a run could tell."""
    target = canonical_target(target)
    if target in PEERS:
        return ""
    source, _, qualname = target.rpartition(":")
    if source == "__main__":  # the name of a function of a notebook
        return ""
    try:
        file = _source_file(source)
    except UsageError as error:
        return str(error)
    if file is None:
        return f"target {target!r}: there is no {'file' if source.endswith('.py') else 'module'} {source}"
    tree = _parse(file)
    names = _bound_names(tree) if tree else None
    name = qualname.partition(".")[0]
    return "" if names is None or name in names else f"target {target!r}: {source} defines no {name}"


def incomplete_target_error(target: str) -> UsageError:
    """The error for a target that is no more than a file, a module or a name, with the targets that may be meant."""
    return UsageError(f"target {target!r}{_candidates_text(target.rstrip(':'))}")


def _candidates_text(name: str) -> str:
    if name in SIGNATURES:
        return f" is an op; `packproof check --op {name}` checks packproof's kernel of it"
    if peers := peers_of(name):
        return f": which kernel? With an adapter {alternatives_text(peers, 'packproof list')}"
    if file := _source_file(name):
        functions = [f"{name}:{function}" for function in _function_names(file)]
        return f": which function? In it {alternatives_text(functions) if functions else 'there is no public one'}"
    if name.endswith(".py"):
        return f": there is no file {name} in {working_directory_text()}"
    module, _, function = name.rpartition(".")
    is_function = module and not missing_target_reason(f"{module}:{function}")
    return f"; {f'did you mean {module}:{function}? ' if is_function else ''}expected {EXPECTED_FORM}"


def _source_file(source: str) -> Path | None:
    """The file of a target without its function, "." for a module without a file; None if it does not exist.

    Raises UsageError for a kernel of the hub that is not here.
    """
    if source.endswith(".py"):
        return Path(source) if Path(source).is_file() else None
    if is_hub(source):
        return variant_file(source)
    spec = _module_spec(source)
    return Path(spec.origin or "") if spec else None


def _module_spec(module: str) -> ModuleSpec | None:
    """The spec of a module, found as `import_by_name` finds it. Unlike `find_spec`, this imports no parent packages."""
    package, *submodules = module.split(".")
    spec = PathFinder.find_spec(package, [*map(str, working_directory())]) or _installed_spec(package)
    for part in submodules:
        package = f"{package}.{part}"
        spec = PathFinder.find_spec(package, [*(spec.submodule_search_locations or ())]) if spec else None
    return spec


def _installed_spec(package: str) -> ModuleSpec | None:
    try:
        return find_spec(package) if package.isidentifier() else None
    except ValueError:  # `__main__` has none
        return None


def _parse(file: Path) -> ast.Module | None:
    """The syntax tree of a source file, None if it is no Python."""
    try:
        return ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _bound_names(tree: ast.Module) -> set[str] | None:
    """Every name bound in a source file, or None if the source alone does not tell."""
    nodes = list(ast.walk(tree))
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.asname or node.name.partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    return None if {"*", "__getattr__", "globals"} & names else names


def _function_names(file: Path) -> Iterator[str]:
    """The public functions and adapters at the top level of a source file, without kernels of Triton.

    Also what its `__all__` has from other modules: a kernel of the hub defines little in its own file.
    """
    tree = _parse(file) or ast.Module([], [])
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name, decorator_list=decorators):
                is_kernel = any("jit" in ast.unparse(decorator) for decorator in decorators)
                if not (is_kernel or name.startswith("_")):
                    yield name
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function)):
                if ast.unparse(function).rpartition(".")[2] == "adapt":
                    yield name
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=elements) | ast.Tuple(elts=elements)):
                exported = {element.value for element in elements if isinstance(element, ast.Constant)}
                yield from (name for name in _imported_names(tree) if name in exported)


def _imported_names(tree: ast.Module) -> Iterator[str]:
    """The names that a source file imports from other modules, and no modules."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (alias.asname or alias.name for alias in node.names)
