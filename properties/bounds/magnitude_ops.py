"""The magnitude ops: B of the error budget, for values and gradients.

A magnitude op has the signature of its reference and takes the same signed float64 inputs. Its value is the sum of the
absolute terms of each output. Its vjp, for absolute incoming gradients, is the sum of the absolute terms of each
gradient. Both are first-order bounds of the rounding error, up to the constants of the budget. A linear term enters by
its magnitude. The argument of a function f keeps its value, and its slope becomes a bound of |f'|:

    decay    exp(Δ A), slopes |A| and |Δ| times the decay; see `_states`
    step     softplus(delta + bias), slope sigmoid: positive as it is
    silu     |silu(z)|, slope s(z) = σ (1 + |z| (1 - σ)) >= |silu'(z)|
             of a sum with absolute terms B: |silu(sum)| + s(sum) B, slope s(sum) + c(sum) B in B,
             with c(z) = σ (1 - σ) (2 + |z| |1 - 2σ|) >= |silu''(z)|

Exponentials (decays, σ, weights) are raised by 2^-100: times the roundoff, this is their underflow in fp32. The
magnitude op of attention is in `magnitude_of_attention`.
"""

# mypy: allow-untyped-calls

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, overload

import torch
from einops import einsum
from torch import Tensor
from torch.nn.functional import pad

from packproof import refs
from packproof.base.errors import ArgumentError
from packproof.properties.bounds.running_sums import prefix_sums, sequence_start_values
from packproof.properties.bounds.with_derivative import with_derivative
from packproof.properties.declarations.promises import Promises
from packproof.refs.groups.formats import (
    E4M3,
    FORMATS,
    Element,
    block_scales,
    divided_by_scales,
    round_to_element,
    spacing,
)
from packproof.refs.groups.quantize import groups_of_blocks
from packproof.refs.low_precision import BLOCK
from packproof.refs.recurrence import (
    expand_groups,
    join_sequences,
    over_time,
    split_sequences,
    time_step,
)
from packproof.refs.scan import run_scan
from packproof.refs.ssd import run_ssd

MagnitudeOp = Callable[..., Any]

UNDERFLOW = 2.0**-100
MAX_EXPONENT = 746.0  # exp(-746) is 0 in float64 too: the rounding of a smaller exponent adds no error
_CHUNK = 64  # tokens
_TIE = 2.0**-20  # relative: 16 units of fp32


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    cu_seqlens: Tensor,
) -> Any:
    """Magnitude op of `refs.causal_conv1d`."""

    run = partial(refs.causal_conv1d, cu_seqlens=cu_seqlens, return_final_states=True)
    y, final_states = run(magnitude(x), magnitude(weight), magnitude(bias), initial_states=magnitude(initial_states))
    if activation:
        with torch.no_grad():
            pre_activation, _ = run(x, weight, bias, initial_states=initial_states)
        slope, curvature = _silu_slope(pre_activation), _silu_curvature(pre_activation)
        y = with_derivative(_silu(pre_activation) + slope * y, (slope + curvature * y.detach()) * y)
    return (y, final_states) if return_final_states else y


def rope(x: Tensor, cos: Tensor, sin: Tensor, **positions: Any) -> Tensor:
    """Magnitude op of `refs.rope`: |x1 cos| + |x2 sin| for both channels of a pair. positions: its other arguments."""

    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return refs.rope(x, cos, sin, **positions)

    subtraction_mask = (
        rotate(torch.ones_like(x), torch.zeros_like(cos), torch.ones_like(sin)) < 0
    )  # where the rotation subtracts
    x, cos, sin = magnitude(x), magnitude(cos), magnitude(sin)
    return torch.where(subtraction_mask, rotate(x, cos, -sin), rotate(x, cos, sin))


def rope_qk(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **positions: Any) -> tuple[Tensor, Tensor]:
    """Magnitude op of `refs.rope_qk`."""
    return rope(q, cos, sin, **positions), rope(k, cos, sin, **positions)


