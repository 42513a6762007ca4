"""Hooks on a running model: each call of a module inside it, and the place where tokens are embedded."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Visit = TypeVar("Visit")


@contextmanager
def watch_modules(
    model: nn.Module, begin: Callable[[str, nn.Module, Any], Visit], end: Callable[[Visit, Any], None]
) -> Iterator[list[Visit]]:
    """The calls of the modules inside the model, in the order in which they ended: the innermost first.

    begin: makes a visit from the name of a module, the module and all its arguments.
    end: gets the visit and the return value.
    """
    visits, open_visits = list[Visit](), list[Visit]()

    def leave(_module: nn.Module, _args: Any, _kwargs: Any, out: Any) -> None:
        visit = open_visits.pop()
        end(visit, out)
        visits.append(visit)

    with ExitStack() as hooks:
        for name, module in model.named_modules():

            def enter(module: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                open_visits.append(begin(name, module, (args, kwargs)))

            hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(leave, with_kwargs=True))
        yield visits


@contextmanager
def watch_embedding(model: nn.Module, tokens: Tensor) -> Iterator[list[Tensor]]:
    """Make the output of the first embedding of these token ids a leaf, and append it to the list: (*tokens.shape, d).

    The ids may arrive in another shape.
    """
    leaves: list[Tensor] = []

    def detach_output(_module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor | None:
        if leaves or not (args and isinstance(args[0], Tensor)):
            return None
        if args[0].shape != tokens.shape and not torch.equal(args[0].flatten(), tokens.flatten()):
            return None
        leaves.append(out.detach().clone().view(*tokens.shape, -1).requires_grad_())
        return leaves[0].view(out.shape) * 1  # models scale the embedding in place

    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                hooks.enter_context(module.register_forward_hook(detach_output))
        yield leaves


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
