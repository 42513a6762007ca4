"""Correct forms of every op, in other orders of summation than the reference and with operands rounded as in kernels
that are built on matrix products: what breaks the budget there is a false alarm."""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof import refs
from packproof.base.signatures import SIGNATURES
from packproof.museum import controls
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import OPS
from packproof.refs.drafts import run_on_drafts
from packproof.refs.hadamard import sylvester
from packproof.refs.pools import run_on_pool
from packproof.refs.recurrence import state_space, to_compute_dtype
from packproof.refs.segsum import segsum
from tests.properties import attention_kernels, delta_forms, linear_forms, tiled_attention
from tests.properties.delta_forms import CHUNK, PLAIN, eleven_bits, in_dtype
from tests.properties.linear_bugs import DELTA, LINEAR
from tests.properties.orders_of_summation import ORDERS

Kernel = Callable[..., Any]
Form = tuple[Kernel, Promises]
ROUNDED = Promises()  # in 16 bits: the operands of an op on matrix products
_IN_TRITON = "tiles.correct"


def forms(op: str, dtype: str) -> Mapping[str, Form]:
    """The forms of an op by name; in 16 bits, of one on matrix products, those that round operands too."""
    if OPS[op].pool:
        base, _, kind = op.rpartition("_")
        run = partial(run_on_drafts, signature=SIGNATURES[op]) if kind == "verify" else run_on_pool
        return {name: (partial(run, kernel), promises) for name, (kernel, promises) in forms(base, dtype).items()}
    low: dict[str, Callable[[Tensor], Tensor]] = {
        "bfloat16": partial(in_dtype, torch.bfloat16),
        "float16": eleven_bits,
    }
    round_to = low.get(dtype)
    rounding = {"rounded operands": rounded(op, round_to)} if round_to and OPS[op].matmul else {}
    if round_to and op in (*DELTA, *LINEAR) and OPS[op].has_decays:
        rounding["rounded operands, gradients of sums"] = with_rounded_sums(op, round_to)
    return {**_ORDERS.get(op, dict)(), **_of_museum(op), **rounding}


def _of_museum(op: str) -> dict[str, Form]:
    """The correct kernels of the museum that take all of their op; its rotations have no start positions."""
    here = {n: c for n, c in controls().items() if c.op == op and n != _IN_TRITON}
    loaded = {n: (c.load(), Promises(**c.promises)) for n, c in here.items()}
    loaded = {n: (partial(rotated, k) if op == "rope" else k, promises) for n, (k, promises) in loaded.items()}
    return {n: form for n, form in loaded.items() if takes_all(form[0], op)}


def takes_all(kernel: Kernel, op: str) -> bool:
    parameters = signature(kernel).parameters.values()
    names = {p.name for p in parameters}
    return any(p.kind is p.VAR_KEYWORD for p in parameters) or names >= {*OPS[op].inputs, *OPS[op].options}


def rounded(op: str, round_to: Callable[[Tensor], Tensor]) -> Form:
    """The form whose operands of products are rounded, and so are their gradients."""
    if op in DELTA:
        return delta_forms.form(op, partial(delta_forms.with_inverse, round_to, False)), ROUNDED
    if op in LINEAR:
        return linear_forms.form(op, partial(linear_forms.masked, round_to, False)), ROUNDED
    forms: dict[str, Kernel] = {"ssd": rounded_ssd, "attention": rounded_attention}
    return partial(forms[op], round_to), ROUNDED


def with_rounded_sums(op: str, round_to: Callable[[Tensor], Tensor]) -> Form:
    """The form whose gates get their gradients from those of running sums, with rounded operands."""
    promises = Promises("sequence", CHUNK, "operand", cumsum=True)
    if op in DELTA:
        sums = partial(delta_forms.gradients_of_sums, round_to, ORDERS["tree"])
        return delta_forms.form(op, delta_forms.limited(sums)), promises
    return linear_forms.form(
        op, linear_forms.limited(partial(linear_forms.gradients_of_sums, round_to, ORDERS["tree"]))
    ), promises


