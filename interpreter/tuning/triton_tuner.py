"""Chooses configurations of Triton's autotuners."""

# mypy: allow-untyped-calls

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from packproof.interpreter.tuning.choice import TUNING, configuration_index, record


def choose_configurations() -> None:
    """Let the number of a call choose configurations in this process, without timing (`configuration_index`).

    If a configuration does not fit the device, the next one is taken. Triton's tuning results on disk are not changed.
    """
    from triton.runtime.autotuner import Autotuner  # noqa: PLC0415

    from packproof.interpreter.patch import replace  # noqa: PLC0415  (needs triton)

    if not TUNING.chooses:
        watch_configurations()
        replace(Autotuner, "prune_configs", _prune_and_rotate)
        replace(Autotuner, "_bench", _bench_until_one_runs)
        replace(Autotuner, "do_bench", lambda original: property(lambda self: run_once))
        TUNING.chooses = True


def draw_configurations(device: str) -> None:
    """As `choose_configurations`, with a start in the list drawn for each kind of call.

    A kind is the autotuner's key: its key arguments and dtypes. The same kind draws the same start in any process, so
    a repeated call repeats its results. A sequence alone may have another configuration than in its pack, as with the
    kernel's own tuning.
    """
    TUNING.draws = True
    if device == "cpu":
        return  # the repair of the interpreter has called `choose_configurations`
    try:
        choose_configurations()
    except ImportError:
        return


def watch_configurations() -> None:
    """Let Triton's autotuners report the configurations of their runs."""
    if not TUNING.watches:
        from triton.runtime.autotuner import Autotuner  # noqa: PLC0415

        from packproof.interpreter.patch import replace  # noqa: PLC0415  (needs triton)

        replace(Autotuner, "run", _run_and_record)
        TUNING.watches = True


def _run_and_record(run: Callable[..., Any]) -> Callable[..., Any]:
    def run_and_record(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(self.configs) == 1:
            return run(self, *args, **kwargs)
        if TUNING.chooses:  # a cache for each index: other results do not apply; pinned results apply to all
            pinned_cache = self.__dict__.setdefault("pinned", self.cache)
            self.cache = self.__dict__.setdefault("caches", {}).setdefault(_current_index(self), dict(pinned_cache))
        result = run(self, *args, **kwargs)
        declared_configs = tuple(dict.fromkeys(map(_config_text, self.configs)))
        offered_configs = tuple(self.__dict__.get("offered", declared_configs))
        record(self.base_fn.__name__, _config_text(self.best_config), offered_configs, len(declared_configs))
        return result

    return run_and_record


def _current_index(tuner: Any) -> int:
    return configuration_index(TUNING.number, len(tuner.configs), tuner.base_fn.__name__)


def _config_text(config: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in config.all_kwargs().items())


def _prune_and_rotate(prune: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def prune_configs(self: Any, kwargs: Mapping[str, Any]) -> list[Any]:
        configs = list(prune(self, kwargs))
        self.__dict__.setdefault("offered", {}).update(dict.fromkeys(map(_config_text, configs)))
        if TUNING.draws:
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
