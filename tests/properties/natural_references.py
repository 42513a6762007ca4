"""Bodies of references as users write them: of a sequence's rows (n, 4) and a matrix (4, 4), in torch's operators."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

import packproof
from packproof.refs import join_sequences, split_sequences

Body = Callable[[Tensor, Tensor], Tensor]


def _row_by_row(body: Callable[[Tensor, Tensor], Tensor]) -> Body:
    return lambda x, w: torch.stack([body(row, w) for row in x]) if len(x) else x


def _where_rows(body: Body) -> Body:
    """What torch has no answer for without rows."""
    return lambda x, w: body(x, w) if len(x) else x


def _attended(x: Tensor, *heads: int, **options: object) -> Tensor:
    q = x.expand(*heads, *x.shape)
    return functional.scaled_dot_product_attention(q, q, q, **options).mean(tuple(range(len(heads))))  # type: ignore[arg-type]


def _in_place(x: Tensor, w: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for i in range(len(x)):
        y[i] = x[i] + (y[i - 1] * 0.5 if i else 0)
    return y


def _recurrence(x: Tensor, w: Tensor) -> Tensor:
    h, states = x.new_zeros(x.shape[1]), []
    for row in x:
        h = torch.tanh(w @ h + row)
        states.append(h)
    return torch.stack(states) if states else x


def _associative_scan(x: Tensor, w: Tensor) -> Tensor:
    decay, y, step = x.sigmoid(), x, 1
    while step < len(x):
        y = torch.cat([y[:step], y[step:] + decay[step:] * y[:-step]])
        decay = torch.cat([decay[:step], decay[step:] * decay[:-step]])
        step *= 2
    return y


def _conv1d(x: Tensor, w: Tensor) -> Tensor:
    taps = w[:, None, :1].repeat(1, 1, 4)
    return functional.conv1d(functional.pad(x.mT[None], (3, 0)), taps, groups=x.shape[1])[0].mT


def _lower(x: Tensor) -> Tensor:
    return torch.ones(len(x), len(x), dtype=torch.bool).tril()


BODIES: dict[str, Body] = {
    "vector @ matrix": _row_by_row(lambda row, w: row @ w),
    "matrix @ vector": _row_by_row(lambda row, w: w @ row),
    "dot": _row_by_row(lambda row, w: row * row.dot(row)),
    "outer": _row_by_row(lambda row, w: torch.outer(row, row).sum(0)),
    "addmv": _row_by_row(lambda row, w: torch.addmv(row, w, row)),
    "linear": functional.linear,
    "addmm": lambda x, w: torch.addmm(x, x, w),
    "bmm": lambda x, w: torch.bmm(x[:, None], w.expand(len(x), 4, 4))[:, 0],
    "einsum": lambda x, w: torch.einsum("td,de,te->t", x, w, x)[:, None] * x,
    "masked product": lambda x, w: (x @ x.mT).tril() @ x,
    "masked softmax": lambda x, w: (x @ x.mT).masked_fill(~_lower(x), -torch.inf).softmax(-1) @ x,
    "attention": lambda x, w: _attended(x, 1, is_causal=True),
    "attention of heads": lambda x, w: _attended(x, 1, 2, is_causal=True),
    "attention with a mask": lambda x, w: _attended(x, 1, 2, attn_mask=_lower(x)),
    "cumsum": lambda x, w: x.cumsum(0),
    "cumprod": lambda x, w: x.cumprod(0),
    "cumprod of a row": lambda x, w: x.cumprod(-1),
    "prod": lambda x, w: x.prod(0, keepdim=True) * x,
    "prod of all": lambda x, w: x.prod() * x,
    "logcumsumexp": lambda x, w: x.logcumsumexp(0),
    "cummax": _where_rows(lambda x, w: x.cummax(0).values),
    "sum from the end": lambda x, w: x.flip(0).cumsum(0).flip(0),
    "softmax": lambda x, w: x.softmax(0),
    "log_softmax": lambda x, w: x.log_softmax(-1),
    "logsumexp": lambda x, w: x - x.logsumexp(-1, keepdim=True),
    "layer_norm": lambda x, w: functional.layer_norm(x, x.shape[1:]),
    "rms_norm": lambda x, w: functional.rms_norm(x, x.shape[1:], eps=1e-6),
    "normalize": lambda x, w: functional.normalize(x, dim=-1),
    "mean": _where_rows(lambda x, w: x - x.mean(0, keepdim=True)),
    "var": _where_rows(lambda x, w: x - x.var(-1, keepdim=True)),
    "amax": lambda x, w: x - x.amax(-1, keepdim=True),
    "median": lambda x, w: x - x.median(-1, keepdim=True).values,
    "sort": lambda x, w: x.sort(0).values,
    "sort by keywords": lambda x, w: x.sort(descending=True, stable=True).values,
    "topk": lambda x, w: x.topk(2).values.sum(-1, keepdim=True) * x,
    "topk along an axis": lambda x, w: x.topk(1, 1).values * x,
    "topk by keywords": lambda x, w: x.topk(k=2, dim=1, largest=False).values.sum(-1, keepdim=True) * x,
    "topk of three axes": lambda x, w: (x[:, :, None] * x[:, None]).topk(1).values[..., 0],
    "router": lambda x, w: torch.zeros_like(x).scatter(1, x.topk(2).indices, x.softmax(-1).topk(2).values),
    "silu": lambda x, w: functional.silu(x),
    "gelu": lambda x, w: functional.gelu(x),
    "softplus": lambda x, w: functional.softplus(x),
    "logsigmoid": lambda x, w: functional.logsigmoid(x),
    "mish": lambda x, w: functional.mish(x),
    "glu": lambda x, w: functional.glu(x).repeat(1, 2),
    "clamp": lambda x, w: x.clamp(-1, 1),
    "erf": lambda x, w: torch.erf(x),
    "abs ** 1.5": lambda x, w: x.abs().pow(1.5),
    "2 ** x": lambda x, w: 2.0**x,
    "x ** y": lambda x, w: (x.abs() + 1) ** x,
    "atan2": lambda x, w: torch.atan2(x, x.flip(1)),
    "rounded": lambda x, w: x - x.round(),
    "remainder": lambda x, w: x % 2.0,
    "conv1d": _where_rows(_conv1d),
    "unfold": _where_rows(lambda x, w: functional.pad(x, (0, 0, 3, 0)).unfold(0, 4, 1).mean(-1)),
    "roll": lambda x, w: x + x.roll(1, 0),
    "index_add": lambda x, w: torch.zeros_like(x).index_add(0, torch.arange(len(x)).flip(0), x),
    "scatter_reduce": lambda x, w: torch.zeros_like(x).scatter_reduce(1, x.argsort(1), x, "amax"),
    "embedding": lambda x, w: functional.embedding(x.argmax(-1), w) + x,
    "cross_entropy": lambda x, w: functional.cross_entropy(x, x.argmin(-1), reduction="none")[:, None] * x,
    "squeeze_": lambda x, w: (x * 1)[:, None].squeeze_(1),
    "in place": _in_place,
    "recurrence": _recurrence,
    "associative scan": _associative_scan,
    "vmap": _where_rows(lambda x, w: torch.vmap(lambda row: row * row.sum())(x)),
}


def op_of(name: str) -> packproof.Op:
    """An op of this body, whose kernel in any dtype is the reference itself."""
    body = BODIES[name]

    def reference(x: Tensor, w: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        return join_sequences([body(rows, w) for rows in split_sequences(x, cu_seqlens)], x)

    inputs = {"x": "t d", "w": "d d"}
    return packproof.Op(name, reference, inputs, {"y": "t d"}, sizes=({"d": 4},), draws={"w": "unit"}, causal=False)
