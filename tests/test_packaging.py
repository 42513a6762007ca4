"""What users install: one import name, every module, and no shadow over another package called `kernels`."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import packproof

ROOT = Path(__file__).parent.parent
FOLDERS = ("refs", "kernels", "museum", "properties", "adapters", "harness")


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of a wheel built from a source archive of a copy of the sources, offline, with the build backend."""
    setuptools = pytest.importorskip("setuptools", reason="building a wheel needs setuptools")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip(f"pyproject.toml needs setuptools 77, here is {setuptools.__version__}")
    source = tmp_path_factory.mktemp("source")
    for folder in ("src", *FOLDERS):
        shutil.copytree(ROOT / folder, source / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    archive = build("sdist", source)
    with tarfile.open(archive) as files:
        files.extractall(source / "unpacked", filter="data")
    [unpacked] = (source / "unpacked").iterdir()
    return set(zipfile.ZipFile(build("wheel", unpacked)).namelist())


def build(kind: str, folder: Path) -> Path:
    """What setuptools makes of a folder."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}('dist')"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, text=True)
    [built] = (folder / "dist").iterdir()
    return built


def test_the_wheel_has_one_top_level_name(wheel_names: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"packproof"}


def test_the_wheel_contains_every_module(wheel_names: set[str]) -> None:
    sources = {f"packproof/{path.name}" for path in (ROOT / "src/packproof").iterdir() if path.is_file()}
    for folder in FOLDERS:
        modules = {f"packproof/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*.py")}
        assert modules, folder
        sources |= modules
    data = [*ROOT.glob("kernels/*.cu*"), *ROOT.glob("museum/**/*.json"), *ROOT.glob("harness/**/*.json")]
    sources |= {f"packproof/{p.relative_to(ROOT)}" for p in [*data, *ROOT.glob("harness/reports/templates/*")]}
    assert sources - wheel_names == set()


def test_the_wheel_carries_the_licence(wheel_names: set[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_names)


def test_the_checkout_shadows_no_package_called_kernels(tmp_path: Path) -> None:
    """With the checkout first on sys.path, an installed `kernels` still wins, because ours has no __init__.py."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/__init__.py").touch()
    look = "import importlib.util as found; print(found.find_spec('kernels').origin)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    seen = subprocess.run([sys.executable, "-c", look], cwd=ROOT, env=env, check=True, capture_output=True, text=True)
    assert Path(seen.stdout.strip()) == tmp_path / "kernels/__init__.py"


def test_no_conftest_puts_the_root_on_the_path() -> None:
    assert not (ROOT / "conftest.py").exists()


def test_one_version() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert packproof.__version__ == declared
    try:
        installed = importlib.metadata.version("packproof")
    except importlib.metadata.PackageNotFoundError:
        return  # a GPU machine runs the sources without installing them
    assert installed == declared
