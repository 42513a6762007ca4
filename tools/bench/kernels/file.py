"""A bench as a JSON file: written while it runs, and validated when read."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Literal

from packproof.base.environment import Environment
from packproof.base.errors import UsageError
from packproof.base.files import damaged_error, read_json, replace_text, writable_path
from packproof.base.records import parse_record, to_row
from packproof.base.wording import plural
from packproof.bench.kernels.layouts import BenchLayout
from packproof.bench.kernels.results import (
    BenchFinished,
    BenchResult,
    BenchStarted,
    Ceilings,
    Decile,
    Event,
    LayoutFinished,
    PassName,
    SizeProof,
    Spread,
    achieved_rate,
)
from packproof.version import __version__

VERSION = 1
WRITER = "`packproof bench --json`"


@dataclass(frozen=True)
class Configuration:
    """An implementation at a layout: it identifies the rows of a file."""

    op: str
    implementation: str
    setting: str
    dtype: str
    layout: str
    tokens: int
    sequences: int
    longest: int


@dataclass(frozen=True)
class ConfiguredRow(Configuration):
    """A row of a file."""

    @property
    def configuration(self) -> Configuration:
        return Configuration(
            *(self.op, self.implementation, self.setting, self.dtype),
            *(self.layout, self.tokens, self.sequences, self.longest),
        )


@dataclass(frozen=True)
class TimedRow(ConfiguredRow):
    """The times, rates and memory of one pass."""

    pass_name: PassName
    ms: Spread
    host_ms: Spread | None
    decile: Decile | None = field(default=None, kw_only=True)
    """None on a GPU."""
    bytes: int
    flops: int
    per_second: float
    unit: Literal["flop/s", "byte/s"]
    of_ceiling: float
    peak_bytes: int | None
    kept_bytes: int | None
    kept_bytes_per_channel: float | None


@dataclass(frozen=True)
class IncorrectRow(ConfiguredRow):
    """A layout at which an implementation is incorrect."""

    verdict: str


@dataclass(frozen=True)
class LimitedRow(ConfiguredRow):
    """A layout that an implementation declines, or for which it lacks memory."""

    limit: str


@dataclass(frozen=True)
class NoisyRow(ConfiguredRow):
    """A layout where the same code against itself did not agree."""

    noise: str


RowKey = tuple[Configuration, str]  # configuration and pass


@dataclass(frozen=True)
class RowTimes:
    """The times of one row."""

    spread: Spread
    decile: Decile | None
    """None on a GPU."""


@dataclass(frozen=True)
class BenchDocument:
    """The content of a file."""

    version: int
    packproof: str
    command: str
    """The command that wrote the file."""
    environment: Environment
    ceilings: Ceilings
    seed: int
    finished: bool = False
    proofs: tuple[SizeProof, ...] = ()
    """The proofs before the timing."""
    rows: tuple[TimedRow, ...] = ()
    verdicts: tuple[IncorrectRow, ...] = ()
    limits: tuple[LimitedRow, ...] = ()
    noisy: tuple[NoisyRow, ...] = ()

    @property
    def device(self) -> str:
        """Its name and kind, and the threads of a CPU."""
        machine = self.environment
        return device_text(machine.name, machine.device, machine.threads)

    @cached_property
    def times(self) -> Mapping[RowKey, RowTimes]:
        return {(row.configuration, row.pass_name): RowTimes(row.ms, row.decile) for row in self.rows}

    @cached_property
    def incorrect(self) -> frozenset[Configuration]:
        return frozenset(row.configuration for row in self.verdicts)

    @cached_property
    def noises(self) -> Mapping[Configuration, str]:
        """The reason for each configuration without a time."""
        return {row.configuration: row.noise for row in self.noisy}


class BenchFile:
    """Collects the events of one bench into a document, and writes it to a file if there is one.

    Raises UsageError at once if the file cannot be written.
    """

    document: BenchDocument
    """From the event BenchStarted on."""

    def __init__(self, path: str | None, command: str) -> None:
        self._file = writable_path(path, "--json") if path is not None else None
        self._command = command

    def __call__(self, event: Event) -> None:
        match event:
            case BenchStarted(environment, ceilings, seed):
                self.document = BenchDocument(VERSION, __version__, self._command, environment, ceilings, seed)
            case SizeProof():
                self.document = replace(self.document, proofs=(*self.document.proofs, event))
            case LayoutFinished():
                self.document = _with_results(self.document, event)
            case BenchFinished():
                self.document = replace(self.document, finished=True)
        self.write()

    def write(self) -> None:
        """Write the document so far to the file, if there is one."""
        if self._file:
            replace_text(self._file, json.dumps(to_row(self.document), indent=1, ensure_ascii=False) + "\n")


def _with_results(document: BenchDocument, event: LayoutFinished) -> BenchDocument:
    pairs = [(result, asdict(_configuration(result))) for result in event.results]
    rows = (row for result in event.results for row in _timed_rows(result, document.ceilings, matmul=event.matmul))
    return replace(
        document,
        rows=(*document.rows, *rows),
        verdicts=(*document.verdicts, *(IncorrectRow(**fields, verdict=r.verdict) for r, fields in pairs if r.verdict)),
        limits=(*document.limits, *(LimitedRow(**fields, limit=r.limit) for r, fields in pairs if r.limit)),
        noisy=(*document.noisy, *(NoisyRow(**fields, noise=r.noise) for r, fields in pairs if r.noise)),
    )


def _configuration(result: BenchResult) -> Configuration:
    return configuration_of(result.op, result.implementation, result.setting, result.dtype, result.layout)


def configuration_of(op: str, implementation: str, setting: str, dtype: str, layout: BenchLayout) -> Configuration:
    """The configuration of an implementation at a layout."""
    counts = layout.tokens, len(layout.lengths), layout.longest
    return Configuration(op, implementation, setting, dtype, layout.name, *counts)


def _timed_rows(result: BenchResult, ceilings: Ceilings, *, matmul: bool) -> Iterator[TimedRow]:
    for bench_pass in result.passes:
        yield TimedRow(
            **asdict(_configuration(result)),
            pass_name=bench_pass.name,
            ms=bench_pass.device,
            host_ms=bench_pass.host,
            decile=bench_pass.decile,
            bytes=bench_pass.cost.bytes,
            flops=bench_pass.cost.flops,
            **achieved_rate(bench_pass, ceilings, matmul=matmul)._asdict(),
            peak_bytes=bench_pass.peak_bytes,
            kept_bytes=result.kept_bytes,
            kept_bytes_per_channel=result.kept_bytes_per_channel,
        )


def read_bench(path: str, label: str) -> BenchDocument:
    """The document in a file. Raises UsageError if it cannot be read or is damaged.

    label: the name of the file in messages.
    """
    data = read_json(path, label, WRITER)
    if not isinstance(data, dict) or data.get("version") != VERSION or "ceilings" not in data:
        raise UsageError(f"{label} was not written by {WRITER} in version {VERSION}")
    document = parse_record(BenchDocument, data, label, WRITER)
    for index, row in enumerate(document.rows):
        _require_times(row, f"rows[{index}]", label, on_cpu=document.environment.device == "cpu")
    return document


def _require_times(row: TimedRow, row_name: str, label: str, *, on_cpu: bool) -> None:
    """UsageError unless a comparison can divide by the times of the row."""
    ms, decile = row.ms, row.decile
    if not _are_positive(ms.low, ms.median, ms.high, ms.rounds) or not ms.low <= ms.median <= ms.high:
        raise damaged_error(label, f"{row_name}.ms is {_json_text(ms)}, expected quartiles above 0 and rounds")
    if on_cpu and decile is None:
        raise UsageError(
            f"{label}: {row_name} has no first decile: an older packproof wrote this file; run the bench again"
        )
    if decile and (decile.noise < 1 or not _are_positive(decile.ms, decile.noise, *decile.fixed_work.values())):
        raise damaged_error(label, f"{row_name}.decile is {_json_text(decile)}, expected times above 0 and noise")


def _are_positive(*values: float) -> bool:
    return all(math.isfinite(value) and value > 0 for value in values)


def _json_text(record: Spread | Decile) -> str:
    return json.dumps(to_row(record))[:80]


def device_text(name: str, device: str, threads: int) -> str:
    """A device in the words of a comparison: times on a CPU depend on the threads too."""
    return f"{name} ({device}, {plural(threads, 'thread')})" if device == "cpu" else f"{name} ({device})"
