"""A bench as a JSON file: written while it runs, and validated when read."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packproof.harness.bench.layouts import BenchLayout
from packproof.harness.bench.results import (
    BenchFinished,
    BenchResult,
    BenchStarted,
    Ceilings,
    Decile,
    Event,
    LayoutFinished,
    SizeProof,
    Spread,
    achieved_rate,
)
from packproof.harness.results.files import read_bytes, replace_text, writable_path
from packproof.harness.worker.records import to_row
from packproof.refs.errors import UsageError
from packproof.refs.wording import plural
from packproof.version import __version__

VERSION = 1
_MOST_BYTES = 64 << 20
Configuration = tuple[str | int, ...]
# the fields of a configuration, which identifies a row, and their names in messages
CONFIGURATION_FIELDS = {
    "op": "op",
    "implementation": "kernel",
    "setting": "setting",
    "dtype": "dtype",
    "layout": "layout",
    "tokens": "tokens",
    "sequences": "sequences",
    "longest": "longest",
}


class BenchFile:
    """Collects the events of one bench into a document, and writes it to a file if there is one.

    `rows` has a row for each implementation, layout and pass. `verdicts` has a row for each layout where an
    implementation is incorrect, `limits` where it declines or runs out of memory, `noisy` where the same code against
    itself did not agree. `proofs` has the proofs before the timing. Raises UsageError at once if the file cannot be
    written.
    """

    def __init__(self, path: str | None, command: str) -> None:
        self._file = writable_path(path, "--json") if path is not None else None
        self._ceilings = Ceilings(0.0)
        self.document: dict[str, Any] = {
            "version": VERSION,
            "packproof": __version__,
            "command": command,
            "environment": {},
            "ceilings": {},
            "seed": 0,
            "finished": False,
            "proofs": [],
            "rows": [],
            "verdicts": [],
            "limits": [],
            "noisy": [],
        }

    def __call__(self, event: Event) -> None:
        match event:
            case BenchStarted(environment, ceilings, seed):
                self._ceilings = ceilings
                self.document |= {"environment": asdict(environment), "ceilings": asdict(ceilings), "seed": seed}
            case SizeProof():
                self.document["proofs"].append(asdict(event))
            case LayoutFinished(results, matmul):
                self.document["rows"] += [row for r in results for row in _rows(r, self._ceilings, matmul=matmul)]
                self.document["verdicts"] += [
                    _configuration_fields(r) | {"verdict": r.verdict} for r in results if r.verdict
                ]
                self.document["limits"] += [_configuration_fields(r) | {"limit": r.limit} for r in results if r.limit]
                self.document["noisy"] += [_configuration_fields(r) | {"noise": r.noise} for r in results if r.noise]
            case BenchFinished():
                self.document["finished"] = True
        self.write()

    def write(self) -> None:
        """Write the document so far to the file, if there is one."""
        if self._file:
            replace_text(self._file, json.dumps(self.document, indent=1, ensure_ascii=False) + "\n")


def _configuration_fields(result: BenchResult) -> dict[str, Any]:
    layout = result.layout
    return dict(
        zip(
            CONFIGURATION_FIELDS,
            configuration_of(result.op, result.implementation, result.setting, result.dtype, layout),
            strict=True,
        )
    )


def configuration_of(op: str, implementation: str, setting: str, dtype: str, layout: BenchLayout) -> Configuration:
    """The configuration of an implementation at a layout: it identifies the rows."""
    return op, implementation, setting, dtype, layout.name, layout.tokens, len(layout.lengths), layout.longest


def _rows(result: BenchResult, ceilings: Ceilings, *, matmul: bool) -> list[dict[str, Any]]:
    return [
        _configuration_fields(result)
        | {
            "pass": bench_pass.name,
            "ms": asdict(bench_pass.device),
            "host_ms": bench_pass.host and asdict(bench_pass.host),
            "decile": bench_pass.decile and to_row(bench_pass.decile),
            "bytes": bench_pass.cost.bytes,
            "flops": bench_pass.cost.flops,
            **achieved_rate(bench_pass, ceilings, matmul=matmul)._asdict(),
            "peak_bytes": bench_pass.peak_bytes,
            "kept_bytes": result.kept_bytes,
            "kept_bytes_per_channel": result.kept_bytes_per_channel,
        }
        for bench_pass in result.passes
    ]


RowKey = tuple[Configuration, str]  # configuration and pass


@dataclass(frozen=True)
class RowTimes:
    """The times of one row."""

    spread: Spread
    decile: Decile | None
    """None on a GPU."""


@dataclass(frozen=True)
class Record:
    """The part of a bench that a comparison needs."""

    device: str
    """Its name and kind, and the threads of a CPU."""
    times: dict[RowKey, RowTimes]
    """By configuration and pass."""
    incorrect: frozenset[Configuration]
    """Configurations with a verdict."""
    noisy: dict[Configuration, str]
    """Configurations with too much noise for a time, and the reason."""
    command: str
    """The command that wrote the file."""


def read_json(path: str, label: str) -> Any:
    """The JSON in a file. Raises UsageError if it cannot be read.

    label: the name of the file in messages.
    """
    if Path(path).is_dir():
        raise UsageError(f"{label} is a folder; expected a file that `packproof bench --json` wrote")
    try:
        return json.loads(read_bytes(Path(path), _MOST_BYTES).decode())
    except OSError as error:
        raise UsageError(f"{label}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{label} is damaged: not JSON ({error})") from None


def parse_record(data: Any, label: str) -> Record:
    """The record of a document; UsageError unless it has the form of a bench."""
    if not isinstance(data, dict) or data.get("version") != VERSION or "ceilings" not in data:
        raise UsageError(f"{label} was not written by `packproof bench --json` in version {VERSION}")
    machine = data.get("environment")
    if not isinstance(machine, dict) or not all(isinstance(machine.get(k), str) for k in ("device", "name")):
        raise UsageError(f"{label} is damaged: environment does not name a device")
    if type(machine.get("threads")) is not int:
        raise UsageError(f"{label} is damaged: environment does not say how many threads there were")
    rows, verdicts, noisy_rows = (data.get(name, []) for name in ("rows", "verdicts", "noisy"))
    if not all(isinstance(part, list) for part in (rows, verdicts, noisy_rows)):
        raise UsageError(f"{label} is damaged: rows, verdicts and noisy are not all lists")
    on_cpu = machine["device"] == "cpu"
    times = {}
    for j, row in enumerate(rows):
        configuration, error_prefix = (
            _read_configuration(row, f"{label} is damaged: row {j}"),
            f"{label} is damaged: row {j}",
        )
        if not isinstance(row.get("pass"), str):
            raise UsageError(f"{error_prefix} names no pass")
        decile = _read_decile(row.get("decile"), f"{label}: row {j}") if on_cpu else None
        times[configuration, row["pass"]] = RowTimes(_read_spread(row.get("ms"), error_prefix), decile)
    incorrect = frozenset(
        _read_configuration(row, f"{label} is damaged: verdict {j}") for j, row in enumerate(verdicts)
    )
    noisy = {
        _read_configuration(row, f"{label} is damaged: noise {j}"): str(row.get("noise"))
        for j, row in enumerate(noisy_rows)
    }
    device = device_text(machine["name"], machine["device"], machine["threads"])
    return Record(device, times, incorrect, noisy, str(data.get("command")))


def device_text(name: str, device: str, threads: int) -> str:
    """A device in the words of a comparison: times on a CPU depend on the threads too."""
    return f"{name} ({device}, {plural(threads, 'thread')})" if device == "cpu" else f"{name} ({device})"


def _read_configuration(row: Any, error_prefix: str) -> Configuration:
    for name in CONFIGURATION_FIELDS:
        kind = int if name in ("tokens", "sequences", "longest") else str
        value = row.get(name) if isinstance(row, dict) else None
        if type(value) is not kind:
            raise UsageError(f"{error_prefix}: {name} is {json.dumps(value)[:40]}, expected {kind.__name__}")
    return tuple(row[name] for name in CONFIGURATION_FIELDS)


def _read_decile(data: Any, label: str) -> Decile:
    """The first decile of a row, with its noise and the work beside it."""
    if not isinstance(data, dict):
        raise UsageError(f"{label} has no first decile: an older packproof wrote this file; run the bench again")
    fixed_work = data.get("beside")
    times: dict[str, Any] = fixed_work if isinstance(fixed_work, dict) else {"": None}
    values: list[Any] = [data.get("ms"), data.get("noise"), *times.values()]
    if not all(type(v) in (int, float) and math.isfinite(v) and v > 0 for v in values) or values[1] < 1:
        raise UsageError(f"{label} is damaged: decile is {json.dumps(data)[:80]}, expected times above 0 and noise")
    return Decile(data["ms"], data["noise"], times)


def _read_spread(data: Any, error_prefix: str) -> Spread:
    names = ("low", "median", "high", "rounds")
    values: list[Any] = [data.get(name) if isinstance(data, dict) else None for name in names]
    is_valid = all(type(v) in (int, float) and math.isfinite(v) and v > 0 for v in values)
    if not is_valid or not values[0] <= values[1] <= values[2]:
        raise UsageError(f"{error_prefix}: ms is {json.dumps(data)[:80]}, expected quartiles above 0 and rounds")
    low, median, high, rounds = values
    return Spread(low, median, high, int(rounds))
