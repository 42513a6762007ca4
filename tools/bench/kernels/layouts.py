"""Layouts to time: four named ones, lengths from the command line or a file, and series for a sweep."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packproof.base.errors import UsageError
from packproof.base.names import require_known
from packproof.base.wording import plural

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


def equal_lengths(n: int, tokens: int) -> tuple[int, ...]:
    """n lengths that differ by at most 1, the longer ones first."""
    length, remainder = divmod(tokens, n)
    return (length + 1,) * remainder + (length,) * (n - remainder)


def row_lengths(tokens: int = TOKENS) -> tuple[int, ...]:
    """L1: sequences of 1024 tokens, the last one possibly shorter."""
    return tuple(min(1024, tokens - start) for start in range(0, tokens, 1024))


def document_lengths(tokens: int = TOKENS, seed: int = 0) -> tuple[int, ...]:
    """L2: log-normal lengths, like those of documents; 101 in 65,536 tokens."""
    rng = np.random.default_rng(seed)
    n = max(round(101 * tokens / TOKENS), 1)
    shortest, longest = min(_DOCUMENTS[0], tokens // n), max(_DOCUMENTS[1], -(-tokens // n))
    lengths: list[int] = []
    while len(lengths) < n:
        length = round(float(rng.lognormal(6.2, 0.75)))
        if shortest <= length <= longest:
            lengths.append(length)
    missing_tokens = tokens - sum(lengths)
    while missing_tokens:
        j, step = int(rng.integers(n)), 1 if missing_tokens > 0 else -1
        if shortest <= lengths[j] + step <= longest:
            lengths[j] += step
            missing_tokens -= step
    return tuple(lengths)


def skewed_lengths(tokens: int = TOKENS, n: int | None = None, seed: int = 0) -> tuple[int, ...]:
    """L3: one sequence has half of the tokens, 2400 short ones share the other half (at 65,536 tokens)."""
    rng = np.random.default_rng(seed)
    longest = tokens - tokens // 2
    short_count = max(round(2401 * tokens / TOKENS), 2) - 1 if n is None else n - 1
    short_count = min(short_count, tokens - longest)
    if not short_count:
        return (longest,)
    short_lengths = 1 + rng.multinomial(tokens - longest - short_count, np.full(short_count, 1 / short_count))
    lengths = [int(length) for length in short_lengths]
    lengths.insert(int(rng.integers(short_count + 1)), longest)
    return tuple(lengths)


def single_length(tokens: int = TOKENS) -> tuple[int, ...]:
    """L4: one sequence."""
    return (tokens,)


NAMED_LAYOUTS: Mapping[str, Callable[[int], tuple[int, ...]]] = {
    "L1": row_lengths,
    "L2": document_lengths,
    "L3": skewed_lengths,
    "L4": single_length,
}


def named_layouts(names: Sequence[str], tokens: int) -> list[BenchLayout]:
    """The layouts with these names and this many tokens."""
    return [BenchLayout(name, NAMED_LAYOUTS[require_known("layout", name, NAMED_LAYOUTS)](tokens)) for name in names]


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
    lengths = _lengths_from_json(path, text) if text.lstrip().startswith("[") else _lengths_from_lines(path, text)
    if not lengths:
        raise UsageError(f"--lengths-file: {path} holds no lengths; expected one count of tokens per line")
    return BenchLayout(file.stem, lengths)


def _lengths_from_lines(path: str, text: str) -> tuple[int, ...]:
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


def _lengths_from_json(path: str, text: str) -> tuple[int, ...]:
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
    return [BenchLayout(plural(n, "token"), row_lengths(n)) for n in steps if n]


def sweep_sequences(tokens: int, _seed: int) -> list[BenchLayout]:
    """More and more sequences of equal length at a constant number of tokens: cost should stay constant."""
    counts = sorted({n for n in (1, 16, 128, 512, 2401, 16_384, tokens) if n <= tokens})
    return [BenchLayout(plural(n, "sequence"), equal_lengths(n, tokens)) for n in counts]


def sweep_longest(tokens: int, seed: int) -> list[BenchLayout]:
    """64 sequences with a growing longest one at a constant number of tokens: cost should stay constant."""
    n = min(64, tokens)
    longest, layouts = -(-tokens // n), []
    while longest < tokens - n + 1:
        layouts.append(_one_long(n, longest, tokens, seed))
        longest *= 4
    return [*layouts, _one_long(n, tokens - n + 1, tokens, seed)]


def _one_long(n: int, longest: int, tokens: int, seed: int) -> BenchLayout:
    lengths = list(equal_lengths(n - 1, tokens - longest)) if n > 1 else []
    lengths.insert(random.Random(seed).randrange(n), longest)
    return BenchLayout(f"longest {longest}", tuple(lengths))


SWEEPS: Mapping[str, Callable[[int, int], list[BenchLayout]]] = {
    "tokens": sweep_tokens,
    "sequences": sweep_sequences,
    "longest": sweep_longest,
}
