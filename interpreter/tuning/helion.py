"""Chooses configurations of Helion's kernels: those of `configs`, or else of its search space."""

import random
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

from packproof.interpreter.tuning.choice import TUNING, record, run_chosen

N_DRAWN = 16
"""The number of drawn configurations of a kernel without a list. The first is Helion's default."""
_DRAWN = "_packproof_configs"


def hook(module: ModuleType) -> None:
    """Replace the calls of kernels, bound or not, in `helion.runtime.kernel`."""
    kernel, bound = module.Kernel, module.BoundKernel
    call, call_bound = kernel.__dict__["__call__"], bound.__dict__["__call__"]

    def bind_and_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        """What was prepared for an earlier call would keep its configuration."""
        if torch.compiler.is_compiling():
            return call(self, *args, **kwargs)
        args = self.normalize_args(*args, **kwargs)
        if TUNING.chooses_beside_triton:
            return self.bind(args)(*args)
        result = call(self, *args)
        _record_best(self.bind(args))
        return result

    def run_chosen_config(self: Any, *args: Any) -> Any:
        configs = {} if torch.compiler.is_compiling() else _configs(self, module)
        if not configs or not TUNING.chooses_beside_triton:
            return call_bound(self, *args)
        return run_chosen(_name(self), [*configs], str, lambda text: self.compile_config(configs[text])(*args))

    kernel.__call__, bound.__call__ = bind_and_call, run_chosen_config


def _record_best(bound: Any) -> None:
    configs = list(bound.kernel.configs)
    if len(configs) > 1 and bound._config is not None:
        record(_name(bound), _text(bound._config), [_text(config) for config in configs], len(configs))


def _configs(bound: Any, module: ModuleType) -> Mapping[str, Any]:
    """The choices of its autotuner by their texts; none if it does not tune."""
    kernel = bound.kernel
    if module.is_ref_mode_enabled(kernel.settings):
        return {}
    if kernel.configs and not kernel.settings.force_autotune:
        return {_text(config): config for config in kernel.configs} if len(kernel.configs) > 1 else {}
    if kernel.settings.autotune_effort == "none":
        return {}
    if _DRAWN not in bound.__dict__:
        setattr(bound, _DRAWN, _drawn(bound))
    drawn: Mapping[str, Any] = getattr(bound, _DRAWN)
    return drawn


def _drawn(bound: Any) -> Mapping[str, Any]:
    """Configurations of the search space, the same in each process.

    They are named by numbers: kernels bound to other sizes have other ones.
    """
    state = random.getstate()
    random.seed(0)
    try:
        population = bound.config_spec.create_config_generation().random_population(N_DRAWN)
    finally:
        random.setstate(state)
    distinct = {_text(config): config for config in population}
    return {f"configuration {i}": config for i, config in enumerate(distinct.values())}


def _name(bound: Any) -> str:
    return f"{bound.kernel.name}{' (drawn from its search space)' if _DRAWN in bound.__dict__ else ''}"


def _text(config: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in dict(config).items())
