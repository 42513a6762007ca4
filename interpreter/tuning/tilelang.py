"""Chooses configurations of `tilelang.autotune`. A kernel compiled in an earlier call keeps its own."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from packproof.interpreter.tuning.choice import TUNING, run_chosen


def hook(module: ModuleType) -> None:
    """Replace the call of autotuned functions in `tilelang.autotuner.tuner`."""
    tuned, pass_configs = module.AutoTuneImpl, module._PASS_CONFIGS_KEY
    call = tuned.__dict__["__call__"]
    tuned.__dict__["_make_jit_compile_func"]  # raises KeyError for another release

    def compile_chosen(self: Any, *args: Any, **kwargs: Any) -> Any:
        configs = _configs(self, args, kwargs)
        is_set = any(name in kwargs for config in configs for name in config)
        if len(configs) < 2 or is_set or not TUNING.chooses_beside_triton:
            return call(self, *args, **kwargs)
        options = {name: value for name, value in kwargs.items() if name != "__return_kernel"}
        mode = self.jit_impl.initialize_jit_mode(*args, **options)
        compile_config = self._make_jit_compile_func(mode, args, options)

        def run(config: dict[str, Any]) -> Any:
            values = {name: value for name, value in config.items() if name != "pass_configs"}
            kernel = compile_config(**values, **{pass_configs: config.get("pass_configs")})
            if mode == "lazy" or kwargs.get("__return_kernel"):
                return kernel
            _, tensors = self.jit_impl.func.parse_args(*args, **{**options, **values})
            return kernel(*tensors.values())

        return run_chosen(self.jit_impl.func.__name__, configs, _text, run)

    tuned.__call__ = compile_chosen


def _configs(tuned: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """The list, or the result of a function of the arguments."""
    return list(tuned.configs(*args, **kwargs) if callable(tuned.configs) else tuned.configs)


def _text(config: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in config.items())
