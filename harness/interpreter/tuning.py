"""Which configuration of an autotuned kernel is checked, where none is timed."""

# mypy: allow-untyped-calls

import random
from collections.abc import Callable, Mapping
from typing import Any


def draw_configurations() -> None:
    """From now on Triton's autotuners time nothing in this process: a configuration is drawn for each kind of call.

    A kind is what the autotuner would tune for: its keys, and dtypes. The same kind draws the same configuration in any
    process; so a repeated call repeats its results, and the cases of a check cover more configurations than timing
    would choose. Where one does not fit the device, the next is taken. Triton's own tuning results on disk stay as they
    are.
    """
    try:
        from triton.runtime.autotuner import Autotuner  # noqa: PLC0415
    except ImportError:
        return
    Autotuner.prune_configs = _shuffled(Autotuner.prune_configs)
    Autotuner._bench = _until_one_runs(Autotuner._bench)


def _shuffled(prune: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def prune_configs(self: Any, kwargs: Mapping[str, Any]) -> list[Any]:
        given = {**self.nargs, **kwargs}
        kind = [self.base_fn.__name__, *(given.get(key) for key in self.keys)]
        kind += [str(x.dtype) for x in given.values() if hasattr(x, "dtype")]
        configs = list(prune(self, kwargs))
        random.Random(repr(kind)).shuffle(configs)
        self.cache_results, self.do_bench, self.runs = False, run_once, False
        return configs

    return prune_configs


def _until_one_runs(bench: Callable[..., list[float]]) -> Callable[..., list[float]]:
    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        if self.runs:
            return [float("inf")] * 3
        timings = bench(self, *args, config=config, **meta)
        self.runs = timings[0] < float("inf")
        return timings

    return _bench


def run_once(kernel_call: Callable[[], Any], quantiles: Any) -> list[float]:
    """The benchmark of an autotuner: one run, so that a kernel that accumulates without `reset_to_zero` shows it."""
    kernel_call()
    return [0.0] * len(quantiles)