def grouped_mm(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    """Magnitude op of `refs.grouped_mm`: the product is linear in each input."""
    return refs.grouped_mm(
        magnitude(x), magnitude(weight), None if bias is None else magnitude(bias), cu_seqlens=cu_seqlens
    )


def scaled_grouped_mm(
    x: Tensor, x_scales: Tensor, weight: Tensor, weight_scales: Tensor, alpha: Tensor | None = None, **options: Any
) -> Tensor:
    """Magnitude op of `refs.scaled_grouped_mm`: linear in each input. Products of 8-bit numbers are exact in fp32."""
    return refs.scaled_grouped_mm(magnitude(x), x_scales, magnitude(weight), weight_scales, alpha, **options)


def dispatch_combine(
    x: Tensor,
    logits: Tensor,
    gain: Tensor,
    *,
    cu_seqlens: Tensor,
    top: int = 2,
    normalize: bool = False,
    capacity: int | None = None,
) -> Tensor:
    """Magnitude op of `refs.dispatch_combine`.

    A softmax p has the slopes p_i (|dp_i| + Σ p_j |dp_j|), and weights w of the sum S their own, 1 / S (|dw_i| +
    Σ w_j |dw_j|): where the differences are 0, a kernel may still have their roundings.
    """
    n, rows, terms = int(cu_seqlens[-1]), magnitude(x), magnitude(logits)[: int(cu_seqlens[-1])]
    p = logits[:n].detach().softmax(-1)
    experts = p.topk(top, -1).indices
    weights = with_derivative(p, p * (terms + (p * terms).sum(-1, keepdim=True))).gather(-1, experts)
    if normalize:
        total = weights.detach().sum(-1, keepdim=True)
        w = weights.detach() / total
        weights = with_derivative(w, (weights + w * weights.sum(-1, keepdim=True)) / total)
    sent, pairs, offsets = refs.moe_permute(
        rows[:n], experts, n_experts=len(gain), cu_seqlens=cu_seqlens, capacity=capacity
    )
    expert_of_row = torch.arange(len(gain)).repeat_interleave(offsets.diff())
    y: Tensor = refs.moe_unpermute(sent * magnitude(gain)[expert_of_row], pairs, weights)
    return torch.cat([y, rows.new_zeros(len(x) - n, x.shape[1])])


def hadamard(x: Tensor, signs: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    """Magnitude op of `refs.hadamard`: with |H| = 1 everywhere, the sum of the absolute channels over √k."""
    terms = magnitude(x) if signs is None else magnitude(x) * magnitude(signs)
    pieces = split_sequences(terms, cu_seqlens)
    return join_sequences([piece.sum(-1, keepdim=True).expand_as(piece) / x.shape[-1] ** 0.5 for piece in pieces], x)


def rope_hadamard(
    x: Tensor, cos: Tensor, sin: Tensor, signs: Tensor | None = None, *, cu_seqlens: Tensor, **positions: Any
) -> Tensor:
    """Magnitude op of `refs.rope_hadamard`."""
    return hadamard(rope(x, cos, sin, cu_seqlens=cu_seqlens, **positions), signs, cu_seqlens=cu_seqlens)


def round_fp8(x: Tensor, *, cu_seqlens: Tensor, block: int = BLOCK) -> Tensor:
    """Magnitude op of `refs.round_fp8`. Its only term is the rounded value itself."""
    return refs.round_fp8(x, cu_seqlens=cu_seqlens, block=block).abs()


def quantize_blocks(
    x: Tensor, *, cu_seqlens: Tensor, block_format: str = "mxfp8", along: str = "rows"
) -> tuple[Tensor, Tensor]:
    """Magnitude op of `refs.quantize_blocks`: its terms are its results, infinite beside a tie.

    Dividing by a power of two rounds nothing. Any other quotient of a kernel is off by a few units of fp32. Where it
    lies so close to the middle of two numbers, it may become either of them. The same holds for an e4m3 scale, on which
    all elements of its block depend. That concerns fewer than one element in 10,000, and there any result is allowed.
    """
    form, values, scales = FORMATS[block_format], [], []
    for group, maxima, g in groups_of_blocks(x.detach(), cu_seqlens, form, along):
        scale = block_scales(maxima, form, g) * g
        quotients = divided_by_scales(group, scale)
        scale_ties = torch.zeros_like(group, dtype=torch.bool)
        if form.scale == "e4m3":
            scale_ties = _is_near_tie(maxima / form.element.largest / g, E4M3)
        ties = scale_ties if form.has_exact_quotients else scale_ties | _is_near_tie(quotients, form.element)
        values.append(round_to_element(quotients, form.element).abs().masked_fill(ties, torch.inf))
        scales.append(scale.masked_fill(scale_ties, torch.inf))
    return join_sequences(values, x), join_sequences(scales, x)


def _is_near_tie(quotients: Tensor, element: Element) -> Tensor:
    """Whether a quotient lies within `_TIE` of the middle of two numbers."""
    step = spacing(quotients, element)
    middle = ((quotients / step).floor() + 0.5) * step
    return (quotients - middle).abs() <= _TIE * quotients.abs()


def selective_scan(**arguments: Any) -> Any:
    """Magnitude op of `refs.selective_scan`."""

    def recurrence(h: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        states, h = _states(h, delta[..., None], A, (magnitude(delta) * u)[..., None] * B)
        return (states * C).sum(-1), h

    return run_scan(recurrence, **_with_magnitudes(arguments, "u", "B", "C", "D", "initial_states"), gate=_gate)


def ssd(**arguments: Any) -> Any:
    """Magnitude op of `refs.ssd`."""

    def recurrence(h: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        return chunked_ssd(h, magnitude(dt)[..., None] * x, *_decay(dt, A), B, C)

    return run_ssd(recurrence, **_with_magnitudes(arguments, "x", "B", "C", "D", "initial_states"), gate=_gate)


def _with_magnitudes(arguments: Mapping[str, Any], *linear_inputs: str) -> dict[str, Any]:
    """The arguments of an op, the inputs of its linear terms by their magnitudes."""
    return {**arguments, **{name: magnitude(arguments.get(name)) for name in linear_inputs}}


def selective_scan_cumsum(promises: Promises) -> MagnitudeOp:
    """Make the magnitude op of a scan with decays formed as differences of cumulative sums of Δ A in chunks: B + B_E.

    E is the sum of |log-decay| from the start of the chunk to the token: the error of one cumulative sum, in units of
    roundoff (`running_sums`). B_E is the magnitude op with each input scaled by its E, plus the magnitude op with each
    output scaled by its E. E stays in the graph, so the gradient of a log-decay has all terms of its chunk. A kernel
    has the same terms when it sums the gradients of its cumulative sums.
    """

    def magnitude_op(
        *, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, delta_bias: Tensor | None = None, cu_seqlens: Tensor,
        delta_softplus: bool = False, initial_states: Tensor | None = None, **others: Any,
    ) -> Any:  # fmt: skip
        step_options = {"delta": delta, "A": A, "delta_bias": delta_bias, "delta_softplus": delta_softplus}
        run = partial(selective_scan, **step_options, cu_seqlens=cu_seqlens, **others)
        steps = [time_step(piece, delta_bias, delta_softplus) for piece in split_sequences(delta, cu_seqlens)]
        exponents = [clamped_exponent(magnitude(step)[..., None] * magnitude(A)) for step in steps]
        E = prefix_sums(exponents, promises, delta[..., None] * A)
        B, C = (expand_groups(magnitude(x), delta.shape[1]) for x in (B, C))
        states = (
            None if initial_states is None else magnitude(initial_states) * (1 + sequence_start_values(E, cu_seqlens))
        )
        return add_results(
            run(B=B * (1 + E), C=C.expand_as(E), initial_states=states),
            run(B=B.expand_as(E), C=C * (1 + E), initial_states=initial_states),
        )

    return magnitude_op


def ssd_cumsum(promises: Promises) -> MagnitudeOp:
    """Make the magnitude op of an SSD with decays formed as differences of cumulative sums of dt A in chunks: B + B_E.

    As `selective_scan_cumsum`, with one log-decay per head.
    """

    def magnitude_op(
        *, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, dt_bias: Tensor | None = None, cu_seqlens: Tensor,
        dt_softplus: bool = False, initial_states: Tensor | None = None, **others: Any,
    ) -> Any:  # fmt: skip
        step_options = {"dt": dt, "A": A, "dt_bias": dt_bias, "dt_softplus": dt_softplus}
        run = partial(ssd, **step_options, cu_seqlens=cu_seqlens, **others)
        steps = [time_step(piece, dt_bias, dt_softplus) for piece in split_sequences(dt, cu_seqlens)]
        E = prefix_sums([clamped_exponent(magnitude(step) * magnitude(A)) for step in steps], promises, dt)[..., None]
        B, C = (expand_groups(magnitude(x), dt.shape[1]) for x in (B, C))
        states = None
        if initial_states is not None:
            states = magnitude(initial_states) * (1 + sequence_start_values(E, cu_seqlens)[..., None])
        return add_results(
            run(B=B * (1 + E), C=C, initial_states=states), run(B=B, C=C * (1 + E), initial_states=initial_states)
        )

    return magnitude_op


@overload
def magnitude(x: Tensor) -> Tensor: ...
@overload
def magnitude(x: None) -> None: ...
def magnitude(x: Tensor | None) -> Tensor | None:
    """|x| with slope 1: a linear term and its gradient, in absolute terms. None stays None.

    For a magnitude op of your own (`Op.absolute`). Raises ArgumentError unless x is a floating-point tensor or None.

    >>> import torch, packproof
    >>> x = torch.tensor([-2.0, 3.0], requires_grad=True)
    >>> packproof.magnitude(x).tolist()
    [2.0, 3.0]
    >>> torch.autograd.grad(packproof.magnitude(x).sum(), x)[0].tolist()
    [1.0, 1.0]
    """
    if x is None:
        return None
    if not isinstance(x, Tensor) or not x.is_floating_point():
        description = str(x.dtype).removeprefix("torch.") if isinstance(x, Tensor) else repr(x)[:60]
        raise ArgumentError(
            f"magnitude: x is {description} but a tensor of floating-point values, or None, was expected"
        )
    return with_derivative(x.abs(), x)


def clamped_exponent(exponent: Tensor) -> Tensor:
    """The magnitude of a decay's exponent, clamped to MAX_EXPONENT with slope 0 beyond: a larger one has no effect.

    So a kernel with `cumsum` may sum gates of limited strength only.
    """
    return exponent.clamp(max=MAX_EXPONENT)


def _states(h: Tensor, delta: Tensor, A: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
    """The state after each token in absolute terms, and the last one, from the update of each token.

    Rounding of the exponent Δ A is an error |Δ A| of each decay, relative to it. A term that has decayed several times
    has the sum of these errors: a second run of the recurrence adds them up.
    """
    decay, exponent = _decay(delta, A)
    states = _linear_recurrence(h, update, decay)
    previous_states = torch.cat([h[None], states])[:-1]
    states = states + _linear_recurrence(torch.zeros_like(h), decay * exponent * previous_states, decay)
    return states, torch.cat([h[None], states])[-1]


def _decay(delta: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """The decay of each token in absolute terms, and the magnitude of its exponent."""
    exponent, decay = clamped_exponent(magnitude(delta) * magnitude(A)), (delta * A).exp()
    return with_derivative(decay + UNDERFLOW, decay.detach() * exponent), exponent


def chunked_ssd(
    h: Tensor, update: Tensor, decay: Tensor, exponent: Tensor, B: Tensor, C: Tensor
) -> tuple[Tensor, Tensor]:
    """y = C h for the `_states` h of an SSD, and the last state. States are formed between chunks only.

    With one decay for each head a chunk is masked attention (`refs.ssd_chunked`). The mask of the first run of the
    recurrence is the decays L. The mask of the second run is E: L times the sum of its exponents. e is the state of the
    second run.
    """
    e, ys = torch.zeros_like(h), []
    for tokens in zip(*(torch.split(x, _CHUNK) for x in (update, decay, exponent, B, C)), strict=True):
        update, decay, exponent, B, C = tokens
        L = refs.segsum(pad(decay.log().mT, (1, 0))).exp()  # the states enter as token 0
        E = L * refs.segsum(pad(exponent.mT, (1, 0))).tril()
        scores = einsum(C, B, "i h n, j h n -> h i j") * (L + E)[:, 1:, 1:]
        state_contributions = [einsum(W[:, 1:, 0], C, x, "h i, i h n, h p n -> i h p") for W, x in ((L + E, h), (L, e))]
        ys.append(einsum(scores, update, "h i j, j h p -> i h p") + sum(state_contributions))
        to_h, to_e = (einsum(W[:, -1, 1:], update, B, "h j, j h p, j h n -> h p n") for W in (L, E))
        from_L, from_E = (W[:, -1, 0, None, None] for W in (L, E))
        h, e = to_h + from_L * h, to_e + from_E * h + from_L * e
    return torch.cat(ys), h + e


def _linear_recurrence(h: Tensor, update: Tensor, decay: Tensor) -> Tensor:
    def step(h: Tensor, update: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
        h = decay * h + update
        return h, h

    return over_time(step, h, update, decay)[0]


def _gate(y: Tensor, z: Tensor | None) -> Tensor:
    return y if z is None else y * with_derivative(_silu(z), _silu_slope(z.detach()) * z)


def _sigmoid(z: Tensor) -> Tensor:
    return z.sigmoid() + UNDERFLOW


def _silu(z: Tensor) -> Tensor:
    return z.abs() * _sigmoid(z)


def _silu_slope(z: Tensor) -> Tensor:
    sigma = _sigmoid(z)
    return sigma * (1 + z.abs() * (1 - sigma))


def _silu_curvature(z: Tensor) -> Tensor:
    sigma = _sigmoid(z)
    return sigma * (1 - sigma) * (2 + z.abs() * (1 - 2 * sigma).abs())


def add_results(a: Any, b: Any) -> Any:
    return tuple(x + y for x, y in zip(a, b, strict=True)) if isinstance(a, tuple) else a + b


def cache_write(**arguments: Any) -> tuple[Tensor, ...]:
    """What is copied has no error but that of its dtype."""
    return tuple(cache.abs() for cache in refs.cache_write(**arguments))
