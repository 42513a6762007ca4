"""Stand-ins of the autotuners of Helion, TileLang and quack, with their names and arguments, and kernels of
y = x * weight on them. Where nothing chooses, each takes its first configuration, as if it were the fastest.
"""

# mypy: allow-untyped-defs

import sys
from dataclasses import dataclass
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import packproof


class BoundKernel:
    """Helion's."""

    def __init__(self, kernel):
        self.kernel, self._config = kernel, None
        self.config_spec = SimpleNamespace(create_config_generation=lambda: self)

    def random_population(self, n):
        return [{"block_sizes": [2**i]} for i in range(n)]

    def compile_config(self, config):
        return partial(self.kernel.fn, **config)

    def __call__(self, *args):
        self._config = self._config or (self.kernel.configs or self.random_population(1))[0]
        return self.compile_config(self._config)(*args)


class Kernel:
    """Helion's."""

    def __init__(self, fn, configs=()):
        self.fn, self.name, self.configs = fn, fn.__name__, list(configs)
        self.settings = SimpleNamespace(force_autotune=False, autotune_effort="full")
        self.bound = BoundKernel(self)

    def normalize_args(self, *args, **kwargs):
        return (*args, *kwargs.values())

    def bind(self, args):
        return self.bound

    def __call__(self, *args, **kwargs):
        return self.bound(*self.normalize_args(*args, **kwargs))


@dataclass
class AutoTuneImpl:
    """TileLang's, of a function that returns a kernel."""

    func: Any
    configs: Any
    jit_impl: Any = None

    def __post_init__(self):
        self.jit_impl = SimpleNamespace(func=self.func, initialize_jit_mode=lambda *args: "lazy")

    def _make_jit_compile_func(self, mode, args, kwargs):
        return lambda pass_options=None, **config: self.func(*args, **kwargs, **config)

    def __call__(self, *args, **kwargs):
        configs = self.configs(*args) if callable(self.configs) else self.configs
        return self._make_jit_compile_func("lazy", args, kwargs)(**configs[0])


@dataclass(eq=False)
class AutotuneConfig:
    """quack's."""

    block: int

    def all_kwargs(self):
        return {"block": self.block}

    def __str__(self):
        return f"block: {self.block}"


@dataclass
class Autotuner:
    """quack's."""

    fn: Any
    configs: Any
    arg_names: Any = ("x", "weight")
    nargs: Any = None
    best_config: Any = None
    unfit: int = 0

    def prune_configs(self, kwargs):
        assert set(self.nargs) == {"x", "weight"}
        return [config for config in self.configs if config.block != self.unfit]

    def __call__(self, *args, **kwargs):
        self.best_config = self.configs[0]
        return self.fn(*args, **kwargs, **self.best_config.all_kwargs())


def install(name, **names):
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(names)


install("helion.runtime.kernel", Kernel=Kernel, BoundKernel=BoundKernel, is_ref_mode_enabled=lambda settings: False)
install("tilelang.autotuner.tuner", AutoTuneImpl=AutoTuneImpl, _PASS_CONFIGS_KEY="pass_options")
install("quack.autotuner", Autotuner=Autotuner)


def scaled(x, weight, block=8, wrong=(), unfit=()):
    """Zeros with a block of `wrong`; an error with one of `unfit`."""
    if block in unfit:
        raise RuntimeError(f"a block of {block} needs more shared memory than there is")
    return x * weight * (block not in wrong)


def named(**flaws):
    """The kernel with these flaws, by its own name."""

    def scaled_rows(x, weight, block):
        return scaled(x, weight, block, **flaws)

    return scaled_rows


def in_helion(*blocks, **flaws):
    def scaled_rows(x, weight, block_sizes):
        return scaled(x, weight, block_sizes[0], **flaws)

    return Kernel(scaled_rows, [{"block_sizes": [block]} for block in blocks])


def in_tilelang(*blocks, **flaws):
    def scaled_rows(tokens, block):
        return lambda x, weight: scaled(x, weight, block, **flaws)

    tuned = AutoTuneImpl(scaled_rows, lambda tokens: [{"block": block} for block in blocks])
    return lambda x, weight: tuned(len(x))(x, weight)


def in_quack(*blocks, pruned=0, **flaws):
    return Autotuner(named(**flaws), [AutotuneConfig(block) for block in blocks], unfit=pruned)


def declared(kernel):
    @packproof.kernel(gradients=False)
    def call(x, weight, *, cu_seqlens):
        return kernel(x, weight)

    return call


for _language, _make in {"helion": in_helion, "tilelang": in_tilelang, "quack": in_quack}.items():
    globals()[f"{_language}_correct"] = declared(_make(8, 16, 32))
    globals()[f"{_language}_wrong"] = declared(_make(8, 16, 32, wrong=(16,)))
    globals()[f"{_language}_long"] = declared(_make(*range(1, 61), wrong=(60,)))
    globals()[f"{_language}_unfit"] = declared(_make(8, 16, 32, unfit=(16,)))
helion_searched = declared(in_helion(wrong=(2**15,)))
quack_pruned = declared(in_quack(8, 16, 32, wrong=(16,), pruned=16))
