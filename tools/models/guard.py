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

from packproof.base.errors import ArgumentError, checked_call
from packproof.harness.report import CheckFailed
from packproof.models.subjects.watch import tensors_in, watch_embedding
from packproof.models.trace import first_difference

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

    def check_first_batch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = {**dict(zip(_positional_names(module), args, strict=False)), **kwargs}
        document_ids = (documents or documents_of)(call)
        if not isinstance(document_ids, Tensor) or document_ids.dim() != 2:
            returned_form = (
                tuple(document_ids.shape) if isinstance(document_ids, Tensor) else type(document_ids).__name__
            )
            raise ArgumentError(
                f"guard: documents returned {returned_form}, expected the document of each token, (b, t)"
            )
        if int((document_ids[:, 1:] != document_ids[:, :-1]).sum()) == 0:
            return
        handle.remove()
        check_batch(module, call, document_ids)

    handle = model.register_forward_pre_hook(check_first_batch, with_kwargs=True)
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
    document_numbers = _document_numbers(documents)
    keep, changed_call = document_numbers % 2 == 1, _with_changed_tokens(call, document_numbers % 2 == 0)
    with _state_restored(model, call):
        outputs_after = [x.detach() for x in _outputs(model, changed_call)]
    with _state_restored(model, call), _leaves(model, call) as (differentiable_call, leaves):
        outputs = _outputs(model, differentiable_call)
        outputs_before = [x.detach() for x in outputs]
        if not _can_be_judged(outputs_before, outputs_after, keep):
            return
        gradient_leak = _gradient_leak(model, call, outputs, leaves, keep)
    del outputs
    outputs_agree = all(_agree(a, b, keep) for a, b in zip(outputs_before, outputs_after, strict=True))
    if not outputs_agree and gradient_leak is None and not torch.is_grad_enabled():
        with torch.enable_grad(), _state_restored(model, call), _leaves(model, call) as (differentiable_call, leaves):
            gradient_leak = _gradient_leak(model, call, _outputs(model, differentiable_call), leaves, keep)
    if gradient_leak or (gradient_leak is None and not outputs_agree):
        document_count = int(document_numbers.max()) + 1
        text = _leak_report(
            model,
            call,
            changed_call,
            keep,
            document_count=document_count,
            outputs_moved=not outputs_agree,
            gradient_leak=gradient_leak or "",
        )
        raise CheckFailed(text, ())


def _leak_report(
    model: nn.Module,
    call: Arguments,
    changed_call: Arguments,
    keep: Tensor,
    *,
    document_count: int,
    outputs_moved: bool,
    gradient_leak: str,
) -> str:
    """The report of a leak and of the first module with it.

    gradient_leak: the finding of the gradient, in words; "" for none.
    """
    if outputs_moved:
        leaking_module = first_difference(
            model,
            lambda: _call_with_state_restored(model, call),
            lambda: _call_with_state_restored(model, changed_call),
            keep,
        )
        observation, leaking_module = "others moved", leaking_module or "the model itself"
    else:
        observation, leaking_module = (
            f"others keep their values, but {gradient_leak}",
            "not known: it does so in its backward pass",
        )
    known_boundaries = (*_IDS, *_OFFSETS, "position_ids", "attention_mask", "use_cache")
    boundary_names = ", ".join(name for name in known_boundaries if name in call)
    return (
        f"documents of this batch reach each other: of {document_count}, every second one was changed, and "
        f"{observation}\n"
        f"    first module that leaks: {leaking_module}\n    the call had {boundary_names or 'no boundaries'}\n"
        "    `packproof model` says what else can be passed to this model, and docs/models_board.md what others need"
    )


def _can_be_judged(outputs_before: Sequence[Tensor], outputs_after: Sequence[Tensor], keep: Tensor) -> bool:
    """Whether there are outputs other than NaN; warns if some or all are missing. Raises CheckFailed if all are NaN."""
    if not outputs_before or [x.shape for x in outputs_before] != [x.shape for x in outputs_after]:
        _warn("the model returned no tensor with one row for each token, of one shape in two calls")
        return False
    nan = torch.stack([_rows_of(x, keep).isnan().any(1).cpu() for x in outputs_before]).any(0)
    if nan.all():
        raise CheckFailed(
            "every output of this batch is NaN, before anything in it was changed: whether its documents reach each "
            "other cannot be judged, and nothing can be learned from it",
            (),
        )
    if nan.any():
        _warn(f"outputs of {int(nan.sum())} of {len(nan)} tokens are NaN; the others were judged")
    return True


def _warn(problem: str) -> None:
    warnings.warn(f"packproof.guard could not judge this batch completely: {problem}", stacklevel=2)


def _without_labels(model: nn.Module, call: Arguments) -> Arguments:
    """The call without labels, unless `forward` requires them: with labels some models return a loss and no logits."""
    labels = _parameters(model).get("labels")
    is_required = labels is not None and labels.default is inspect.Parameter.empty
    return {name: value for name, value in call.items() if name != "labels" or is_required}


def _positional_names(module: nn.Module) -> list[str]:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in _parameters(module).items() if parameter.kind in positional] or ["input_ids"]


