"""Imports point only downwards: refs, kernels, museum, properties, adapters, harness; read from the syntax trees."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ORDER = ("refs", "kernels", "museum", "properties", "adapters", "harness")
LAYOUT_AND_ERRORS = {f"packproof.refs.{name}" for name in ("errors", "packing", "arguments", "signatures")}
OUTSIDE = {
    "refs": {"torch", "einops"},
    "kernels": {"torch", "triton", "cuda"},  # cuda.core compiles CUDA C++, where it is installed
    "museum": {"torch", "triton"},
    "properties": {"torch", "einops", "hypothesis"},
}
MODULES = [path for folder in ORDER for path in sorted((ROOT / folder).rglob("*.py"))]


def imported(source: str) -> Iterator[str]:
    """Every module that a source imports, wherever in it; `from a import b` counts as a.b where that is one of ours."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, "relative import"
            assert node.level == 0, "relative import"
            submodules = (f"{node.module}.{alias.name}" for alias in node.names)
            if node.module in {"packproof", *(f"packproof.{folder}" for folder in ORDER)}:
                yield from submodules
            else:
                yield node.module


def wrong_imports(folder: str, source: str) -> list[str]:
    """The imports that a module of that folder may not have."""
    allowed = ORDER[: ORDER.index(folder) + 1]
    wrong = []
    for name in imported(source):
        top, *rest = name.split(".")
        if top == "packproof":
            below = rest[0] in allowed if rest and rest[0] != "__version__" else folder == "harness"
            if folder in {"kernels", "museum", "properties"} and below and rest[0] != folder:
                below = rest[0] == "refs" and (folder != "kernels" or name in LAYOUT_AND_ERRORS)
            if folder == "adapters" and below:
                below = rest[0] in {"refs", "properties", "adapters"}
            if not below:
                wrong.append(name)
        elif folder in OUTSIDE and top not in OUTSIDE[folder] and top not in sys.stdlib_module_names:
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    folder = path.relative_to(ROOT).parts[0]
    assert wrong_imports(folder, path.read_text()) == []


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("refs", "import packproof.kernels.rope"),
        ("refs", "def f():\n    import triton"),
        ("refs", "from packproof.properties import op"),
        ("kernels", "from packproof.refs.rotary import rope"),
        ("kernels", "from packproof.refs import rope"),
        ("kernels", "from packproof import refs"),
        ("kernels", "import hypothesis"),
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
    ],
)
def test_a_wrong_import_is_seen(folder: str, source: str) -> None:
    assert len(wrong_imports(folder, source)) == 1


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


def test_a_kernel_without_triton_says_what_to_do() -> None:
    code = "from packproof import kernels\ntry:\n    kernels.rope\nexcept ImportError as error:\n    print(error)"
    expected = "packproof.kernels.rope needs triton: install it, or use packproof.refs.rope\n"
    assert run_without(("triton", "triton.language"), code) == expected


def test_every_public_name_is_there() -> None:
    code = "import packproof; print([name for name in packproof.__all__ if getattr(packproof, name, None) is None])"
    assert run_without((), code) == "[]\n"
