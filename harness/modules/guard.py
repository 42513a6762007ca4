"""A guard on a training run's first batch: does one of its documents reach another? Checked before the first step.

Two passes run as in training, with gradients if the run has them: the batch with every second document changed, and the
batch itself. The unchanged documents keep their bits, and have no gradient at the changed tokens. If both say
something, the gradient decides: experts may round outputs differently, and rounding has no gradient.
"""

import inspect
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from packproof.harness.modules.trace import first_difference
from packproof.harness.modules.watch import embedded, tensors_in
from packproof.harness.results.failed import CheckFailed
from packproof.refs.errors import ArgumentError, checked_call

Arguments = Mapping[str, Any]
Documents = Callable[[Arguments], Tensor]
_IDS = ("seq_idx", "segment_ids", "document_ids")
_OFFSETS = ("cu_seq_lens_q", "cu_seqlens", "cu_seqlens_q")


@checked_call
def guard(model: nn.Module, documents: Documents | None = None) -> RemovableHandle:
    """Stop a training run whose packed documents see each other: call it before the first step.

    model: the module under training.
    documents: a function from the arguments of its forward, by name, to the document of each token (b, t). None reads
        seq_idx, segment_ids, document_ids, cu_seq_lens_q, cu_seqlens or position_ids.

    The first call of the model that has a row of two documents is checked with its own arguments, mode and precision,
    and with gradients if they are on: two forward passes and a backward pass to the embedding. Buffers, gradients and
    random numbers are restored afterwards. It raises CheckFailed with the first module that leaks, or if every output
    is NaN, and ArgumentError if nothing in the call says where documents begin. Anything that cannot be judged is
    reported in a warning. Then the hook is gone.

    Returns the hook; `remove()` takes it away. Raises ArgumentError for a model or documents of another type.

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
    """The document of each token (b, t), from the arguments of a call. Raises ArgumentError if none of them has it."""
    tokens = _tokens(call)
    for name in _IDS:
        if isinstance(ids := call.get(name), Tensor):
            return ids.reshape(tokens.shape[:2])
    rows, t = tokens.shape[:2]
    for name in _OFFSETS:
        if isinstance(offsets := call.get(name), Tensor):
            starts = torch.zeros(rows * t + 1, dtype=torch.int64, device=offsets.device)
            starts[offsets.long()] = 1
            return starts[:-1].cumsum(0).reshape(rows, t)
    if isinstance(position_ids := call.get("position_ids"), Tensor):
        position = position_ids[0] if position_ids.dim() == 3 else position_ids  # mrope: three axes of positions
        restarts = torch.zeros_like(position)
        restarts[:, 1:] = position[:, 1:] <= position[:, :-1]
        return restarts.cumsum(1).expand(rows, t)
    names = ", ".join((*_IDS, *_OFFSETS, "position_ids"))
    raise ArgumentError(
        f"the batch says nowhere where its documents begin: there is none of {names}. The collator or a wrapper of the "
        "model dropped them; if they have another name, give documents=, a function from the arguments to (b, t)"
    )


def check_batch(model: nn.Module, call: Arguments, documents: Tensor) -> None:
    """Change every second document, and raise CheckFailed if another one changes, or if every output is NaN.

    A batch that cannot be judged gets a warning.

    documents: (b, t), the document of each token.
    """
    call = _without_labels(model, call)
    number = _numbered(documents)
    keep, other = number % 2 == 1, _with_changed(call, number % 2 == 0)
    with _unchanged(model, call):
        after = [x.detach() for x in _outputs(model, other)]
    with _unchanged(model, call), _leaves(model, call) as (followed, leaves):
        outputs = _outputs(model, followed)
        before = [x.detach() for x in outputs]
        if not _can_be_judged(before, after, keep):
            return
        reached = _reached(model, call, outputs, leaves, keep)
    del outputs
    same = all(_agree(a, b, keep) for a, b in zip(before, after, strict=True))
    if not same and reached is None and not torch.is_grad_enabled():
        with torch.enable_grad(), _unchanged(model, call), _leaves(model, call) as (followed, leaves):
            reached = _reached(model, call, _outputs(model, followed), leaves, keep)
    if reached or (reached is None and not same):
        documents_in_all = int(number.max()) + 1
        text = _text_of(model, call, other, keep, documents=documents_in_all, moved=not same, reached=reached or "")
        raise CheckFailed(text, ())


def _text_of(
    model: nn.Module, call: Arguments, other: Arguments, keep: Tensor, *, documents: int, moved: bool, reached: str
) -> str:
    """The report of a leak and of the first module with it.

    gradient_leak: the finding of the gradient, in words; "" for none.
    """
    if moved:
        where = first_difference(model, lambda: _repeated(model, call), lambda: _repeated(model, other), keep)
        what, where = "others moved", where or "the model itself"
    else:
        what, where = f"others keep their values, but {reached}", "not known: it does so in its backward pass"
    boundaries = (*_IDS, *_OFFSETS, "position_ids", "attention_mask", "use_cache")
    passed = ", ".join(name for name in boundaries if name in call)
    return (
        f"documents of this batch reach each other: of {documents}, every second one was changed, and {what}\n"
        f"    first module that leaks: {where}\n    the call had {passed or 'no boundaries'}\n"
        "    `packproof model` says what else can be passed to this model, and docs/models_board.md what others need"
    )


def _can_be_judged(before: Sequence[Tensor], after: Sequence[Tensor], keep: Tensor) -> bool:
    """Whether there are outputs other than NaN; warns if some or all are missing. Raises CheckFailed if all are NaN."""
    if not before or [x.shape for x in before] != [x.shape for x in after]:
        _warn("the model returned no tensor with one row for each token, of one shape in two calls")
        return False
    nan = torch.stack([_rows_of(x, keep).isnan().any(1).cpu() for x in before]).any(0)
    if nan.all():
        raise CheckFailed(
            "every output of this batch is NaN, before anything in it was changed: whether its documents reach each "
            "other cannot be judged, and nothing can be learned from it",
            (),
        )
    if nan.any():
        _warn(f"outputs of {int(nan.sum())} of {len(nan)} tokens are NaN; the others were judged")
    return True


def _warn(what: str) -> None:
    warnings.warn(f"packproof.guard could not judge this batch completely: {what}", stacklevel=2)


def _without_labels(model: nn.Module, call: Arguments) -> Arguments:
    """The call without labels, unless `forward` requires them: with labels some models return a loss and no logits."""
    labels = _parameters(model).get("labels")
    needed = labels is not None and labels.default is inspect.Parameter.empty
    return {name: value for name, value in call.items() if name != "labels" or needed}


def _names(module: nn.Module) -> list[str]:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in _parameters(module).items() if parameter.kind in positional] or ["input_ids"]


def _parameters(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(module.forward).parameters
    except (TypeError, ValueError):  # not a Python function, such as a scripted module
        return {}


def _tokens(call: Arguments) -> Tensor:
    for name in ("input_ids", "inputs_embeds", "tokens", "x", "hidden_states"):
        if isinstance(found := call.get(name), Tensor):
            return found
    found = next((value for value in call.values() if isinstance(value, Tensor) and value.dim() > 1), None)
    if found is None:
        raise ArgumentError("the call has no tensor of tokens (b, t)")
    return found


def _numbered(documents: Tensor) -> Tensor:
    """Documents numbered from 0 across rows: a new number at each change of the id."""
    changes = torch.ones_like(documents, dtype=torch.int64)
    changes[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return changes.flatten().cumsum(0).reshape(documents.shape) - 1


def _with_changed(call: Arguments, which: Tensor) -> Arguments:
    """The call with other tokens where the mask is true: ids of the same batch, none out of range or special."""
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
def _unchanged(model: nn.Module, call: Arguments) -> Iterator[None]:
    """Every pass draws the same dropout. Afterwards random numbers and buffers are restored.

    A running mean therefore counts no batch twice.
    """
    buffers = [(module, name, x, x.clone()) for module in model.modules() for name, x in _buffers_of(module)]
    gpus = {x.device for x in (_tokens(call), *model.parameters()) if x.device.type == "cuda"}
    numbers, numpy_numbers = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(list(gpus)):
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)
            yield
    finally:
        random.setstate(numbers)
        np.random.set_state(numpy_numbers)
        for module, name, x, value in buffers:
            module._buffers[name] = x
            if not torch.equal(x, value):
                with torch.no_grad():
                    x.copy_(value)


def _buffers_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, x) for name, x in module._buffers.items() if x is not None]


def _repeated(model: nn.Module, call: Arguments) -> Any:
    with _unchanged(model, call):
        return model(**call)


def _outputs(model: nn.Module, call: Arguments) -> list[Tensor]:
    """The tensors along tokens in the return value: (b, t, ...), or (b t, ...) for documents end to end."""
    (rows, t), returned = _tokens(call).shape[:2], model(**call)
    for name in ("logits", "last_hidden_state"):
        tensor = returned.get(name) if isinstance(returned, Mapping) else getattr(returned, name, None)
        if isinstance(tensor, Tensor):
            returned = tensor
    if not isinstance(returned, Tensor | Mapping | tuple | list):
        returned = getattr(returned, "__dict__", {})
    tensors = [x.reshape(rows, t, *x.shape[1:]) if x.dim() and len(x) == rows * t else x for x in tensors_in(returned)]
    return [x for x in tensors if x.shape[:2] == (rows, t)]


def _rows_of(x: Tensor, keep: Tensor) -> Tensor:
    """The rows of these tokens, each flattened."""
    rows = x[keep.to(x.device)]
    return rows.reshape(len(rows), -1)


def _agree(one: Tensor, other: Tensor, keep: Tensor) -> bool:
    one, other = _rows_of(one, keep), _rows_of(other, keep)
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


@contextmanager
def _leaves(model: nn.Module, call: Arguments) -> Iterator[tuple[Arguments, list[Tensor]]]:
    """A call with differentiable tokens, and a list of its leaves, filled by the call.

    The leaf is the tokens themselves, or the output of the first embedding of their ids.
    """
    tokens = _tokens(call)
    if not tokens.is_floating_point():
        with embedded(model, tokens) as leaves:
            yield call, leaves
        return
    leaf = tokens.detach().clone().requires_grad_()
    follows = leaf * 1  # a layer may write in place
    yield {name: follows if value is tokens else value for name, value in call.items()}, [leaf]


def _reached(
    model: nn.Module, call: Arguments, outputs: Sequence[Tensor], leaves: Sequence[Tensor], keep: Tensor
) -> str | None:
    """The gradient of these tokens' outputs at the other tokens, in words; "" if it is exactly zero.

    None if autograd cannot say: without gradients, or with an output that is not finite.
    """
    outputs = [x for x in outputs if x.requires_grad]
    if not (outputs and leaves) or not all(bool(x.isfinite().all()) for x in outputs):
        return None
    cotangents = [_cotangent(x, keep) for x in outputs]
    gradients: tuple[Tensor | None, ...]
    try:
        gradients = torch.autograd.grad(outputs, list(leaves), cotangents, allow_unused=True)
    except RuntimeError:
        gradients = _by_backward(model, call, keep)
    at_others = [g[~keep.to(g.device)].flatten().cpu() for g in gradients if g is not None]
    if len(at_others) < len(leaves):
        return None
    if any(g.isnan().any() for g in at_others):
        return "their gradient at its tokens is NaN"
    return "they have a gradient at its tokens" if any((g != 0).any() for g in at_others) else ""


def _by_backward(model: nn.Module, call: Arguments, keep: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of the leaves by `backward()`, the only way with reentrant checkpointing.

    () with a warning if it fails. Parameters require no gradient meanwhile, so nothing is added to theirs.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        with _unchanged(model, call), _leaves(model, call) as (followed, leaves):
            outputs = [x for x in _outputs(model, followed) if x.requires_grad]
            torch.autograd.backward(outputs, [_cotangent(x, keep) for x in outputs])
        return tuple(leaf.grad for leaf in leaves)
    except RuntimeError as error:
        _warn(f"its backward pass failed: {str(error).partition(chr(10))[0]}")
        return ()
    finally:
        for parameter in trained:
            parameter.requires_grad_()


def _cotangent(x: Tensor, keep: Tensor) -> Tensor:
    """A different number for each channel, because the plain sum of a normalised row has no gradient."""
    row = x[0, 0]
    pattern = torch.arange(1, row.numel() + 1, device=x.device, dtype=torch.float32).sin().reshape(row.shape).to(x)
    return pattern * keep.to(x).reshape(*keep.shape, *[1] * row.dim())
