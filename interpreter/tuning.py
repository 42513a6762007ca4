"""Chooses configurations of autotuned kernels without timing them, so that a check runs many of them."""

# mypy: allow-untyped-calls

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from packproof.base.tuned import Tuned, merge_tuned

_MODULE = "triton.runtime.autotuner"


@dataclass
class _Tuning:
    """State of this process's autotuners for the current call."""

    watches: bool = False
    """Autotuners report the configurations of their runs."""
    chooses: bool = False
    """Autotuners time nothing: the number of the call chooses the configuration."""
    draws: bool = False
    """The start in the list of configurations is drawn for each kind of call."""
    number: int = 0
    """The number of the call's configuration: see `configuration_index`."""
    launched_kernels: tuple[Tuned, ...] = ()
    """The autotuned kernels launched by the call."""


_tuning = _Tuning()


def choose_configurations() -> None:
    """Let the number of a call choose configurations in this process, without timing (`configuration_index`).

    If a configuration does not fit the device, the next one is taken. Triton's tuning results on disk are not changed.
    """
    from triton.runtime.autotuner import Autotuner  # noqa: PLC0415

    from packproof.interpreter.patch import replace  # noqa: PLC0415  (needs triton)

    if not _tuning.chooses:
        _watch()
        replace(Autotuner, "prune_configs", _prune_and_rotate)
        replace(Autotuner, "_bench", _bench_until_one_runs)
        replace(Autotuner, "do_bench", lambda original: property(lambda self: run_once))
        _tuning.chooses = True


def draw_configurations(device: str) -> None:
    """As `choose_configurations`, with a start in the list drawn for each kind of call.

    A kind is the autotuner's key: its key arguments and dtypes. The same kind draws the same start in any process, so
    a repeated call repeats its results. A sequence alone may have another configuration than in its pack, as with the
    kernel's own tuning.
    """
    _tuning.draws = True
    if device == "cpu":
        return  # the repair of the interpreter has called `choose_configurations`
    try:
        choose_configurations()
    except ImportError:
        return


@contextmanager
def use_configuration(number: int) -> Iterator[Callable[[], tuple[Tuned, ...]]]:
    """In a with block, choose configurations by this number, if none are timed. Yields a function that returns the
    autotuned kernels launched so far."""
    if _MODULE in sys.modules:
        _watch()
    _tuning.number, _tuning.launched_kernels = number, ()
    try:
        yield lambda: _tuning.launched_kernels
    finally:
        _tuning.number = 0


def configuration_index(number: int, n_configurations: int, kernel: str) -> int:
    """The index of a call's configuration in a list of `n_configurations`.

    Consecutive numbers take each configuration once, from the first on. The name of the kernel decides the start of
    each later pass through the list. So kernels with lists of the same length meet in several combinations.
    """
    cycle, step = divmod(number, n_configurations)
    start = crc32(f"{kernel} {cycle}".encode()) if cycle else 0
    return (start + step) % n_configurations


def _watch() -> None:
    if not _tuning.watches:
        from triton.runtime.autotuner import Autotuner  # noqa: PLC0415

        from packproof.interpreter.patch import replace  # noqa: PLC0415  (needs triton)

        replace(Autotuner, "run", _run_and_record)
        _tuning.watches = True


def _run_and_record(run: Callable[..., Any]) -> Callable[..., Any]:
    def run_and_record(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(self.configs) == 1:
            return run(self, *args, **kwargs)
        if _tuning.chooses:  # a cache for each index: other results do not apply; pinned results apply to all
            pinned_cache = self.__dict__.setdefault("pinned", self.cache)
            self.cache = self.__dict__.setdefault("caches", {}).setdefault(_current_index(self), dict(pinned_cache))
        result = run(self, *args, **kwargs)
        declared_configs = tuple(dict.fromkeys(map(_config_text, self.configs)))
        offered_configs = tuple(self.__dict__.get("offered", declared_configs))
        tuned = Tuned(self.base_fn.__name__, (_config_text(self.best_config),), offered_configs, len(declared_configs))
        _tuning.launched_kernels = merge_tuned(_tuning.launched_kernels, [tuned])
        return result

    return run_and_record


def _current_index(tuner: Any) -> int:
    return configuration_index(_tuning.number, len(tuner.configs), tuner.base_fn.__name__)


def _config_text(config: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in config.all_kwargs().items())


def _prune_and_rotate(prune: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def prune_configs(self: Any, kwargs: Mapping[str, Any]) -> list[Any]:
        configs = list(prune(self, kwargs))
        self.__dict__.setdefault("offered", {}).update(dict.fromkeys(map(_config_text, configs)))
        if _tuning.draws:
            random.Random(repr(_tuning_key(self, kwargs))).shuffle(configs)
        configs = _interleave_parameters(configs)
        self.cache_results, self.has_run = False, False
        start = _current_index(self) % len(configs)
        return [*configs[start:], *configs[:start]]

    return prune_configs


def _interleave_parameters(configs: Sequence[Any]) -> list[Any]:
    """Reorder configurations: each value of the kernel's own parameters once before any value repeats. A few cases then
    cover all values. Configurations that differ only in warps and stages are one program to the interpreter."""
    counts: Counter[str] = Counter()
    repetitions = []
    for config in configs:
        repetitions.append(counts[repr(config.kwargs)])
        counts[repr(config.kwargs)] += 1
    return [config for _, config in sorted(zip(repetitions, configs, strict=True), key=lambda pair: pair[0])]


def _tuning_key(tuner: Any, kwargs: Mapping[str, Any]) -> list[Any]:
    arguments = {**tuner.nargs, **kwargs}
    dtypes = [str(x.dtype) for x in arguments.values() if hasattr(x, "dtype")]
    return [tuner.base_fn.__name__, *(arguments.get(key) for key in tuner.keys), *dtypes]


def _bench_until_one_runs(bench: Callable[..., list[float]]) -> Callable[..., list[float]]:
    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        if self.has_run:
            return [float("inf")] * 3
        timings = bench(self, *args, config=config, **meta)
        self.has_run = timings[0] < float("inf")
        return timings

    return _bench


def run_once(kernel_call: Callable[[], Any], quantiles: Any) -> list[float]:
    """The benchmark of an autotuner: a single run. A kernel that accumulates without `reset_to_zero` shows wrong
    results."""
    kernel_call()
    return [0.0] * len(quantiles)
