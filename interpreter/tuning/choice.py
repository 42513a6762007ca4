"""The configuration of a call of an autotuned kernel: its number in the kernel's list, in any language."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from zlib import crc32

from packproof.base.tuned import Tuned, merge_tuned

T = TypeVar("T")


@dataclass
class Tuning:
    """State of this process's autotuners for the current call."""

    watches: bool = False
    """Triton's autotuners report the configurations of their runs."""
    chooses: bool = False
    """Triton's autotuners time nothing: the number of the call chooses the configuration."""
    draws: bool = False
    """The start in the list of configurations is drawn for each kind of call."""
    chooses_beside_triton: bool = False
    """Autotuners of other languages time nothing."""
    number: int = 0
    """The number of the call's configuration: see `configuration_index`."""
    launched_kernels: tuple[Tuned, ...] = ()
    """The autotuned kernels launched by the call."""


TUNING = Tuning()


def configuration_index(number: int, n_configurations: int, kernel: str) -> int:
    """The index of a call's configuration in a list of `n_configurations`.

    Consecutive numbers take each configuration once, from the first on. The name of the kernel decides the start of
    each later pass through the list. So kernels with lists of the same length meet in several combinations.
    """
    cycle, step = divmod(number, n_configurations)
    start = crc32(f"{kernel} {cycle}".encode()) if cycle else 0
    return (start + step) % n_configurations


def record(kernel: str, configuration: str, offered: Sequence[str], n_declared: int) -> None:
    """Note that a call ran a kernel with this configuration, one of the offered."""
    tuned = Tuned(kernel, (configuration,), tuple(dict.fromkeys(offered)), n_declared)
    TUNING.launched_kernels = merge_tuned(TUNING.launched_kernels, [tuned])


def run_chosen(
    kernel: str, configurations: Sequence[T], text: Callable[[T], str], run: Callable[[T], Any], n_declared: int = 0
) -> Any:
    """Run a kernel with the call's configuration, and record it.

    If it raises, for want of shared memory for example, the next one is taken, as an autotuner would.
    text: writes a configuration.
    n_declared: the configurations before the kernel's own pruning; 0 if there was none.
    Raises the first error if none runs.
    """
    offered = [text(configuration) for configuration in configurations]
    order = list(range(len(offered)))
    if TUNING.draws:
        random.Random(repr([kernel, offered])).shuffle(order)
    start = configuration_index(TUNING.number, len(order), kernel)
    errors: list[Exception] = []
    for index in [*order[start:], *order[:start]]:
        try:
            result = run(configurations[index])
        except Exception as error:
            errors.append(error)
            continue
        record(kernel, offered[index], offered, n_declared or len(offered))
        return result
    raise errors[0]
