"""The configuration of one call, in every language imported by this process."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

from packproof.base.importing import one_line_reason
from packproof.base.tuned import Tuned, merge_tuned
from packproof.interpreter.tuning import helion, quack, tilelang
from packproof.interpreter.tuning.choice import TUNING
from packproof.interpreter.tuning.triton_tuner import watch_configurations

_TRITON = "triton.runtime.autotuner"
_LANGUAGES: Mapping[str, Callable[[ModuleType], None]] = {
    "helion.runtime.kernel": helion.hook,
    "tilelang.autotuner.tuner": tilelang.hook,
    "quack.autotuner": quack.hook,
}
_HOOKED = "_packproof_chooses_configurations"


@contextmanager
def use_configuration(number: int, device: str = "cuda") -> Iterator[Callable[[], tuple[Tuned, ...]]]:
    """In a with block, choose configurations by this number, if none are timed. Yields a function that returns the
    autotuned kernels launched so far.

    device: on a CPU no language times its configurations.
    """
    if _TRITON in sys.modules:
        watch_configurations()
    TUNING.number, TUNING.launched_kernels = number, ()
    for name, hook in _LANGUAGES.items():
        if name in sys.modules:
            _hook_once(name, hook)
    TUNING.chooses_beside_triton = TUNING.draws or device == "cpu"
    try:
        yield lambda: TUNING.launched_kernels
    finally:
        TUNING.number, TUNING.chooses_beside_triton = 0, False


def _hook_once(name: str, hook: Callable[[ModuleType], None]) -> None:
    """Replace the calls of a language's autotuner. One of another release stays as it is: if configurations are asked
    for, it has one that was not judged.
    """
    try:
        module = sys.modules[name]
        if _HOOKED not in module.__dict__:
            hook(module)
            setattr(module, _HOOKED, True)
    except Exception as error:  # a module of the kernel's process may hold anything
        if TUNING.draws:
            what = f"{name}, which is not as packproof knows it ({one_line_reason(error)})"
            TUNING.launched_kernels = merge_tuned(TUNING.launched_kernels, [Tuned(what, (), ("any configuration",), 1)])
