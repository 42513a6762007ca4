"""Which configuration of an autotuned kernel is checked, where none is timed."""

# mypy: allow-untyped-calls

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from packproof.properties.cases.tuned import Tuned, merged

_MODULE = "triton.runtime.autotuner"


@dataclass
class _Tuning:
    """What the autotuners of this process have to know of the call that is running."""

    watches: bool = False
    """They report the configurations that they run with."""
    chooses: bool = False
    """They time nothing, and take the configuration that the call's number decides."""
    draws: bool = False
    """Each kind of call starts elsewhere in the list."""
    number: int = 0
    """The number of the call's configuration: see `place`."""
    launched: tuple[Tuned, ...] = ()
    """The kernels that the call has launched."""


_tuning = _Tuning()


def choose_configurations() -> None:
    """From now on Triton's autotuners time nothing in this process: the number of a call decides (`place`).

    Where a configuration does not fit the device, the next is taken. Triton's own tuning results on disk stay as they
    are.
    """
    from triton.runtime.autotuner import Autotuner  # noqa: PLC0415

    from packproof.harness.interpreter.patch import replace  # noqa: PLC0415  (needs triton)

    if not _tuning.chooses:
        _watch()
        replace(Autotuner, "prune_configs", _chosen_first)
        replace(Autotuner, "_bench", _until_one_runs)
        replace(Autotuner, "do_bench", lambda original: property(lambda self: run_once))
        _tuning.chooses = True


def draw_configurations(device: str) -> None:
    """As `choose_configurations`, with a start in the list that is drawn for each kind of call.

    A kind is what the autotuner would tune for: its keys, and dtypes. The same kind draws the same start in any
    process; so a repeated call repeats its results. A sequence alone may then have another configuration than in its
    pack, as with the kernel's own tuning.
    """
    _tuning.draws = True
    if device == "cpu":
        return  # there the repair of the interpreter has them chosen
    try:
        choose_configurations()
    except ImportError:
        return


@contextmanager
def configured(number: int) -> Iterator[Callable[[], tuple[Tuned, ...]]]:
    """Inside it autotuned kernels run with this configuration where none is timed; yields a list of those that ran."""
    if _MODULE in sys.modules:
        _watch()
    _tuning.number, _tuning.launched = number, ()
    try:
        yield lambda: _tuning.launched
    finally:
        _tuning.number = 0


def place(number: int, configurations: int, kernel: str) -> int:
    """The place in a list of so many configurations for the number of a call.

    Consecutive numbers take each once, from the first on. Each later turn through the list starts where the kernel's
    name decides, so that kernels with lists of the same length meet in several combinations.
    """
    turn, step = divmod(number, configurations)
    start = crc32(f"{kernel} {turn}".encode()) if turn else 0
    return (start + step) % configurations


def _watch() -> None:
    if not _tuning.watches:
        from triton.runtime.autotuner import Autotuner  # noqa: PLC0415

        from packproof.harness.interpreter.patch import replace  # noqa: PLC0415  (needs triton)

        replace(Autotuner, "run", _reported)
        _tuning.watches = True


def _reported(run: Callable[..., Any]) -> Callable[..., Any]:
    def report(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(self.configs) == 1:
            return run(self, *args, **kwargs)
        if _tuning.chooses:  # what was tuned for another place is no answer for this one; what was pinned stays
            pinned = self.__dict__.setdefault("pinned", self.cache)
            self.cache = self.__dict__.setdefault("caches", {}).setdefault(_place(self), dict(pinned))
        result = run(self, *args, **kwargs)
        declared = tuple(dict.fromkeys(map(_text, self.configs)))
        offered = tuple(self.__dict__.get("offered", declared))
        tuned = Tuned(self.base_fn.__name__, (_text(self.best_config),), offered, len(declared))
        _tuning.launched = merged(_tuning.launched, [tuned])
        return result

    return report


def _place(tuner: Any) -> int:
    return place(_tuning.number, len(tuner.configs), tuner.base_fn.__name__)


def _text(config: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in config.all_kwargs().items())


def _chosen_first(prune: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def prune_configs(self: Any, kwargs: Mapping[str, Any]) -> list[Any]:
        configs = list(prune(self, kwargs))
        self.__dict__.setdefault("offered", {}).update(dict.fromkeys(map(_text, configs)))
        if _tuning.draws:
            random.Random(repr(_kind(self, kwargs))).shuffle(configs)
        configs = _alternating(configs)
        self.cache_results, self.has_run = False, False
        start = _place(self) % len(configs)
        return [*configs[start:], *configs[:start]]

    return prune_configs


def _alternating(configs: Sequence[Any]) -> list[Any]:
    """Each value of the kernel's own parameters once before any comes again: few cases meet all of them, and those
    that differ in warps and stages alone are one program to the interpreter."""
    times: Counter[str] = Counter()
    turns = []
    for config in configs:
        turns.append(times[repr(config.kwargs)])
        times[repr(config.kwargs)] += 1
    return [config for _, config in sorted(zip(turns, configs, strict=True), key=lambda pair: pair[0])]


def _kind(tuner: Any, kwargs: Mapping[str, Any]) -> list[Any]:
    arguments = {**tuner.nargs, **kwargs}
    dtypes = [str(x.dtype) for x in arguments.values() if hasattr(x, "dtype")]
    return [tuner.base_fn.__name__, *(arguments.get(key) for key in tuner.keys), *dtypes]


def _until_one_runs(bench: Callable[..., list[float]]) -> Callable[..., list[float]]:
    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        if self.has_run:
            return [float("inf")] * 3
        timings = bench(self, *args, config=config, **meta)
        self.has_run = timings[0] < float("inf")
        return timings

    return _bench


def run_once(kernel_call: Callable[[], Any], quantiles: Any) -> list[float]:
    """The benchmark of an autotuner: one run, so that a kernel that accumulates without `reset_to_zero` shows it."""
    kernel_call()
    return [0.0] * len(quantiles)
