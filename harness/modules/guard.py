"""A training run's own first batch: whether one of its documents reaches another, before a step is taken.

Two passes without gradient: the batch, and the batch with every second document changed. The others keep their bits.
Only where they do not, a third pass differentiates: experts round outputs otherwise, which has no gradient.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from packproof.harness.modules.trace import first_difference
from packproof.harness.modules.watch import embedded
from packproof.harness.results.failed import CheckFailed
from packproof.refs.errors import ArgumentError, checked_call

Arguments = Mapping[str, Any]
Documents = Callable[[Arguments], Tensor]
_IDS = ("seq_idx", "segment_ids", "document_ids")
_OFFSETS = ("cu_seq_lens_q", "cu_seqlens", "cu_seqlens_q")


@checked_call
def guard(model: nn.Module, documents: Documents | None = None) -> RemovableHandle:
    """Stop a training run whose packed documents see each other: call it before the first step.

    model: the one that is trained. documents: a function from the arguments of its forward, by name, to the document of
    each token (b, t); None reads seq_idx, segment_ids, document_ids, cu_seq_lens_q, cu_seqlens or position_ids.

    The first call of the model that has a row of two documents is checked with the arguments that it got, in the mode
    and precision that it has: two forward passes without gradient. It raises CheckFailed with the first module that
    leaks, or ArgumentError where nothing in the call says where documents begin. Then the hook is gone.

    Returns the hook, which `remove()` takes away. Raises ArgumentError for a model or documents of another type.

    >>> import torch, packproof
    >>> class Mean(torch.nn.Module):  # over the whole row
    ...     def forward(self, x, cu_seqlens):
    ...         return x.cumsum(1)
    >>> model = Mean()
    >>> hook = packproof.guard(model)
    >>> try:
    ...     _ = model(torch.randn(1, 5, 2), cu_seqlens=torch.tensor([0, 2, 5]))
    ... except packproof.CheckFailed as leak:
    ...     print(str(leak).partition(":")[0])
    documents of this batch reach each other
    """

    if not isinstance(model, nn.Module):
        raise ArgumentError(f"guard: model is {model!r}, expected the nn.Module that is trained")
    if documents is not None and not callable(documents):
        raise ArgumentError(f"guard: documents is {documents!r}, expected a function from the arguments to (b, t)")

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = {**dict(zip(_names(module), args, strict=False)), **kwargs}
        told = (documents or documents_of)(call)
        if not isinstance(told, Tensor) or told.dim() != 2:
            came = tuple(told.shape) if isinstance(told, Tensor) else type(told).__name__
            raise ArgumentError(f"guard: documents returned {came}, expected the document of each token, (b, t)")
        if int((told[:, 1:] != told[:, :-1]).sum()) == 0:
            return
        handle.remove()
        check_batch(module, call, told)

    handle = model.register_forward_pre_hook(before, with_kwargs=True)
    return handle


def documents_of(call: Arguments) -> Tensor:
    """The document of each token (b, t), as the arguments of a call say it. Raises ArgumentError where none does."""
    tokens = _tokens(call)
    for name in _IDS:
        if isinstance(found := call.get(name), Tensor):
            return found.reshape(tokens.shape[:2])
    rows, t = tokens.shape[:2]
    for name in _OFFSETS:
        if isinstance(found := call.get(name), Tensor):
            starts = torch.zeros(rows * t + 1, dtype=torch.int64, device=found.device)
            starts[found.long()] = 1
            return starts[:-1].cumsum(0).reshape(rows, t)
    if isinstance(found := call.get("position_ids"), Tensor):
        position = found[0] if found.dim() == 3 else found  # several axes of positions
        restarts = torch.zeros_like(position)
        restarts[:, 1:] = position[:, 1:] <= position[:, :-1]
        return restarts.cumsum(1).expand(rows, t)
    names = ", ".join((*_IDS, *_OFFSETS, "position_ids"))
    raise ArgumentError(
        f"the batch says nowhere where its documents begin: there is none of {names}. The collator or a wrapper of the "
        "model dropped them; if they have another name, give documents=, a function from the arguments to (b, t)"
    )


def check_batch(model: nn.Module, call: Arguments, documents: Tensor) -> None:
    """Raise CheckFailed where changing every second document changes another one. documents: (b, t)."""
    call = {name: value for name, value in call.items() if name != "labels"}
    number = _numbered(documents)
    keep, other = number % 2 == 1, _with_changed(call, number % 2 == 0)
    with torch.no_grad():
        before = _outputs(model, call)
        same = [_agree(a, b, keep) for a, b in zip(before, _outputs(model, other), strict=True)]
    if all(same) or not _has_gradient(model, call, keep):
        return
    with torch.no_grad():
        where = first_difference(model, lambda: _repeatable(model, call), lambda: _repeatable(model, other), keep)
    told = ", ".join(name for name in (*_IDS, *_OFFSETS, "position_ids", "attention_mask", "use_cache") if name in call)
    raise CheckFailed(
        f"documents of this batch reach each other: of {int(number.max()) + 1}, every second one was changed, and "
        "others moved\n"
        f"    first module that leaks: {where or 'the model itself'}\n    the call had {told or 'no boundaries'}\n"
        "    `packproof model` says what else can be passed to this model, and docs/models_board.md what others need",
        (),
    )


def _names(module: nn.Module) -> list[str]:
    code = module.forward.__code__ if hasattr(module.forward, "__code__") else None
    return list(code.co_varnames[1 : code.co_argcount]) if code else ["input_ids"]


def _tokens(call: Arguments) -> Tensor:
    for name in ("input_ids", "inputs_embeds", "tokens", "x", "hidden_states"):
        if isinstance(found := call.get(name), Tensor):
            return found
    found = next((value for value in call.values() if isinstance(value, Tensor) and value.dim() > 1), None)
    if found is None:
        raise ArgumentError("the call has no tensor of tokens (b, t)")
    return found


def _numbered(documents: Tensor) -> Tensor:
    """From 0 on, across rows: a new number where the id changes."""
    changes = torch.ones_like(documents, dtype=torch.int64)
    changes[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return changes.flatten().cumsum(0).reshape(documents.shape) - 1


def _with_changed(call: Arguments, which: Tensor) -> Arguments:
    """The call with other tokens there: ids that the batch has too, so that none is out of range or has a meaning."""
    tokens = _tokens(call)
    which = which.to(tokens.device)
    if tokens.is_floating_point():
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(tokens.shape, generator=generator).to(tokens)
        changed = torch.where(which[..., None], noise * tokens.float().std().to(tokens), tokens)
    else:
        ids, place = torch.unique(tokens, return_inverse=True)
        changed = torch.where(which, ids[(place + 1 + len(ids) // 2) % len(ids)], tokens)
        changed = torch.where(which & (changed == tokens), ids[(place + 1) % len(ids)], changed)
    return {name: changed if value is tokens else value for name, value in call.items()}


@contextmanager
def _same_randomness(device: torch.device) -> Iterator[None]:
    """Dropout draws the same numbers in each pass, and the training's own afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        yield


