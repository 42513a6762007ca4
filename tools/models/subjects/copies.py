"""Copies of modules: the laws change weights, modes and buffers, and the user's module stays as it is."""

import copy
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from packproof.base.errors import ArgumentError


def copy_module(module: nn.Module) -> nn.Module:
    """A copy that shares nothing with the module. Raises ArgumentError with the attribute that cannot be copied.

    A tensor that the module computed and kept, such as its last output, is copied without its graph: that leads to the
    parameters of the module, not to those of the copy.
    """
    try:
        with _WithoutGraphs():
            return copy.deepcopy(module)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        culprit = next(_uncopiable(module), type(module).__name__)
        raise ArgumentError(
            f"module: {culprit} cannot be copied ({reason}), and packproof judges a copy; let forward make it, or "
            "define __deepcopy__ in its class"
        ) from error


class _WithoutGraphs(TorchFunctionMode):
    """Lets tensors be copied that are no leaves of a graph."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            tensor, memo = args
            memo[id(tensor)] = clone = tensor.detach().clone()
            return clone
        return func(*args, **(kwargs or {}))


def _uncopiable(module: nn.Module) -> Iterator[str]:
    """The attributes that cannot be copied, with the types of their values."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name == "_modules":  # they follow
                continue
            try:
                with _WithoutGraphs():
                    copy.deepcopy(value)
            except Exception:
                yield f"{'.'.join(filter(None, (path, name)))}, of type {type(value).__name__},"
