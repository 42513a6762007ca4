"""Chooses configurations of quack's autotuner, of its kernels in CuTe."""

from types import ModuleType
from typing import Any

from packproof.interpreter.tuning.choice import TUNING, record, run_chosen


def hook(module: ModuleType) -> None:
    """Replace the call of autotuned functions in `quack.autotuner`."""
    tuner = module.Autotuner
    call = tuner.__dict__["__call__"]
    tuner.__dict__["prune_configs"]  # raises KeyError for another release

    def run_chosen_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        declared = list(self.configs)
        if len(declared) < 2:
            return call(self, *args, **kwargs)
        if not TUNING.chooses_beside_triton:
            result = call(self, *args, **kwargs)
            record(self.fn.__name__, str(self.best_config), [str(config) for config in declared], len(declared))
            return result
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        offered = list(self.prune_configs(kwargs))
        self.nargs = None
        return run_chosen(
            self.fn.__name__,
            offered,
            str,
            lambda config: self.fn(*args, **kwargs, **config.all_kwargs()),
            n_declared=len(declared),
        )

    tuner.__call__ = run_chosen_config
