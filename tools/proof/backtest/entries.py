"""The entries of the backtest: fixes in the history of public projects, and how packproof is asked about each.

An entry says what a commit mended, by its diff alone; it is written before the first run and not changed after it
(`RULE.md`). How it is checked stands apart, in `checks/`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from packproof.base.errors import UsageError
from packproof.base.names import require_known
from packproof.base.records import read_record

_HERE = Path(__file__).parent
_WRITER = "a reader of the project's history"


@dataclass(frozen=True)
class UpstreamFix:
    """One fix."""

    id: str
    """The project's short name and the commit's first digits."""
    fix: str
    """The commit that mends the fault, 40 digits."""
    parent: str
    """The commit before it."""
    date: str
    """The day of the fix, as ISO 8601."""
    report: str
    """The issue or pull request, as owner/name#number; "" if its message names none."""
    scope: Literal["in", "out"]
    reason: str = ""
    """Why it is out of scope."""
    fault: str = ""
    """What came out, and for which calls."""
    kind: str = ""
    path: str = ""
    """The file with the fault, at the parent."""
    symbol: str = ""
    """The function that a user calls, as module:name."""
    language: str = ""
    op: str = ""
    """The op that it computes, or the closest one."""
    property: str = ""
    """The property that should speak at the parent."""
    dtypes: tuple[str, ...] = ()
    """Those that show the fault."""
    device: str = ""
    layout: str = ""
    """The smallest layout and options that should show it, by reading."""
    certain: str = ""
    later: str = ""
    """What packproof does not claim yet, "" if it does."""


@dataclass(frozen=True)
class History:
    """The candidates of one project."""

    project: str
    """owner/name."""
    snapshot: str
    """The newest commit that was read, 40 digits."""
    entries: tuple[UpstreamFix, ...]


@dataclass(frozen=True)
class CheckCall:
    """How packproof is called for an entry, at both commits alike."""

    target: str
    """The kernel or its adapter: "fla:kda", or module:function."""
    command: Literal["check", "packs check", "model"] = "check"
    """The command that judges it: a kernel, a packer or a collator, a module."""
    op: str = ""
    """The op, where the target does not declare it."""
    dtypes: tuple[str, ...] = ()
    device: str = "cuda"
    profile: str = "standard"
    domain: tuple[str, ...] = ()
    """Where a fix is asked about once more, if both commits fail alike without it: one fault may hide another."""
    options: tuple[str, ...] = ()
    """Further options of the command."""
    packages: tuple[str, ...] = ()
    """What has to be installed instead of the checkout's packages, such as an older release; () for those."""
    added: str = ""
    """What packproof got after the entry had been read and is needed to detect it, "" if it had all before."""
    later: str = ""
    """Why it cannot be asked yet; the check is not run then."""


@dataclass(frozen=True)
class Checkout:
    """What a project's commits need to be imported, and the questions about them."""

    project: str
    folders: tuple[str, ...]
    """The files of a commit that are brought out, at its root."""
    root: str = ""
    """The folder of these from which packages are imported."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Files that import what no question needs, such as a compiled extension, and the text that they get instead."""
    stubs: tuple[str, ...] = ()
    """Modules that are imported, but not called: empty ones stand in for them."""
    packages: tuple[str, ...] = ()
    """What has to be installed beside torch. It is named where a commit cannot be imported."""
    questions: Mapping[str, CheckCall] = field(default_factory=dict)
    """By the id of the entry."""
    readings: Mapping[str, str] = field(default_factory=dict)
    """By the id of the entry: why it is missed, or what still fails at its fix."""


@dataclass(frozen=True)
class Candidate:
    """An entry with its project and its question."""

    project: str
    entry: UpstreamFix
    checkout: Checkout | None
    question: CheckCall | None
    """None: it has none yet."""
    is_refactoring: bool = False
    """Whether the commit mends nothing, so that packproof has to say the same of it and its parent."""

    @property
    def in_scope(self) -> bool:
        return self.entry.scope == "in"

    @property
    def swapped(self) -> "Candidate":
        """The same fix undone, under an id of its own: nothing may be detected, but what the fix itself brings."""
        entry = self.entry
        name = f"{entry.id}-swapped"
        return replace(self, entry=replace(entry, id=name, fix=entry.parent, parent=entry.fix))


def histories() -> Iterator[History]:
    """The histories, by project."""
    for file in sorted((_HERE / "entries").glob("*.json")):
        yield read_record(History, file, "the backtest's entries", _WRITER)


def cases() -> dict[str, Candidate]:
    """All entries by id, those out of scope too."""
    all_cases: dict[str, Candidate] = {}
    for history in histories():
        file = _HERE / "checks" / f"{history.project.rpartition('/')[2].lower()}.json"
        checkout = read_record(Checkout, file, "the backtest's questions", _WRITER) if file.exists() else None
        questions = checkout.questions if checkout else {}
        for entry in history.entries:
            all_cases[entry.id] = Candidate(history.project, entry, checkout, questions.get(entry.id))
    return all_cases


def selected(ids: tuple[str, ...], shard: str) -> list[Candidate]:
    """The cases in scope: those with these ids, all if there are none; of these the ith of n parts.

    Raises UsageError for an unknown id, an entry out of scope and a shard that is not i/n.
    """
    all_cases = cases()
    for name in ids:
        case = all_cases[require_known("entry", name, all_cases, "packproof backtest --list")]
        if not case.in_scope:
            raise UsageError(f"entry {name} is out of scope: {case.entry.reason}")
    return shard_of([case for case in all_cases.values() if case.in_scope and (not ids or case.entry.id in ids)], shard)


def shard_of(chosen: list[Candidate], shard: str) -> list[Candidate]:
    """The ith of n parts. Raises UsageError for a shard that is not i/n."""
    i, n = _parse_shard(shard)
    return chosen[i - 1 :: n]


def _parse_shard(shard: str) -> tuple[int, int]:
    i, slash, n = shard.partition("/")
    if not (slash and i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n)):
        raise UsageError(f"--shard is {shard!r}; expected i/n with i from 1 to n, such as 2/4")
    return int(i), int(n)
