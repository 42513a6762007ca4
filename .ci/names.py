"""Finds names and docstrings that a reader has to read twice: `make words`. Exit code 1 where a folder has too many.

Three kinds, counted for each folder of the product. `--count` prints the table.

vague: variables, parameters and fields with a name of WORDS alone, such as `found` or `the_other`, in 100 bindings.
bare: functions and methods with such a name, in 100 functions.
relative: relative words in docstrings (that, which, what, whose, those), in 100 words.
"""

import ast
import math
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_WORD_LIST = """
    again alike alone apart asked begun beside beyond caught chosen done drawn each early ended every first found given
    got held here how its judged kept known large last late left listed made met mine named of one other others ours own
    place plain raised read rest said settled shown small some started taken there these told tried until used want
    wanted what where whole written
"""
WORDS = frozenset(_WORD_LIST.split())
FILLERS = frozenset({"a", "all", "it", "item", "items", "now", "ones", "the", "thing", "things"})
RELATIVE = re.compile(r"\b(what|that|which|those|whose|of which|where it|in which)\b", re.IGNORECASE)
SHORTEST_SENTENCE = 4  # words; a heading is no sentence
EXAMPLE = re.compile(r">>>.*")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
OUTSIDE = {".ci", ".git", ".github", ".venv", "build", "data", "docs", "examples", "src", "tests"}  # not the product

VAGUE, BARE, RELATIVES = KINDS = ("vague", "bare", "relative")
LIMITS = {VAGUE: 1.5, BARE: 1.5, RELATIVES: 2.5}  # in 100 bindings, functions and words
SMALLEST = {VAGUE: 0, BARE: 0, RELATIVES: 200}  # no limit for folders up to this many of them
UNCOUNTED = {VAGUE: 0, BARE: 3, RELATIVES: 0}  # allowed in every folder: users call `Domain.of`, `Sample.alone`
UNITS = {VAGUE: ("binding", "bindings"), BARE: ("function name", "functions"), RELATIVES: ("word", "words")}
WAYS_OUT = {
    VAGUE: "name the thing by a noun of the field: violation, rows, conditions, remaining, selected_cases",
    BARE: "name the function by a verb and its object, or by its result: read_results, last_row",
    RELATIVES: "make two sentences of it, or turn the clause into an adjective or a noun",
}
# Folders above their limit, with the share that they may have at most. It may only fall: it follows a lower share, and
# a share within the limit removes it.
CEILINGS: dict[str, dict[str, float]] = {
    VAGUE: {},
    BARE: {},
    RELATIVES: {},
}
LAG = 1.0  # a ceiling has to fall once it is this far above the share


class Finding(NamedTuple):
    """One occurrence of a word."""

    path: str
    line: int
    kind: str
    word: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind} {UNITS[self.kind][0]} {self.word!r}"


