"""What users install: one import name, every module, and no shadow over another package called `kernels`."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import packproof

ROOT = Path(__file__).parent.parent
FOLDERS = (
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
    "tools",
)


SCRIPT = (ROOT / "tests/typing/user_script.py").read_text()
TYPOS = {  # what a user mistypes, and what mypy has to say of it
    ("chunk=32", "chunks=32"): 'Unexpected keyword argument "chunks" for overloaded function "ssd_chunked"',
    ("kernels.rope_qk(", "kernels.rope_kq("): 'Module has no attribute "rope_kq"',
    ("packproof.replay(", "packproof.replays("): 'Module has no attribute "replays"',
    ("verdict.failure.lengths", "verdict.failure.length"): '"Failure" has no attribute "length"',
    ("parts.off_diagonal", "parts.of_diagonal"): '"SsdIntermediates" has no attribute "of_diagonal"',
}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, in a folder called packproof, that can be built from."""
    setuptools = pytest.importorskip("setuptools", reason="building a wheel needs setuptools")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip(f"pyproject.toml needs setuptools 77, here is {setuptools.__version__}")
    source = tmp_path_factory.mktemp("work") / "packproof"
    for folder in ("src", *FOLDERS):
        shutil.copytree(ROOT / folder, source / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    return source


@pytest.fixture(scope="module")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a source archive, offline, with the build backend."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(build("sdist", clone)) as files:
        files.extractall(folder, filter="data")
    [unpacked] = folder.iterdir()
    return build("wheel", unpacked)


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def installed(clone: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The Pythons of two virtual environments that have packproof beside what is installed here, in two ways."""
    found = {}
    for way, built in {"wheel": wheel, "editable": build("editable", clone)}.items():
        folder = tmp_path_factory.mktemp(way)
        venv.create(folder, symlinks=True)
        here = {"base": str(folder), "platbase": str(folder)}
        site = Path(sysconfig.get_path("purelib", "venv", here))
        zipfile.ZipFile(built).extractall(site)
        (site / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
        found[way] = str(Path(sysconfig.get_path("scripts", "venv", here)) / "python")
    return found


def build(kind: str, folder: Path) -> Path:
    """What setuptools makes of a folder: an sdist, a wheel, or what an editable install unpacks."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}('dist/{kind}'))"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, text=True)
    [built] = (folder / "dist" / kind).iterdir()
    return built


# torch's own types take mypy four times as long as packproof's; with them, `make lint` reads the script in the sources
@pytest.mark.proof
@pytest.mark.parametrize("torch_types", ["skip", "normal"])
def test_a_type_checker_reads_the_public_api_and_sees_each_typo(
    installed: dict[str, str], tmp_path: Path, torch_types: str
) -> None:
    """mypy --strict in a folder of the user's."""
    pytest.importorskip("mypy", reason="the types of the public API are read by mypy")
    mistyped = SCRIPT
    for right, wrong in TYPOS:
        assert SCRIPT.count(right) == 1, right
        mistyped = mistyped.replace(right, wrong)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "mistyped.py").write_text(mistyped)
    settings = f"[mypy]\nstrict = true\n[mypy-torch.*]\nfollow_imports = {torch_types}\n"
    (tmp_path / "mypy.ini").write_text(settings)
    for way, python in installed.items():
        command = [sys.executable, "-m", "mypy", "--python-executable", python, "script.py", "mistyped.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert not done.stderr
        errors = [line for line in done.stdout.splitlines() if ": error: " in line]
        assert [line for line in errors if line.startswith("script.py")] == [], way
        for (_, wrong), expected in TYPOS.items():
            place = f"mistyped.py:{line_of(wrong, mistyped)}: error: "
            assert any(line.startswith(place + expected) for line in errors), (way, place + expected, done.stdout)


def line_of(text: str, source: str) -> int:
    return source[: source.index(text)].count("\n") + 1


@pytest.mark.proof
def test_it_is_imported_beside_a_clone_of_its_name(installed: dict[str, str], clone: Path) -> None:
    """The clone is a folder without __init__.py, which comes after every package that is installed."""
    look = "import packproof; print(packproof.__version__, packproof.kernels.__doc__)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for python in installed.values():
        seen = subprocess.run(
            [python, "-c", look], cwd=clone.parent, env=environment, check=True, capture_output=True, text=True
        )
        assert seen.stdout.startswith(f"{packproof.__version__} Fast packed kernels")


def test_the_wheel_has_one_top_level_name(wheel_names: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"packproof"}


def place(path: Path) -> Path:
    """Where a file lies inside the package: the rooms of tools/ are rooms of packproof."""
    return path.relative_to(ROOT / "tools" if path.is_relative_to(ROOT / "tools") else ROOT)


def test_the_wheel_contains_every_module(wheel_names: set[str]) -> None:
    sources = {f"packproof/{path.name}" for path in (ROOT / "src/packproof").iterdir() if path.is_file()}
    for folder in FOLDERS:
        modules = {f"packproof/{place(path)}" for path in (ROOT / folder).rglob("*.py")}
        assert modules, folder
        sources |= modules
    data = ("kernels/*.cu*", "*/*.pyi", "museum/**/*.json", "tools/**/*.json", "harness/report/formats/templates/*")
    sources |= {f"packproof/{place(path)}" for pattern in data for path in ROOT.glob(pattern)}
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
