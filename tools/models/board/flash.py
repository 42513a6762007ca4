"""Plain PyTorch in place of flash attention: everything up to the kernel is transformers' own.

Whether a model isolates is decided by the arguments of the kernel. flash-attn itself needs a GPU; its replacement here
knows documents as flash-attn does, by `cu_seqlens` in calls of the varlen function.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn

NAME = "flash_attention_2"


def flash_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,  # noqa: ARG001  (named as flash-attn names them)
    max_seqlen_k: int,  # noqa: ARG001
    dropout_p: float = 0.0,  # noqa: ARG001  (evaluation only)
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    s_aux: Tensor | None = None,
) -> Tensor:
    """q, k, v (t, heads, d), of fewer heads in k and v where queries share them. Returns (t, heads, d)."""
    starts, keys = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    documents = []
    for a, b, c, d in zip(starts, starts[1:], keys, keys[1:], strict=False):
        documents.append(_attend(q[a:b], k[c:d], v[c:d], softmax_scale, causal, window_size, softcap, s_aux))
    return torch.cat(documents)


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,  # noqa: ARG001
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    s_aux: Tensor | None = None,
) -> Tensor:
    """`flash_varlen` for rows (b, t, heads, d), each one document."""
    rows = zip(q, k, v, strict=True)
    return torch.stack([_attend(*row, softmax_scale, causal, window_size, softcap, s_aux) for row in rows])


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    causal: bool,
    window: tuple[int, int],
    softcap: float,
    s_aux: Tensor | None,
) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * (scale or 1 / math.sqrt(q.shape[-1]))
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    relative_position = torch.arange(len(k), device=q.device)[None, :] - torch.arange(len(q), device=q.device)[:, None]
    relative_position = relative_position - (len(k) - len(q))
    hidden = (relative_position > 0) if causal else torch.zeros_like(relative_position, dtype=torch.bool)
    hidden = hidden | (relative_position < -window[0]) if window[0] >= 0 else hidden
    hidden = hidden | (relative_position > window[1]) if window[1] >= 0 else hidden
    scores = scores.masked_fill(hidden, -torch.inf)
    if s_aux is not None:
        sink = s_aux[:, None, None].expand(-1, len(q), 1)
        return torch.einsum("hqk,khd->qhd", torch.cat([scores, sink], -1).softmax(-1)[..., :-1], v)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


@contextmanager
def replace_flash_attention(model: nn.Module, dense: Callable[..., Tensor] = flash) -> Iterator[None]:
    """The model runs transformers' path of flash attention, with the functions above as its kernels.

    Raises ValueError where the model does not offer flash attention.
    """
    from transformers import modeling_flash_attention_utils as flash_utils  # noqa: PLC0415  (not a dependency)
    from transformers.integrations import flash_attention as flash_integration  # noqa: PLC0415

    if not getattr(model, "_supports_flash_attn", False):
        raise ValueError(f"{type(model).__name__} does not support flash attention")
    module_configs: list[Any] = [getattr(part, "config", None) for part in model.modules()]
    configs = {id(config): config for config in module_configs if hasattr(config, "_attn_implementation")}
    implementations = {key: config._attn_implementation for key, config in configs.items()}
    lazy_imports, flash_utils._lazy_imports = flash_utils._lazy_imports, partial(_flash_functions, dense)
    # the functions here take fp32: no cast
    get_target_dtype, flash_integration.get_target_dtype = flash_integration.get_target_dtype, lambda *_: None
    flash_utils._loaded_implementation = None
    try:
        for config in configs.values():
            config._attn_implementation = NAME
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = implementations[key]
        flash_utils._lazy_imports, flash_utils._loaded_implementation = lazy_imports, None
        flash_integration.get_target_dtype = get_target_dtype


def reaches_flash_attention(model: nn.Module) -> bool:
    """Whether the model offers flash attention and a call reaches it.

    Some models choose their attention when they are built. They would run another implementation, without its mask.
    """
    if not getattr(model, "_supports_flash_attn", False):
        return False
    calls: list[Any] = []

    @wraps(flash)
    def record_call(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(args)
        return flash(*args, **kwargs)

    with suppress(ValueError), replace_flash_attention(model, record_call), torch.no_grad():
        with suppress(Exception):  # the board reports how it refuses
            model.eval()(torch.arange(4)[None] + 3, use_cache=False)
        return bool(calls)
    return True


def _flash_functions(dense: Callable[..., Tensor], *_: Any, **__: Any) -> tuple[Any, ...]:
    from transformers import modeling_flash_attention_utils as flash_utils  # noqa: PLC0415

    return dense, flash_varlen, None, flash_utils._pad_input, flash_utils._unpad_input
