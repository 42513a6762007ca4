"""Bugs of the linear family and the delta rule, planted one at a time in one correct kernel.

Each comes with the smallest layout that shows it and, where there is one, a smaller layout at which it cannot.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from packproof.base.signatures import SIGNATURES
from packproof.refs import segsum

CHUNK = 16
LINEAR = ("linear_attention", "simple_gla", "retention")
DELTA = ("delta_rule", "gated_delta_rule", "kda")
GATED = ("simple_gla", "retention", "gated_delta_rule", "kda")
GROUPED = ("linear_attention", "simple_gla", "retention", "delta_rule", "gated_delta_rule")

Lengths = tuple[int, ...]


@dataclass(frozen=True)
class Bug:
    """ops: those that can have it. shown, hidden: layouts. rich: only with options and states."""

    name: str
    ops: tuple[str, ...]
    shown: Lengths
    hidden: Lengths | None = None
    rich: bool = False


BUGS = (
    Bug("the gate is a power of two", GATED, (2,), (1,)),
    Bug("the state decays after the write", GATED, (2,), None),
    Bug("the output has no gradient through its decay", GATED, (2,), (1,)),
    Bug("one gate for all channels", ("kda",), (2,), (1,)),
    Bug("no bias in the gate", ("gated_delta_rule", "kda"), (2,), rich=True),
    Bug("beta on the value alone", DELTA, (2,), (1,)),
    Bug("beta on the memory alone", DELTA, (1,)),
    Bug("the inverse ends after its second power", DELTA, (4,), (3,)),
    Bug("the memory is read before it decays", ("gated_delta_rule", "kda"), (2,), (1,)),
    Bug("beta has no gradient through the memory", DELTA, (2,), (1,)),
    Bug("no norm for keys", DELTA, (1,), rich=True),
    Bug("the output is read before the write", (*LINEAR, *DELTA), (1,)),
    Bug("value heads alternate between key heads", GROUPED, (1,)),
    Bug("the state goes on into the next sequence", (*LINEAR, *DELTA), (1, 1), (2,)),
    Bug("the state is reset at chunks alone", (*LINEAR, *DELTA), (1, 1), (CHUNK, 1)),
    Bug("the final state is a neighbour's", (*LINEAR, *DELTA), (1, 1), (1,)),
    Bug("an empty sequence has no final state", (*LINEAR, *DELTA), (0, 1), (1, 1)),
    Bug("history ends after two chunks", (*LINEAR, *DELTA), (2 * CHUNK + 1,), (2 * CHUNK,)),
    Bug("the final state lacks a partial chunk", (*LINEAR, *DELTA), (1,), (CHUNK,)),
    Bug("the scale is on the state", (*LINEAR, *DELTA), (1,), rich=True),
)


def planted() -> Iterator[tuple[str, Bug]]:
    return ((op, bug) for bug in BUGS for op in bug.ops)


def kernel(op: str, bug: str = "") -> Callable[..., Any]:
    """The op, with a bug if there is one."""
    return partial(_packed, op, bug)


def _packed(op: str, bug: str, *, cu_seqlens: Tensor, scale: float | None = None, **given: Any) -> Any:
    inputs: dict[str, Any] = {name: given.get(name) for name in SIGNATURES[op].inputs}
    v, states = inputs["v"], inputs["initial_states"]
    wide = torch.promote_types(v.dtype, torch.float32)
    q, k, gate, beta = _read({n: x if x is None else x.to(wide) for n, x in inputs.items()}, given, bug)
    heads = torch.arange(v.shape[1])
    own = (
        heads % k.shape[1] if bug == "value heads alternate between key heads" else heads // (v.shape[1] // k.shape[1])
    )
    q, k, factor = q[:, own], k[:, own], k.shape[2] ** -0.5 if scale is None else scale
    shape = (v.shape[1], k.shape[2], v.shape[2])
    S, ys, finals = v.new_zeros(shape, dtype=wide), [v[:0].to(wide)], []
    for j, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
        goes_on = bug == "the state goes on into the next sequence" or (
            bug == "the state is reset at chunks alone" and start % CHUNK
        )
        entering = torch.zeros_like(S) if states is None else states[j].to(wide)
        S = S if goes_on and j else entering * (factor if bug == "the scale is on the state" else 1)
        before = S
        for first in range(start, end, CHUNK):
            rows = slice(first, min(first + CHUNK, end))
            S = torch.zeros_like(S) if bug == "history ends after two chunks" and first - start == 2 * CHUNK else S
            before = S
            y, S = _chunk(bug, S, v[rows].to(wide), q[rows], k[rows], gate[rows], None if beta is None else beta[rows])
            ys.append(factor * y)
        lost = bug == "the final state lacks a partial chunk" and (end - start) % CHUNK
        finals.append(before if lost else S)
    y = torch.cat([*ys, v.new_zeros(len(v) - int(cu_seqlens[-1]), *v.shape[1:], dtype=wide)]).to(v.dtype)
    finals = _misplaced(bug, finals, cu_seqlens.diff().tolist())
    joined = torch.stack(finals) if finals else v.new_zeros(0, *shape, dtype=wide)
    return (y, joined) if given.get("return_final_states") else y


def _read(inputs: dict[str, Any], given: dict[str, Any], bug: str) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    named: list[Any] = [inputs.get(name) for name in ("q", "k", "v", "g", "beta")]
    q, k, v, g, beta = named
    if given.get("qk_l2norm"):
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
        k = inputs["k"] if bug == "no norm for keys" else k
    beta = beta.sigmoid() if beta is not None and given.get("beta_sigmoid") else beta
    g = inputs["decay"].expand(len(v), -1) if "decay" in inputs else v.new_zeros(v.shape[:2]) if g is None else g
    if inputs.get("dt_bias") is not None and bug != "no bias in the gate":
        g = g + inputs["dt_bias"]
    if inputs.get("A_log") is not None:
        rate = inputs["A_log"].exp()
        g = -(rate if g.ndim == 2 else rate[:, None]) * softplus(g, threshold=40)
    g = g[..., None] if g.ndim == 2 else g
    g = g.mean(-1, keepdim=True) if bug == "one gate for all channels" else g
    g = g * 0.6931471805599453 if bug == "the gate is a power of two" else g
    return q, k, g, beta


def _chunk(
    bug: str, S: Tensor, v: Tensor, q: Tensor, k: Tensor, g: Tensor, beta: Tensor | None
) -> tuple[Tensor, Tensor]:
    if bug == "the inverse ends after its second power":
        assert beta is not None
        return _truncated(S, v, q, k, g, beta)
    ys = []
    for t in range(len(v)):
        decay, held, u = g[t].exp()[..., None], S, v[t]
        S = S if bug == "the state decays after the write" else decay * S
        if beta is not None:
            u = _written(
                bug, _of(held if bug == "the memory is read before it decays" else S, k[t]), u, beta[t][:, None]
            )
        before, S = S, S + k[t][..., None] * u[:, None]
        S = decay * S if bug == "the state decays after the write" else S
        seen = before if bug == "the output is read before the write" else S
        if bug == "the output has no gradient through its decay":
            seen = S - (decay - decay.detach()) * held
        ys.append(_of(seen, q[t]))
    return torch.stack(ys), S


def _of(S: Tensor, q: Tensor) -> Tensor:
    return (S * q[..., None]).sum(1)


def _written(bug: str, memory: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    if bug == "beta on the value alone":
        return beta * v - memory
    if bug == "beta on the memory alone":
        return v - beta * memory
    if bug == "beta has no gradient through the memory":
        return beta * v - beta.detach() * memory
    return beta * (v - memory)


def _truncated(S: Tensor, v: Tensor, q: Tensor, k: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """A chunk by the WY form, with (I + A)⁻¹ = I - A + A²."""
    L = segsum(pad(g.permute(1, 2, 0), (1, 0))).exp()
    from_S, within, to_end = L[:, :, 1:, 0], L[:, :, 1:, 1:], L[:, :, -1]
    A = beta.mT[..., None] * torch.einsum("ihc, hcij, jhc -> hij", k, within, k).tril(-1)
    right = (beta[..., None] * (v - torch.einsum("ihc, hci, hcp -> ihp", k, from_S, S))).transpose(0, 1)
    u = (right - A @ right + A @ (A @ right)).transpose(0, 1)
    scores = torch.einsum("ihc, hcij, jhc -> hij", q, within, k)
    y = torch.einsum("hij, jhp -> ihp", scores, u) + torch.einsum("ihc, hci, hcp -> ihp", q, from_S, S)
    return y, to_end[..., :1] * S + torch.einsum("hcj, jhc, jhp -> hcp", to_end[..., 1:], k, u)


def _misplaced(bug: str, finals: list[Tensor], lengths: list[int]) -> list[Tensor]:
    if bug == "the final state is a neighbour's":
        return finals[1:] + finals[:1]
    if bug == "an empty sequence has no final state":
        kept = [S for S, n in zip(finals, lengths, strict=True) if n]
        return kept + [torch.zeros_like(S) for S in finals[len(kept) :]]
    return finals
