"""The results of a run as records and as JSON, and what the terminal says of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from packproof.base.errors import UsageError
from packproof.base.records import read_record, to_json
from packproof.base.wording import plural
from packproof.models.board.board import CONVENTION_NAMES, BoardEntry, Built, Outcome

_OF_A_RUN = ("transformers", "torch", "package", "device", "seed")  # equal in all runs of one board
SIGNS = {"isolates": "✓", "leaks": "✗", "crashes": "†", "refuses": "R", "differs": "≠", "not judged": "?"}


@dataclass(frozen=True)
class ModelBoard:
    """The results of one run, with the versions it ran on."""

    transformers: str
    torch: str
    date: str
    """In ISO format."""
    package: str
    """The version of the package whose models these are, "" for transformers itself."""
    device: str
    """"cpu" or "cuda"."""
    seed: int
    seconds: float
    """The duration of the run."""
    models: tuple[Built, ...]
    outcomes: tuple[Outcome, ...]


def make_board(
    entries: Sequence[BoardEntry],
    seconds: float,
    seed: int,
    versions: Mapping[str, str],
    conventions: Sequence[str] = CONVENTION_NAMES,
    device: str = "cpu",
) -> ModelBoard:
    """Make a board from the entries of a run, sorted by name. A later reason replaces the first entry of a model whose
    process ended.

    versions: of transformers, torch and, if the models are another's, the "package".
    conventions: in their order.
    device: where the models ran.
    """
    built = {entry.name: entry for entry in entries if isinstance(entry, Built)}
    outcomes = [entry for entry in entries if isinstance(entry, Outcome)]
    outcomes.sort(key=lambda o: (o.name, bool(o.labels), o.flash, conventions.index(o.convention), o.labels))
    return ModelBoard(
        versions["transformers"],
        versions["torch"],
        date.today().isoformat(),
        versions.get("package", ""),
        device,
        seed,
        round(seconds, 1),
        tuple(built[name] for name in sorted(built)),
        tuple(outcomes),
    )


def as_json(board: ModelBoard) -> str:
    return json.dumps(to_json(board), indent=1, ensure_ascii=False) + "\n"


def read_board(path: str) -> ModelBoard:
    """Read a board from a JSON file. Raises UsageError where the file holds none."""
    return read_record(ModelBoard, path, f"--from: {path}", "`packproof models --json`", named=True)


def read_boards(paths: str) -> ModelBoard:
    """One board of several runs, whose files are separated by commas; a later one replaces models.

    Raises UsageError where a file holds no board, or one of other versions, of another device or seed.
    """
    boards = [read_board(path) for path in paths.split(",")]
    first, models, outcomes = boards[0], dict[str, Built](), dict[str, list[Outcome]]()
    for path, board in zip(paths.split(","), boards, strict=True):
        if differing := [n for n in _OF_A_RUN if getattr(board, n) != getattr(first, n)]:
            values = ", ".join(f"{n} {getattr(board, n)}, not {getattr(first, n)}" for n in differing)
            raise UsageError(f"--from: {path} has {values}; runs of one board have the same")
        for model in board.models:
            models[model.name] = model
            outcomes[model.name] = [outcome for outcome in board.outcomes if outcome.name == model.name]
    names = sorted(models)
    return replace(
        first,
        date=max(board.date for board in boards),
        seconds=round(sum(board.seconds for board in boards), 1),
        models=tuple(models[name] for name in names),
        outcomes=tuple(outcome for name in names for outcome in outcomes[name]),
    )


def outcome_line(outcome: Outcome) -> str:
    """One outcome, for the terminal."""
    convention = f"{outcome.convention}, flash" if outcome.flash else outcome.convention
    convention += f", labels: {outcome.labels}" if outcome.labels else ""
    return "  ".join(
        filter(None, (f"  {outcome.name:<24} {convention:<38} {outcome.word}", outcome.module, outcome.text))
    )


def board_counts(board: ModelBoard) -> str:
    """How many models there are, and how many isolate or leak by each convention."""
    asked = dict.fromkeys((o.flash, o.convention) for o in board.outcomes if not o.labels)
    n_built = sum(not model.reason for model in board.models)
    lines = [f"{plural(len(board.models), 'architecture')}, {n_built} built, {board.seconds:.0f} s"]
    for with_flash, name in sorted(asked, key=lambda pair: pair[0]):
        words = [o.word for o in board.outcomes if (o.convention, o.flash, o.labels) == (name, with_flash, "")]
        lines.append(f"{name}{', flash' if with_flash else ''}: {_numbers(words)}")
    forms = sorted({o.labels for o in board.outcomes if o.labels})
    lines += [f"labels: {form}: {_numbers([o.word for o in board.outcomes if o.labels == form])}" for form in forms]
    return "\n".join(lines)


def _numbers(words: Sequence[str]) -> str:
    return ", ".join(f"{words.count(w)} {w}" for w in SIGNS if w in words)
