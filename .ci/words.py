"""Finds words that the text of this project does not use: `make words`. Exit code 1 where there are some; --count sums.

The right column says what to write instead. A word that has to stay has its reason in ALLOWED.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

WORDS = {
    r"\bconvict\w*|\bacquit\w*": "detect (a bug), fail (a kernel)",
    r"\bnobody\b|\bnobody's\b|\banybody\b|\bsomebody\b": "no one, the user",
    r"\bstrangers?\b|\bstranger's\b": "a third-party kernel",
    r"\btold apart\b|\btells apart\b|\bis told\b|\basked too\b": "reported separately, is checked too",
    r"\b(written|made|writes|makes) anew\b|\banew\b": "rewritten, again",
    r"\bluckier\b|\blucky\b": "a faster configuration",
    r"\bthe way of\b": "data flow, or how it works",
    r"\bbehind\b": "after, past, beyond",
    r"\b(right|wrong) kernels?\b|\bkernels? (that|which) (is|are) (right|wrong)\b": "correct, incorrect",
    r"\bturns?\b(?= (by turn|of (a|the) loop|of the loops))|\bin turn\b|\bby turns\b|\bturn by turn\b": "iteration",
    r"\binputs of your own\b": "your own tensors",
    r"\bwhat is left\b|\bwhat survived\b": "shrunk to, undetected",
    r"\bthe house\b": "architecture",
    r"\b(absolute )?twins?\b": "magnitude op",
    r"\brivals?\b|\bcontenders?\b": "peer, implementation",
    r"\bcourts?\b": "evaluator",
    r"\bfor people\b|\bpage for\b": "HTML report, for users",
    r"(?<![-+] )(?<![-+\d.,])\b1 (cells|cases|sequences|tokens|elements|tensors|mutants|kernels)\b": "the singular",
    r"\bis a (int|array|empty|unknown|axis|op)\b": "an",
}
ALLOWED = {  # path prefix: why all words stay there
    ".ci/words.py": "the list itself",
    "CHANGELOG.md": "quotes commands and names that were",
    "LICENSE": "a text of others",
    "data/": "measured, in the words of that day",
    "docs/peers_board.md": "made of a run",
    "tests/test_words.py": "shows that they are seen",
    "museum/entries.json": "titles of issues of others",
}
READ = {".py", ".md", ".cu", ".cuh", ".h", ".toml", ".yml", ".html", ".ipynb", ".json", ".sh", ""}


def found(text: str) -> list[tuple[int, str, str]]:
    """The line, the word and what to write instead, of each word that a text should not have, in identifiers too."""
    spaced = re.sub(r"(?<=[A-Za-z])_(?=[A-Za-z])", " ", text)  # words of an identifier
    hits = []
    for number, line in enumerate(spaced.splitlines(), 1):
        for pattern, instead in WORDS.items():
            hits += [(number, match.group(), instead) for match in re.finditer(pattern, line, re.IGNORECASE)]
    return hits


def files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    paths = [Path(name) for name in listed if name and not name.startswith(tuple(ALLOWED))]
    return [path for path in paths if path.suffix in READ and path.is_file() and not path.is_symlink()]


def main() -> int:
    counts: Counter[tuple[str, str]] = Counter()
    for path in files():
        for number, word, instead in found(path.read_text(encoding="utf-8", errors="replace")):
            counts[instead, path.parts[0]] += 1
            if "--count" not in sys.argv:
                print(f"{path}:{number}: {word!r}: {instead}")
    if "--count" in sys.argv:
        folders = sorted({folder for _, folder in counts})
        for instead in WORDS.values():
            row = {folder: counts[instead, folder] for folder in folders if counts[instead, folder]}
            print(f"{sum(row.values()):>5} {instead}: {row}")
        print(f"{counts.total():>5} in all")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main())