def _parameters(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(module.forward).parameters
    except (TypeError, ValueError):  # not a Python function, such as a scripted module
        return {}


def _tokens(call: Arguments) -> Tensor:
    for name in ("input_ids", "inputs_embeds", "tokens", "x", "hidden_states"):
        if isinstance(tensor := call.get(name), Tensor):
            return tensor
    tensor = next((value for value in call.values() if isinstance(value, Tensor) and value.dim() > 1), None)
    if tensor is None:
        raise ArgumentError("the call has no tensor of tokens (b, t)")
    return tensor


def _document_numbers(documents: Tensor) -> Tensor:
    """Documents numbered from 0 across rows: a new number at each change of the id."""
    changes = torch.ones_like(documents, dtype=torch.int64)
    changes[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return changes.flatten().cumsum(0).reshape(documents.shape) - 1


def _with_changed_tokens(call: Arguments, mask: Tensor) -> Arguments:
    """The call with other tokens where the mask is true: ids of the same batch, none out of range or special."""
    tokens = _tokens(call)
    mask = mask.to(tokens.device)
    if tokens.is_floating_point():
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(tokens.shape, generator=generator).to(tokens)
        changed_tokens = torch.where(mask[..., None], noise * tokens.float().std().to(tokens), tokens)
    else:
        ids, index = torch.unique(tokens, return_inverse=True)
        changed_tokens = torch.where(mask, ids[(index + 1 + len(ids) // 2) % len(ids)], tokens)
        changed_tokens = torch.where(mask & (changed_tokens == tokens), ids[(index + 1) % len(ids)], changed_tokens)
    return {name: changed_tokens if value is tokens else value for name, value in call.items()}


@contextmanager
def _state_restored(model: nn.Module, call: Arguments) -> Iterator[None]:
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


def _call_with_state_restored(model: nn.Module, call: Arguments) -> Any:
    with _state_restored(model, call):
        return model(**call)


def _outputs(model: nn.Module, call: Arguments) -> list[Tensor]:
    """The tensors along tokens in the return value: (b, t, ...), or (b t, ...) for documents end to end."""
    (rows, t), return_value = _tokens(call).shape[:2], model(**call)
    for name in ("logits", "last_hidden_state"):
        tensor = return_value.get(name) if isinstance(return_value, Mapping) else getattr(return_value, name, None)
        if isinstance(tensor, Tensor):
            return_value = tensor
    if not isinstance(return_value, Tensor | Mapping | tuple | list):
        return_value = getattr(return_value, "__dict__", {})
    tensors = [
        x.reshape(rows, t, *x.shape[1:]) if x.dim() and len(x) == rows * t else x for x in tensors_in(return_value)
    ]
    return [x for x in tensors if x.shape[:2] == (rows, t)]


def _rows_of(x: Tensor, keep: Tensor) -> Tensor:
    """The rows of these tokens, each flattened."""
    rows = x[keep.to(x.device)]
    return rows.reshape(len(rows), -1)


def _agree(x: Tensor, y: Tensor, keep: Tensor) -> bool:
    x, y = _rows_of(x, keep), _rows_of(y, keep)
    return bool(((x == y) | (x.isnan() & y.isnan())).all())


@contextmanager
def _leaves(model: nn.Module, call: Arguments) -> Iterator[tuple[Arguments, list[Tensor]]]:
    """A call with differentiable tokens, and a list of its leaves, filled by the call.

    The leaf is the tokens themselves, or the output of the first embedding of their ids.
    """
    tokens = _tokens(call)
    if not tokens.is_floating_point():
        with watch_embedding(model, tokens) as leaves:
            yield call, leaves
        return
    leaf = tokens.detach().clone().requires_grad_()
    differentiable_tokens = leaf * 1  # a layer may write in place
    yield {name: differentiable_tokens if value is tokens else value for name, value in call.items()}, [leaf]


def _gradient_leak(
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
        gradients = _gradients_by_backward(model, call, keep)
    changed_token_gradients = [g[~keep.to(g.device)].flatten().cpu() for g in gradients if g is not None]
    if len(changed_token_gradients) < len(leaves):
        return None
    if any(g.isnan().any() for g in changed_token_gradients):
        return "their gradient at its tokens is NaN"
    return "they have a gradient at its tokens" if any((g != 0).any() for g in changed_token_gradients) else ""


def _gradients_by_backward(model: nn.Module, call: Arguments, keep: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of the leaves by `backward()`, the only way with reentrant checkpointing.

    () with a warning if it fails. Parameters require no gradient meanwhile, so nothing is added to theirs.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in trainable:
            parameter.requires_grad_(False)
        with _state_restored(model, call), _leaves(model, call) as (differentiable_call, leaves):
            outputs = [x for x in _outputs(model, differentiable_call) if x.requires_grad]
            torch.autograd.backward(outputs, [_cotangent(x, keep) for x in outputs])
        return tuple(leaf.grad for leaf in leaves)
    except RuntimeError as error:
        _warn(f"its backward pass failed: {str(error).partition(chr(10))[0]}")
        return ()
    finally:
        for parameter in trainable:
            parameter.requires_grad_()


def _cotangent(x: Tensor, keep: Tensor) -> Tensor:
    """A different number for each channel, because the plain sum of a normalised row has no gradient."""
    row = x[0, 0]
    pattern = torch.arange(1, row.numel() + 1, device=x.device, dtype=torch.float32).sin().reshape(row.shape).to(x)
    return pattern * keep.to(x).reshape(*keep.shape, *[1] * row.dim())
