"""Are a source archive and its wheel fit for an upload? python .ci/distribution.py FOLDER names what is not, and fails.

Contents, metadata, versions and the changelog are read. Nothing is imported from them, and nothing is sent.
"""

import email
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
NAME = "packproof"
FOLDERS = [
    "adapters",
    "base",
    "harness",
    "interpreter",
    "kernels",
    "layers",
    "museum",
    "packs",
    "parallel",
    "properties",
    "refs",
    "tools",
]
NOT_IN_A_WHEEL = {".md"}  # pages for readers of the sources, but for those that a command prints
PRINTED = {"packproof/proof/backtest/RULE.md", "packproof/cli/SKILL.md"}
LARGEST = 4 << 20
REQUIRED = ("Name", "Version", "Summary", "License-Expression", "Requires-Python", "Description-Content-Type")
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


def tracked_files() -> set[str]:
    """The files of the product, as the wheel names them."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *FOLDERS, "src/packproof"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    paths = [PurePosixPath(path) for path in listed.stdout.split("\0") if path]
    names = {_packaged(path) for path in paths if not (ROOT / path).is_symlink()}
    return {name for name in names if PurePosixPath(name).suffix not in NOT_IN_A_WHEEL or name in PRINTED}


def _packaged(path: PurePosixPath) -> str:
    inside = path.relative_to("src/packproof") if path.parts[0] == "src" else path
    return str(PurePosixPath(NAME, inside.relative_to("tools") if inside.parts[0] == "tools" else inside))


def missing_or_foreign(wheel: set[str], archive: set[str]) -> Iterator[str]:
    """What the wheel lacks or has too much, and what the archive lacks of it."""
    modules = {name for name in wheel if ".dist-info/" not in name}
    tracked = tracked_files()
    yield from (f"the wheel lacks {name}" for name in sorted(tracked - modules))
    yield from (f"the wheel has {name}, which is no file of the product" for name in sorted(modules - tracked))
    yield from (f"the source archive lacks {name}" for name in sorted(modules - archive))
    for name in ("PKG-INFO", "LICENSE", "README.md", "pyproject.toml"):
        if name not in archive:
            yield f"the source archive lacks {name}"
    yield from (f"the source archive has {name}, a part of the tests" for name in archive if name.startswith("tests/"))


def metadata_problems(text: str, version: str) -> Iterator[str]:
    """What an index would refuse, or show wrongly."""
    metadata = email.message_from_string(text)
    yield from (f"the metadata has no {field}" for field in REQUIRED if not metadata[field])
    if metadata["Version"] != version or not VERSION.fullmatch(version):
        yield f"the metadata has version {metadata['Version']}, the sources {version}; an index takes 1.2.3 or 1.2.3rc1"
    if metadata.get_payload() != (ROOT / "README.md").read_text():
        yield "the description is not the README"
    yield from (f"an index refuses {line}" for line in metadata.get_all("Requires-Dist", ()) if "@" in line)
    try:
        from packaging.metadata import Metadata  # noqa: PLC0415

        Metadata.from_email(text, validate=True)
    except ExceptionGroup as errors:
        yield from (f"an index refuses the metadata: {error}" for error in errors.exceptions)


def changelog_section(version: str) -> tuple[str, str]:
    """The heading and the text of a version in the changelog; "" for both if there is none."""
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    section = next((text for text in sections if re.match(rf"{re.escape(version)}\b", text)), "")
    heading, _, body = section.partition("\n")
    return heading, body.strip()


def release_problems(version: str) -> Iterator[str]:
    """What a release lacks beside its files."""
    heading, body = changelog_section(version)
    if not body:
        yield f"CHANGELOG.md has no section for {version}"
    elif not re.search(r"\d{4}-\d\d-\d\d", heading):
        yield f"CHANGELOG.md has '## {heading}', expected '## {version}, YYYY-MM-DD'"
    status = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, check=True, capture_output=True, text=True)
    if status.stdout:
        yield f"not committed: {', '.join(line[3:] for line in status.stdout.splitlines()[:5])}"
    tags = subprocess.run(["git", "tag", "--list", f"v{version}"], cwd=ROOT, check=True, capture_output=True, text=True)
    if tags.stdout:
        yield f"there is a tag v{version} already: raise the version in pyproject.toml and src/packproof/version.py"


def main(folder: Path) -> int:
    """Prints every problem. Writes the notes of the release beside the files."""
    version_file = (ROOT / "src/packproof/version.py").read_text()
    [version] = re.findall(r'^__version__ = "(.*)"$', version_file, re.M)
    archives, wheels = sorted(folder.glob("*.tar.gz")), sorted(folder.glob("*.whl"))
    if [path.name for path in (*archives, *wheels)] != [
        f"{NAME}-{version}.tar.gz",
        f"{NAME}-{version}-py3-none-any.whl",
    ]:
        print(
            f"{folder} has {[path.name for path in folder.iterdir()]}, expected one archive and one wheel of {version}"
        )
        return 1
    with tarfile.open(archives[0]) as archive:
        in_archive = {member.name.partition("/")[2].removeprefix("src/") for member in archive if member.isfile()}
    with zipfile.ZipFile(wheels[0]) as wheel:
        in_wheel = set(wheel.namelist())
        metadata = wheel.read(f"{NAME}-{version}.dist-info/METADATA").decode()
    problems = [*missing_or_foreign(in_wheel, in_archive), *metadata_problems(metadata, version)]
    problems += [
        f"{path.name} has {path.stat().st_size:,} bytes" for path in folder.iterdir() if path.stat().st_size > LARGEST
    ]
    problems += release_problems(version)
    (folder.parent / "notes.md").write_text(f"{changelog_section(version)[1]}\n")
    print(*(f"not ready: {problem}" for problem in problems), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