def rounded_ssd(
    r: Callable[[Tensor], Tensor],
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    *,
    dt_softplus: bool = False,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Any:
    """Chunks as masked attention. r: rounds what enters a product."""

    def chunks(h: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        ys = [x[:0]]
        for x_c, dt_c, B_c, C_c in zip(*(torch.split(token, CHUNK) for token in (x, dt, B, C)), strict=True):
            L = segsum(torch.cat([torch.zeros_like(A)[None], dt_c * A]).mT).exp()  # [h, n + 1, n + 1]; row 0 is h
            scores = r(torch.einsum("ihn, jhn -> hij", C_c, B_c) * L[:, 1:, 1:] * dt_c.mT[:, None])
            from_h = torch.einsum("hi, ihn, hpn -> ihp", L[:, 1:, 0], C_c, r(h))
            ys.append(torch.einsum("hij, jhp -> ihp", scores, x_c) + from_h)
            written = r(x_c * (L[:, -1, 1:].mT * dt_c)[..., None])
            h = L[:, -1, 0, None, None] * h + torch.einsum("jhp, jhn -> hpn", written, B_c)
        return torch.cat(ys), h

    D = D[:, None] if D is not None and D.ndim == 1 else D
    D, dt_bias = (None if p is None else p.float() for p in (D, dt_bias))  # their gradients are rounded to theirs once
    tensors = (x, dt, A.float(), B, C, D, z, dt_bias, initial_states)
    shape = (*x.shape[1:], B.shape[2])
    found = state_space(chunks, *tensors, shape, softplus=dt_softplus, cu_seqlens=cu_seqlens)
    return found if return_final_states else found[0]


def rounded_attention(
    r: Callable[[Tensor], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
) -> Any:
    """Each sequence by one softmax, whose weights are rounded before they meet the values. r: rounds them."""
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    keys = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    of_heads = None if sinks is None else sinks.float()[:, None]
    ys, lses = [q.new_zeros(0, q.shape[1], v.shape[2])], [torch.zeros(0, q.shape[1])]
    for rows, cols in zip(pairwise(cu_seqlens.tolist()), pairwise(keys.tolist()), strict=True):
        k_, v_ = (x[slice(*cols)].float().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        s = torch.einsum("ihk, jhk -> hij", q[slice(*rows)].float(), k_) * scale
        s = softcap * torch.tanh(s / softcap) if softcap else s
        ahead = torch.arange(len(k_)) - torch.arange(s.shape[1])[:, None] - len(k_) + s.shape[1]
        left, right = (len(q) + len(k) if reach < 0 else reach for reach in window_size)
        seen = (ahead >= -left) & (ahead <= (0 if causal else right))
        some = seen.any(-1)  # else a softmax and its derivatives are NaN
        s = torch.where(seen | ~some[:, None], s, -torch.inf)
        lse = torch.where(some, s.logsumexp(-1), -torch.inf) if len(k_) else s.new_full(s.shape[:2], -torch.inf)
        lse = lse if of_heads is None else torch.logaddexp(lse, of_heads)
        shown = torch.where(lse.isfinite(), lse, 0)
        P = torch.where(seen, s - shown[..., None], -torch.inf).exp()
        ys.append(torch.einsum("hij, jhv -> ihv", r(P), v_).to(q.dtype))
        lses.append(lse.mT)
    slack = len(q) - int(cu_seqlens[-1])
    y, lse = (torch.cat([*x, x[0].new_zeros(slack, *x[0].shape[1:])]) for x in (ys, lses))
    return (y, lse) if return_lse else y


def rotated(
    form: Kernel,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    cu_seqlens: Tensor,
    offsets: Tensor | None = None,
    interleaved: bool = False,
) -> Tensor:
    """Rope by a form without start positions: tables of one row for each token, all of them one sequence."""
    used = int(cu_seqlens[-1])
    row = torch.arange(used)
    sequence = torch.searchsorted(cu_seqlens[1:].long().contiguous(), row, right=True)
    place = row - cu_seqlens.long()[sequence] + (0 if offsets is None else offsets.long()[sequence])
    tables = (
        torch.where(place[:, None] < 0, padding, table[place.clamp(min=0)]) for table, padding in ((cos, 1), (sin, 0))
    )
    y: Tensor = form(x, *tables, cu_seqlens=torch.tensor([0, used]), interleaved=interleaved)
    return y


def _rotations() -> dict[str, Kernel]:
    return {name: kernel for name, (kernel, _) in _of_museum("rope").items()}


def queries_and_keys(rope: Kernel, q: Tensor, k: Tensor, *tables: Tensor, **call: Any) -> tuple[Tensor, Tensor]:
    return rope(q, *tables, **call), rope(k, *tables, **call)


def butterflies(x: Tensor) -> Tensor:
    """x H along the last axis in log2(k) sums and differences, as fast transforms have it."""
    half = x.shape[-1] // 2
    if not half:
        return x
    a, b = x[..., :half], x[..., half:]
    return torch.cat([butterflies(a + b), butterflies(a - b)], -1)


def in_two_products(x: Tensor) -> Tensor:
    """The same as two products with small matrices, as kernels on matrix units have it."""
    k = x.shape[-1]
    small = 1 << (k.bit_length() - 1) // 2
    first, second = sylvester(k // small).to(x), sylvester(small).to(x)
    return torch.einsum("...ab, ac, bd -> ...cd", x.unflatten(-1, (k // small, small)), first, second).flatten(-2)


def one_by_one(x: Tensor) -> Tensor:
    """The same, one channel added after another."""
    H, y = sylvester(x.shape[-1]).to(x), torch.zeros_like(x)
    for channel in range(x.shape[-1]):
        y = y + x[..., channel, None] * H[channel]
    return y


_TRANSFORMS = {"butterflies": butterflies, "two products": in_two_products, "one by one": one_by_one}


def transformed(transform: Kernel, x: Tensor, signs: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    real = (torch.arange(len(x)) < cu_seqlens[-1])[:, None, None]
    wide = torch.where(real, to_compute_dtype(x), 0)
    y: Tensor = transform(wide if signs is None else wide * signs.to(wide.dtype)) * x.shape[-1] ** -0.5
    return y.to(x.dtype)


def rotated_and_transformed(
    rope: Kernel,
    transform: Kernel,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    signs: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    **call: Any,
) -> Tensor:
    turned = rope(to_compute_dtype(x), to_compute_dtype(cos), to_compute_dtype(sin), cu_seqlens=cu_seqlens, **call)
    return transformed(transform, turned, signs, cu_seqlens=cu_seqlens).to(x.dtype)


def rounded_by_spacing(x: Tensor, *, cu_seqlens: Tensor, block: int) -> Tensor:
    """What e4m3 holds of each block: multiples of an eighth of the power of two below, of 2^-9 at least."""
    y = torch.zeros_like(x)
    for start, end in pairwise(cu_seqlens.tolist()):
        for first in range(start, end, block):
            rows = slice(first, min(first + block, end))
            part = x[rows].double()
            exponent = (part.abs().amax((0, 2), keepdim=True) / 448).log2().ceil().clamp(min=-126)
            scale = torch.where(exponent.isfinite() & (part.abs().amax((0, 2), keepdim=True) > 0), 2.0**exponent, 1.0)
            spacing = 2.0 ** ((part / scale).abs().log2().floor().clamp(min=-6) - 3)
            y[rows] = ((part / scale / spacing).round() * spacing * scale).to(x.dtype)
    return y


def _plain(kernels: Mapping[str, Kernel]) -> dict[str, Form]:
    return {name: (kernel, PLAIN) for name, kernel in kernels.items()}


def _attention() -> dict[str, Form]:
    return {
        "a backward pass of its own": (attention_kernels.planted(""), attention_kernels.PROMISES),
        "tiles": (tiled_attention.planted(""), tiled_attention.PROMISES),
        "tiles of 8": (partial(tiled_attention.attention, size=8), tiled_attention.PROMISES),
    }


def _ssd() -> dict[str, Form]:
    chunks = {f"chunks of {chunk}": partial(refs.ssd_chunked, chunk=chunk) for chunk in (7, 64)}
    return _plain({**chunks, "quadratic": refs.ssd_quadratic})


def _rope_hadamard() -> dict[str, Form]:
    pairs = zip(_rotations().items(), (*_TRANSFORMS.items(), ("butterflies", butterflies)), strict=False)
    return _plain({f"{a}, {b}": partial(rotated_and_transformed, rope, by) for (a, rope), (b, by) in pairs})


_ORDERS: Mapping[str, Callable[[], Mapping[str, Form]]] = {
    **{op: partial(linear_forms.forms, op) for op in LINEAR},
    **{op: partial(delta_forms.forms, op) for op in DELTA},
    "ssd": _ssd,
    "attention": _attention,
    "rope_qk": lambda: _plain({name: partial(queries_and_keys, rope) for name, rope in _rotations().items()}),
    "hadamard": lambda: _plain({name: partial(transformed, by) for name, by in _TRANSFORMS.items()}),
    "rope_hadamard": _rope_hadamard,
    "round_fp8": lambda: _plain({"reference": refs.round_fp8, "by spacing": rounded_by_spacing}),
}