@dataclass
class Folder:
    """The counts of one folder."""

    totals: Counter[str] = field(default_factory=Counter)
    """Bindings, functions and words of docstrings, by kind."""
    findings: dict[str, list[Finding]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    """Occurrences by kind."""

    def share(self, kind: str) -> float:
        """Occurrences in percent."""
        return 100 * len(self.findings[kind]) / max(self.totals[kind], 1)

    def within(self, kind: str) -> bool:
        """Whether the share needs no ceiling."""
        few = len(self.findings[kind]) <= UNCOUNTED[kind] or self.totals[kind] <= SMALLEST[kind]
        return few or self.share(kind) <= LIMITS[kind]


def is_vague(name: str) -> bool:
    """Whether a name consists of words of WORDS, articles and numbers: found, found_1, the_left."""
    parts = [part for part in re.sub(r"\d+", "", name).split("_") if part]
    return not WORDS.isdisjoint(parts) and all(part in WORDS | FILLERS for part in parts)


def folder_of(path: str) -> str:
    """The folder of a path, at most two levels deep; "." for the root."""
    return "/".join(PurePosixPath(path).parent.parts[:2]) or "."


def count(sources: Iterable[tuple[str, str]]) -> dict[str, Folder]:
    """The counts of each folder, from paths and their text."""
    folders: dict[str, Folder] = defaultdict(Folder)
    for path, source in sources:
        folder = folders[folder_of(path)]
        for node in ast.walk(ast.parse(source, path)):
            for line, kind, name in _names(node):
                folder.totals[kind] += 1
                if is_vague(name):
                    folder.findings[kind].append(Finding(path, line, kind, name))
            for sentence in filter(_is_long_enough, _sentences(node)):
                folder.totals[RELATIVES] += len(sentence)
                folder.findings[RELATIVES] += [Finding(path, n, RELATIVES, w) for n, w in _relative_words(sentence)]
    return folders


def _names(node: ast.AST) -> Iterator[tuple[int, str, str]]:
    """The line, the kind and the name of what a node binds."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield node.lineno, VAGUE, name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield node.lineno, BARE, name


def _sentences(node: ast.AST) -> Iterator[list[tuple[int, str]]]:
    """The words of each sentence of the node's docstring, with their lines. Input of examples is left out."""
    if not isinstance(node, DOCUMENTED) or not ast.get_docstring(node, clean=False):
        return
    docstring = node.body[0].value  # type: ignore[attr-defined]
    sentence: list[tuple[int, str]] = []
    for number, line in enumerate(docstring.value.split("\n"), docstring.lineno):
        for word in EXAMPLE.sub("", line).split():
            sentence.append((number, word))
            if word.endswith((".", "!", "?")):
                yield sentence
                sentence = []
    yield sentence


def _is_long_enough(sentence: list[tuple[int, str]]) -> bool:
    return len(sentence) >= SHORTEST_SENTENCE


def _relative_words(sentence: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Their lines and texts; an expression of two words has the line of its first."""
    text = " ".join(word for _, word in sentence)
    for match in RELATIVE.finditer(text):
        line, _ = sentence[text.count(" ", 0, match.start())]
        yield line, match[0]


def errors(folders: dict[str, Folder], ceilings: dict[str, dict[str, float]]) -> Iterator[str]:
    """Folders above their limit or ceiling, with their findings, and ceilings that have to fall."""
    for kind in KINDS:
        for name, folder in sorted(folders.items()):
            share, ceiling = folder.share(kind), ceilings[kind].get(name)
            most = LIMITS[kind] if ceiling is None else ceiling
            entry = f".ci/names.py: CEILINGS[{kind!r}][{name!r}] is {ceiling}, the share {share:.2f}"
            if folder.within(kind):
                if ceiling is not None:
                    yield f"{entry}, within the limit: remove this ceiling"
            elif share > most:
                yield from map(str, sorted(folder.findings[kind]))
                occurrences = f"{len(folder.findings[kind])} {kind} in {folder.totals[kind]} {UNITS[kind][1]}"
                yield f"{name}: {occurrences} are {share:.2f} %, expected at most {most} %: {WAYS_OUT[kind]}"
            elif ceiling is not None and share < ceiling - LAG:
                yield f"{entry}: lower this ceiling to {math.ceil(10 * share) / 10}"
        for name in sorted(ceilings[kind].keys() - folders.keys()):
            yield f".ci/names.py: CEILINGS[{kind!r}][{name!r}] stands for no folder: remove it"


def product() -> Iterator[tuple[str, str]]:
    """The paths of the product's modules, with their text; new files too."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in sorted(set(listed)):
        path = Path(name)
        if OUTSIDE.isdisjoint(path.parent.parts) and path.is_file() and not path.is_symlink():
            yield name, path.read_text(encoding="utf-8")


def table(folders: dict[str, Folder]) -> Iterator[str]:
    """The shares of each folder."""
    yield f"{'folder':<34}" + "".join(f"{kind:>10}" for kind in KINDS)
    for name, folder in sorted(folders.items()):
        yield f"{name:<34}" + "".join(f"{folder.share(kind):>10.1f}" for kind in KINDS)


def main() -> int:
    folders = count(product())
    if "--count" in sys.argv:
        print(*table(folders), sep="\n")
        return 0
    lines = list(errors(folders, CEILINGS))
    print(*lines, sep="\n", end="\n" * bool(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
