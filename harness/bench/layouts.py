"""Layouts to time: four named ones, lengths from the command line or a file, and series for a sweep."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packproof.harness.results.names import known
from packproof.refs.errors import UsageError
from packproof.refs.wording import counted

TOKENS = 65_536  # of a named layout; it scales to other numbers
_MOST_BYTES = 64 << 20
_DOCUMENTS = (57, 2048)  # shortest and longest sequence of L2


@dataclass(frozen=True)
class BenchLayout:
    """The lengths of the sequences of a pack, under a name."""

    name: str
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def longest(self) -> int:
        return max(self.lengths, default=0)


def equal(n: int, tokens: int) -> tuple[int, ...]:
    """n lengths that differ by at most 1, the longer ones first."""
    each, more = divmod(tokens, n)
    return (each + 1,) * more + (each,) * (n - more)


def rows(tokens: int = TOKENS) -> tuple[int, ...]:
    """L1: sequences of 1024 tokens, the last one possibly shorter."""
    return tuple(min(1024, tokens - start) for start in range(0, tokens, 1024))


def documents(tokens: int = TOKENS, seed: int = 0) -> tuple[int, ...]:
    """L2: log-normal lengths, like those of documents; 101 in 65,536 tokens."""
    rng = np.random.default_rng(seed)
    n = max(round(101 * tokens / TOKENS), 1)
    shortest, longest = min(_DOCUMENTS[0], tokens // n), max(_DOCUMENTS[1], -(-tokens // n))
    lengths: list[int] = []
    while len(lengths) < n:
        length = round(float(rng.lognormal(6.2, 0.75)))
        if shortest <= length <= longest:
            lengths.append(length)
    missing = tokens - sum(lengths)
    while missing:
        j, step = int(rng.integers(n)), 1 if missing > 0 else -1
        if shortest <= lengths[j] + step <= longest:
            lengths[j] += step
            missing -= step
    return tuple(lengths)


def skewed(tokens: int = TOKENS, n: int | None = None, seed: int = 0) -> tuple[int, ...]:
    """L3: one sequence has half of the tokens, 2400 short ones share the other half (at 65,536 tokens)."""
    rng = np.random.default_rng(seed)
    longest = tokens - tokens // 2
    others = max(round(2401 * tokens / TOKENS), 2) - 1 if n is None else n - 1
    others = min(others, tokens - longest)
    if not others:
        return (longest,)
    short = 1 + rng.multinomial(tokens - longest - others, np.full(others, 1 / others))
    lengths = [int(length) for length in short]
    lengths.insert(int(rng.integers(others + 1)), longest)
    return tuple(lengths)


def single(tokens: int = TOKENS) -> tuple[int, ...]:
    """L4: one sequence."""
    return (tokens,)


NAMED: Mapping[str, Callable[[int], tuple[int, ...]]] = {"L1": rows, "L2": documents, "L3": skewed, "L4": single}


def named(names: Sequence[str], tokens: int) -> list[BenchLayout]:
    """The layouts with these names and this many tokens."""
    return [BenchLayout(name, NAMED[known("layout", name, NAMED)](tokens)) for name in names]


def from_text(text: str) -> BenchLayout:
    """The lengths of `--lengths 5,0,7`."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not word.isdecimal():
            raise UsageError(
                f"--lengths: {word!r} in {text!r}; expected counts of tokens separated by commas, such as 5,0,7"
            )
    return BenchLayout("lengths", tuple(map(int, words)))


def from_file(path: str) -> BenchLayout:
    """The lengths in a file: one count of tokens per line, or a JSON list. UsageError names file and line."""
    file = Path(path)
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise UsageError(
                f"--lengths-file: {path} has {file.stat().st_size} bytes, more than the {_MOST_BYTES} allowed"
            )
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--lengths-file: {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--lengths-file: {path} is not text; expected one count of tokens per line") from None
    lengths = _json_list(path, text) if text.lstrip().startswith("[") else _lines(path, text)
    if not lengths:
        raise UsageError(f"--lengths-file: {path} holds no lengths; expected one count of tokens per line")
    return BenchLayout(file.stem, lengths)


def _lines(path: str, text: str) -> tuple[int, ...]:
    lengths = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        if not line.strip().isdecimal():
            raise UsageError(
                f"--lengths-file: {path}, line {number}: {line.strip()[:40]!r}; expected a count of tokens"
            )
        lengths.append(int(line))
    return tuple(lengths)


def _json_list(path: str, text: str) -> tuple[int, ...]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"--lengths-file: {path}, line {error.lineno}: not JSON ({error.msg})") from None
    except RecursionError:
        raise UsageError(f"--lengths-file: {path}: brackets within brackets; expected one list of counts") from None
    for j, length in enumerate(data):
        if type(length) is not int or length < 0:
            raise UsageError(f"--lengths-file: {path}, item {j}: {json.dumps(length)[:40]}; expected a count of tokens")
    return tuple(data)


def sweep_tokens(tokens: int, _seed: int) -> list[BenchLayout]:
    """From 1/16 of the tokens to 16 times as many, in sequences of 1024: cost should grow in proportion."""
    steps = [tokens // 16, tokens // 4, tokens, 4 * tokens, 16 * tokens]
    return [BenchLayout(counted(n, "token"), rows(n)) for n in steps if n]


def sweep_sequences(tokens: int, _seed: int) -> list[BenchLayout]:
    """More and more sequences of equal length at a constant number of tokens: cost should stay constant."""
    counts = sorted({n for n in (1, 16, 128, 512, 2401, 16_384, tokens) if n <= tokens})
    return [BenchLayout(counted(n, "sequence"), equal(n, tokens)) for n in counts]


def sweep_longest(tokens: int, seed: int) -> list[BenchLayout]:
    """64 sequences with a growing longest one at a constant number of tokens: cost should stay constant."""
    n = min(64, tokens)
    longest, layouts = -(-tokens // n), []
    while longest < tokens - n + 1:
        layouts.append(_one_long(n, longest, tokens, seed))
        longest *= 4
    return [*layouts, _one_long(n, tokens - n + 1, tokens, seed)]


def _one_long(n: int, longest: int, tokens: int, seed: int) -> BenchLayout:
    others = list(equal(n - 1, tokens - longest)) if n > 1 else []
    others.insert(random.Random(seed).randrange(n), longest)
    return BenchLayout(f"longest {longest}", tuple(others))


SWEEPS: Mapping[str, Callable[[int, int], list[BenchLayout]]] = {
    "tokens": sweep_tokens,
    "sequences": sweep_sequences,
    "longest": sweep_longest,
}
