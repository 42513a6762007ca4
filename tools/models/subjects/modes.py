"""The modes in which a module runs: its attention, training and recomputation, torch.compile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from packproof.base.errors import PackproofError
from packproof.base.names import ATTENTION, MODES, STEP_MODES, require_known
from packproof.models.subjects import fast_kernels
from packproof.models.subjects.copies import copy_module

_MOST_RECOMPILES = 256
_RECOMPUTING = ("checkpointing", "selective", "reentrant")
_SAVED_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)


class CannotRun(PackproofError):
    """The module cannot be put into a mode, here or at all."""


@dataclass(frozen=True)
class Mode:
    """How a module runs."""

    attention: str = ""
    """An implementation of transformers, "" for the module's own."""
    train: bool = False
    """In train mode, with dropout off."""
    checkpointing: bool = False
    """Layers recompute their activations in the backward pass."""
    compiled: bool = False
    """Through torch.compile."""
    variant: str = ""
    """How a training step differs from one in train mode, by its name in MODES: what is saved ("selective"), how it is
    recomputed ("reentrant"), "accumulation" over packs, "autocast", or "frozen" parameters. "" for none."""

    def __str__(self) -> str:
        training_mode = self.variant or ("checkpointing" if self.checkpointing else "train" if self.train else "")
        return ", ".join(filter(None, (self.attention, training_mode, "compiled" if self.compiled else "")))

    @classmethod
    def from_name(cls, name: str, attention: str = "", *, compiled: bool = False) -> "Mode":
        """The mode of a name in MODES; checkpointing implies training. Raises UsageError."""
        require_known("mode", name, MODES)
        variant = name if name in STEP_MODES else ""
        return cls(attention, name != "eval", name in _RECOMPUTING, compiled, variant)

    @classmethod
    def from_json(cls, data: Any) -> "Mode":
        """The mode that `dataclasses.asdict` wrote. Raises ValueError."""
        kinds = {field.name: type(field.default) for field in fields(cls)}
        if not isinstance(data, dict) or {n: type(v) for n, v in ({"variant": ""} | data).items()} != kinds:
            raise ValueError(f"mode is {data!r}, expected {', '.join(kinds)}")
        return cls(**data)

    @property
    def plain(self) -> "Mode":
        """Plain train mode with the same attention: what a training step is compared with."""
        return Mode(self.attention, train=True)

    @property
    def is_compared(self) -> bool:
        """Whether a training step is compared with one in plain train mode."""
        return self.train and self != self.plain

    @property
    def is_of_a_step(self) -> bool:
        """Whether the mode is one of a whole training step, in which nothing else can be judged."""
        return self.variant in STEP_MODES

    @contextmanager
    def randomness(self, device: torch.device, seed: int = 0) -> Iterator[None]:
        """In train mode every call draws the random numbers of this seed."""
        with torch.random.fork_rng([device] if device.type == "cuda" else []) if self.train else nullcontext():
            if self.train:
                torch.manual_seed(seed)
            yield


def module_in_mode(module: nn.Module, mode: Mode, *, dropout: bool = False) -> nn.Module:
    """A copy of the module in this mode. Raises CannotRun.

    dropout: whether to leave dropout on in train mode.
    """
    module = copy_module(module)
    if mode.attention:
        _set_attention(module, mode.attention)
    if mode.train and not dropout:
        _disable_dropout(module.train())
    module.train(mode.train)
    if mode.checkpointing:
        _enable_checkpointing(module, mode)
    return module