def _repeatable(model: nn.Module, call: Arguments) -> Any:
    with _same_randomness(_tokens(call).device):
        return model(**call)


def _outputs(model: nn.Module, call: Arguments) -> list[Tensor]:
    """The tensors along tokens (b, t, ...) of what the model returns."""
    returned, shape = _repeatable(model, call), _tokens(call).shape[:2]
    found = getattr(returned, "logits", None)
    values = [found] if isinstance(found, Tensor) else returned if isinstance(returned, tuple | list) else [returned]
    tensors = [x for x in values if isinstance(x, Tensor) and x.shape[:2] == shape]
    if not tensors:
        raise ArgumentError(f"the model returned {type(returned).__name__} without a tensor of one row for each token")
    return tensors


def _agree(one: Tensor, other: Tensor, keep: Tensor) -> bool:
    keep = keep.to(one.device)
    return torch.equal(one[keep].nan_to_num(), other[keep].nan_to_num())


def _has_gradient(model: nn.Module, call: Arguments, keep: Tensor) -> bool:
    """Whether the outputs of these tokens have a gradient at the others: zero, exactly, where nothing reaches them."""
    tokens = _tokens(call)
    with ExitStack() as stack:
        if tokens.is_floating_point():
            found = [tokens.detach().clone().requires_grad_()]
            call = {name: found[0] if value is tokens else value for name, value in call.items()}
        else:
            found = stack.enter_context(embedded(model, tokens))
        with torch.enable_grad():
            outputs = _outputs(model, call)
            loss = sum((x[keep.to(x.device)].float().square().sum() for x in outputs), torch.zeros(()))
            grads = torch.autograd.grad(loss, found, allow_unused=True) if found else (None,)
    return any(g is None or bool((g[~keep.to(g.device)] != 0).any()) for g in grads)
