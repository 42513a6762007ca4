"""The release script, on a copy of the sources: it builds, reads, installs and tries, and publishes nothing."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
VERSION = re.search(r'"(.*)"', (ROOT / "src/packproof/version.py").read_text().partition("__version__ = ")[2])
pytestmark = pytest.mark.proof


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository of its own with the tracked files, whose changelog has a date."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(lambda name: (ROOT / name).exists(), listed.splitlines()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name, follow_symlinks=False)
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace(", unreleased", ", 2026-11-29", 1))
    run(tmp_path, "git", "init", "-q")
    commit(tmp_path)
    return tmp_path


def commit(folder: Path) -> None:
    run(folder, "git", "add", "-A")
    author = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    assert run(folder, "git", *author, "commit", "-qm", "test").returncode == 0


def problems(folder: Path) -> list[str]:
    """What the script says of the files built from this folder."""
    built = run(folder, ".ci/build", "build/release/files")
    assert built.returncode == 0, built.stderr
    done = run(folder, sys.executable, ".ci/distribution.py", "build/release/files")
    lines = done.stdout.split("not ready: ")[1:]
    assert done.returncode == bool(lines), done.stderr
    return [line.strip() for line in lines]


def test_a_release_installs_from_both_files_and_stops_before_the_upload(clone: Path) -> None:
    done = run(clone, ".ci/release", sys.executable)
    assert done.returncode == 0, done.stdout + done.stderr
    assert VERSION
    said = done.stderr.splitlines()
    assert said[0] == f"release: packproof-{VERSION[1]}-py3-none-any.whl installs, and what users run holds"
    assert said[1] == f"release: packproof-{VERSION[1]}.tar.gz installs, and what users run holds"
    assert said[2].startswith("release: not published.")
    assert said[-1] == "release:   python3 -m twine upload build/release/files/*"
    assert (clone / "build/release/notes.md").read_text().startswith("- `packproof check` checks any kernel")


def test_what_a_release_lacks_is_named(clone: Path) -> None:
    assert problems(clone) == []
    replace(clone / "pyproject.toml", '"packproof.museum" = ["entries.json"]\n', "")
    replace(clone / "CHANGELOG.md", ", 2026-11-29", ", soon")
    (clone / "MANIFEST.in").write_text("")
    (clone / "museum/note.txt").write_text("no module, and not declared")
    commit(clone)
    run(clone, "git", "tag", "v0.1.0")
    (clone / "README.md").write_text("another")
    said = "\n".join(problems(clone))
    for expected in (
        "the wheel lacks packproof/museum/entries.json",
        "the wheel lacks packproof/museum/note.txt",
        "the source archive has tests/test_release.py, a part of the tests",
        "CHANGELOG.md has '## 0.1.0, soon', expected '## 0.1.0, YYYY-MM-DD'",
        "not committed: README.md",
        "there is a tag v0.1.0 already",
    ):
        assert expected in said


def test_a_file_that_is_no_part_of_the_product_is_named(clone: Path) -> None:
    assert problems(clone) == []
    [wheel] = (clone / "build/release/files").glob("*.whl")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("packproof/__pycache__/stray.pyc", "")
    done = run(clone, sys.executable, ".ci/distribution.py", "build/release/files")
    assert done.returncode == 1
    assert "the wheel has packproof/__pycache__/stray.pyc, which is no file of the product" in done.stdout


def replace(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))