def _set_attention(module: nn.Module, attention: str) -> None:
    require_known("attention", attention, ATTENTION)
    set_implementation = getattr(module, "set_attn_implementation", None)
    if set_implementation is None:
        raise CannotRun("the module lets no attention be chosen: it has no set_attn_implementation")
    try:
        set_implementation(attention)
    except Exception as error:
        raise CannotRun(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
    if getattr(module.config, "_attn_implementation", attention) != attention:
        raise CannotRun("the model does not take it")


def _disable_dropout(module: nn.Module) -> None:
    """Turn off dropout, and the jitter of some routers: a document alone would lose other elements than in the pack."""
    for part in (*module.modules(), getattr(module, "config", None)):
        for name, value in vars(part).items() if part is not None else ():
            if isinstance(value, float) and ("drop" in name or "jitter" in name):
                setattr(part, name, 0.0)
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0


def _enable_checkpointing(module: nn.Module, mode: Mode) -> None:
    """The module's own recomputation, or one around each layer of its lists."""
    is_reentrant, is_selective = mode.variant == "reentrant", mode.variant == "selective"
    require_input_gradients = getattr(module, "enable_input_require_grads", None)
    if is_reentrant and require_input_gradients:
        require_input_gradients()  # as trainers do, for layers below which all is frozen
    enable = getattr(module, "gradient_checkpointing_enable", None)
    if enable is not None and getattr(module, "supports_gradient_checkpointing", True) and not is_selective:
        enable({"use_reentrant": is_reentrant})
        return
    layers = [layer for part in module.modules() if isinstance(part, nn.ModuleList) for layer in part]
    if is_reentrant and not layers:
        raise CannotRun(
            "it has no nn.ModuleList of layers: token ids have no gradient, which reentrant recomputation needs"
        )
    for layer in layers or [module]:
        recompute = partial(_recompute_reentrant if is_reentrant else _recompute, layer.forward)
        if is_selective:
            recompute.keywords["context_fn"] = partial(create_selective_checkpoint_contexts, list(_SAVED_PRODUCTS))
        layer.forward = update_wrapper(recompute, layer.forward)


def _recompute(forward: Callable[..., Any], *args: Any, context_fn: Any = noop_context_fn, **kwargs: Any) -> Any:
    return checkpoint(forward, *args, use_reentrant=False, context_fn=context_fn, **kwargs)


def _recompute_reentrant(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(partial(forward, **kwargs), *args, use_reentrant=True)  # it takes no keyword arguments


def compile_module(module: nn.Module) -> Callable[..., Any]:
    """The module through torch.compile. It raises an error instead of falling back to eager code."""
    torch._dynamo.reset()
    return _Compiled(torch.compile(module, dynamic=True))


@dataclass
class _Compiled:
    module: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        limits: dict[str, Any] = {"recompile_limit": _MOST_RECOMPILES, "fail_on_recompile_limit_hit": True}
        with torch._dynamo.config.patch(limits), compiler_settings():
            return self.module(*args, **kwargs)


@contextmanager
def compiler_settings() -> Iterator[None]:
    """Settings under which a compiled module is called and differentiated.

    Several gradients can be taken of one forward pass. No pool of compiler processes is started, because a check
    already runs in several processes.
    """
    from torch._inductor import config  # noqa: PLC0415  (a second)

    with torch._functorch.config.patch(donated_buffer=False), config.patch(compile_threads=1):
        yield


def supported_modes(module: nn.Module) -> tuple[tuple[Mode, ...], tuple[str, ...]]:
    """The modes in which this module can run here, and notes on modes that cannot run, with the reasons.

    torch.compile is tried only in train mode, once for each attention, because it takes most of the time.
    """
    modes, notes = dict[Mode, None](), []
    default_attention = getattr(getattr(module, "config", None), "_attn_implementation", "")
    attentions = (
        ["", *(name for name in ATTENTION if name != default_attention)]
        if hasattr(module, "set_attn_implementation")
        else [""]
    )
    for attention in attentions:
        names = MODES if not attention else [name for name in MODES if name not in STEP_MODES]
        for mode in [*(Mode.from_name(name, attention) for name in names), Mode(attention, train=True, compiled=True)]:
            try:
                module_in_mode(module, mode)
            except CannotRun as error:
                notes.append(f"{attention or mode}: not run: {error}")
                break
            modes[mode] = None
    fast_kernel_names = ", ".join(fast_kernels.installed_packages())
    notes.append(
        f"with {fast_kernel_names}; --without-kernels runs what stands in their place"
        if fast_kernel_names
        else f"PyTorch's fallbacks ran: none of {', '.join(fast_kernels.FAST_KERNEL_PACKAGES)} is installed or shown"
    )
    return tuple(modes), tuple(notes)
