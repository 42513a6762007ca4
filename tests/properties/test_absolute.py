"""The magnitude ops: correct kernels of every kind stay well inside the budget that they give, incorrect ones do not.

`test_correct_orders_of_summation_stay_within_the_budget` is the calibration of K_acc; `-s` prints its table.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import pytest
import torch
from einops import repeat
from torch import Tensor

from packproof import museum, refs
from packproof.base.axes import parse
from packproof.museum import ssd
from packproof.properties.bounds import magnitude_ops
from packproof.properties.bounds.budget import K_ACC, K_ACC_WITH_CUMSUM, score
from packproof.properties.bounds.oracle import OracleAnswer, oracle_answer, vjp
from packproof.properties.calling.tensor_key import TensorKey, gradient
from packproof.properties.cases.case import REGIMES, Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.sample import Sample
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import OPS
from packproof.properties.ops.op import Op
from packproof.refs.recurrence import join_sequences, split_sequences, state_space
from tests.properties import delta_forms
from tests.sweeps import sweep

DTYPES = ("float64", "float32", "bfloat16", "float16")
WEIGHTY = {"causal_conv1d": "x", "selective_scan": "u", "ssd": "x", "rope": "x", "rope_qk": "q"}
WEIGHTY |= {"hadamard": "x", "rope_hadamard": "x", "grouped_mm": "x", "dispatch_combine": "x"}
# on a pool an op has the budget that it has without; what rounds has one value and no gradient; a loss, no magnitude op
PACKED = {n: op for n, op in OPS.items() if not op.pool and op.differentiable and (op.absolute or op.roundings)}
WEIGHTY |= {op: "v" for op in PACKED if op not in WEIGHTY}
WITH_MAGNITUDES = [op for op in PACKED.values() if op.absolute]
LENGTHS = (5, 0, 18, 1)
MARGIN = 0.6  # what a GPU's exponentials and other orders of summation may still need

FORMS = {
    "causal_conv1d": [refs.causal_conv1d],
    "selective_scan": [refs.selective_scan, refs.selective_scan_associative],
    "ssd": [refs.ssd, refs.ssd_quadratic, partial(refs.ssd_chunked, chunk=7)],
    "rope": [refs.rope],
    "rope_qk": [refs.rope_qk],
    "grouped_mm": [refs.grouped_mm],
    "dispatch_combine": [refs.dispatch_combine],
    "hadamard": [refs.hadamard],
    "rope_hadamard": [refs.rope_hadamard],
    "attention": [refs.attention],
    "linear_attention": [refs.linear_attention, partial(refs.linear_attention_chunked, chunk=7)],
    "simple_gla": [refs.simple_gla, partial(refs.simple_gla_chunked, chunk=7)],
    "retention": [refs.retention, partial(refs.retention_chunked, chunk=7)],
}
DELTA = ("delta_rule", "gated_delta_rule", "kda")


def correct_kernels(op: Op, dtype: str) -> dict[str, tuple[Callable[..., Any], Promises]]:
    """The controls of the museum; in 16 bits, where nothing but the storage differs, and where there are none, the
    forms of the references."""
    if op.name in DELTA:
        every = delta_forms.forms(op.name)
        return every if dtype == "float32" else {"chunks of 7": every["chunks of 7"]}
    found = {c.load(): Promises(**c.promises) for c in museum.controls().values() if c.op == op.name}
    found = {form: p for form, p in found.items() if set(op.inputs) <= set(signature(form).parameters)}
    if dtype in ("bfloat16", "float16") or not found:
        return {str(form): (form, Promises(compute="fp32")) for form in FORMS[op.name]}
    return {
        str(form): (form, Promises(p.grid, p.chunk, "fp32", cumsum=True) if p.cumsum else Promises(compute="fp32"))
        for form, p in found.items()
    }


def sample(op: Op, dtype: str = "float64", regime: str = "normal", lengths: tuple[int, ...] = LENGTHS) -> Sample:
    """A pack with every optional input and option."""
    specs = {name: parse(spec) for name, spec in op.inputs.items()}
    return draw(
        op,
        Case(
            lengths=lengths,
            dtype=dtype,
            sizes=tuple(op.sizes[0].items()),
            slack=1,
            present=tuple(name for name, spec in specs.items() if spec.optional),
            axes=tuple((name, len(spec.alternatives) - 1) for name, spec in specs.items()),
            options=tuple((name, values[-1]) for name, values in op.options.items()),
            regime=regime,
            seed=REGIMES.index(regime),
        ),
    )


def run(kernel: Callable[..., Any], s: Sample) -> dict[TensorKey, Tensor]:
    """Outputs and gradients of a kernel in its own dtypes, by the keys that the oracle has."""
    inputs = {name: x.detach().requires_grad_(name in s.wrt) for name, x in s.inputs.items()}
    results = kernel(**inputs, cu_seqlens=s.cu_seqlens, **s.options)
    outputs = dict(zip(s.outputs, results if isinstance(results, tuple) else (results,), strict=True))
    found = torch.autograd.grad(
        list(outputs.values()), [inputs[name] for name in s.wrt], [s.cotangents[name] for name in outputs]
    )
    gradients = {gradient(name): g for name, g in zip(s.wrt, found, strict=True)}
    return {TensorKey(name): y.detach() for name, y in outputs.items()} | gradients


def scores(got: dict[TensorKey, Tensor], want: OracleAnswer) -> dict[TensorKey, float]:
    """The worst score of each tensor; above 1 it breaks the budget. The rounding of the stored value is not counted."""
    found = {}
    for name, r in want.values.items():
        budget = want.budgets[name]
        exact = got[name].double()
        off = ((exact - r).abs() - budget.rounding).clamp(min=0) * (exact - r).sign()
        found[name] = score(r + off, r, budget.total - budget.rounding).max().item()
    return found


@pytest.mark.proof
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", PACKED.values(), ids=lambda op: op.name)
def test_correct_orders_of_summation_stay_within_the_budget(op, dtype):
    check_orders_of_summation(op, dtype, REGIMES)


@sweep("number, op", [*enumerate(PACKED.values())][::3], [*enumerate(PACKED.values())])
def test_correct_orders_of_summation_stay_within_the_budget_in_some_regimes(number, op):
    """Two regimes in fp32 and two others in bf16, which differ from op to op: `make proof` has all in every dtype."""
    for place, dtype in enumerate(("float32", "bfloat16")):
        first = 2 * number + 4 * place
        check_orders_of_summation(op, dtype, [REGIMES[(first + k) % len(REGIMES)] for k in range(2)])


def check_orders_of_summation(op: Op, dtype: str, regimes: Sequence[str]) -> None:
    worst: dict[tuple[TensorKey, str], tuple[float, str]] = {}
    for regime in regimes:
        s = sample(op, dtype, regime)
        memo: dict[Promises, OracleAnswer] = {}
        for name, (kernel, promises) in correct_kernels(op, dtype).items():
            if promises not in memo:
                memo[promises] = oracle_answer(s, promises, gradients=True)
            for tensor, found in scores(run(kernel, s), memo[promises]).items():
                key = (tensor, regime)
                worst[key] = max(worst.get(key, (0.0, "")), (found, name))
    for (tensor, regime), (found, name) in worst.items():
        print(f"{op.name:15} {dtype:9} {tensor!s:26} {regime:13} {found:6.3f} of the budget  ({name})")
    assert max(worst.values())[0] <= MARGIN, max((found, key) for key, found in worst.items())


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("op", WITH_MAGNITUDES, ids=lambda op: op.name)
def test_a_magnitude_op_is_at_least_what_it_bounds(op, regime):
    s = sample(op, regime=regime)
    values = vjp(op.reference, s, gradients=True)
    bounds = vjp(op.absolute, s, gradients=True, absolute=True)
    for name, r in values.items():
        assert (r.abs() <= bounds[name] * (1 + 1e-12)).all(), name
        assert (bounds[name] >= 0).all()


@pytest.mark.parametrize(
    ("op", "most"), [("causal_conv1d", 1.0), ("rope", 1.0), ("selective_scan", 4.0), ("ssd", 4.0), ("simple_gla", 4.0)]
)
def test_a_magnitude_op_of_positive_terms_is_hardly_more_than_their_sum(op, most):
    s = sample(OPS[op])
    signed = {"A", "g", "delta", "dt", "delta_bias", "dt_bias", "sin", *OPS[op].integers}
    s = replace(s, inputs={name: x if name in signed else x.abs() for name, x in s.inputs.items()})
    s = replace(s, inputs={name: x for name, x in s.inputs.items() if name != "z"})
    s = replace(s, inputs={**s.inputs, "sin": -s.inputs["sin"].abs()} if "sin" in s.inputs else s.inputs)
    s = replace(s, options={**s.options, "activation": None} if "activation" in s.options else s.options)
    got, want = vjp(OPS[op].absolute, s, gradients=False, absolute=True), vjp(OPS[op].reference, s, gradients=False)
    ratio = got[TensorKey("y")] / want[TensorKey("y")].abs()
    assert ratio[ratio.isfinite()].median() <= most * (1 + 1e-12)


@pytest.mark.parametrize(
    ("op", "token", "dtype"),
    [(op, token, d) for op, token in WEIGHTY.items() for d in ("float32", "bfloat16")],
)
def test_one_token_wrong_by_a_sixtieth_breaks_the_budget(op, token, dtype):
    op = OPS[op]
    s = sample(op, dtype)
    x = s.inputs[token].double()
    x[20] *= 1.0 + 2.0**-6
    wrong = replace(s, inputs={**s.inputs, token: x.to(s.inputs[token].dtype)})
    found = scores(run(op.reference, wrong), oracle_answer(s, Promises(compute="fp32"), gradients=True))
    assert found[TensorKey(s.outputs[0])] > 1


def cumsum_scan(*args: Any, **options: Any) -> Any:
    """A scan in chunks of 16 whose decays are differences of cumulative sums."""

    def recurrence(h: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        ys = [u[:0]]
        for u_c, delta_c, B_c, C_c in zip(*(torch.split(x, 16) for x in (u, delta, B, C)), strict=True):
            sums = (delta_c[..., None] * A).clamp(min=-750).cumsum(0)
            lower = torch.ones(len(u_c), len(u_c)).tril().bool()[..., None, None]
            decay = torch.where(lower, sums[:, None] - sums[None], -torch.inf).exp()
            states = (decay * ((delta_c * u_c)[..., None] * B_c)[None]).sum(1) + sums.exp() * h
            ys.append((states * C_c).sum(-1))
            h = states[-1] if len(states) else h
        return torch.cat(ys), h

    def scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus, cu_seqlens, initial_states, return_final_states):
        return state_space(
            recurrence,
            *(u, delta, A, B, C, D, z, delta_bias, initial_states, tuple(A.shape)),
            softplus=delta_softplus,
            cu_seqlens=cu_seqlens,
        )

    return scan(*args, **options)


@pytest.mark.parametrize(
    ("op", "kernel", "promises"),
    [
        ("selective_scan", cumsum_scan, Promises("sequence", 16, "fp32", cumsum=True)),
        ("ssd", ssd.correct, Promises("pack", 16, "fp32", cumsum=True)),
        ("ssd", ssd.own_grid, Promises("sequence", 16, "fp32", cumsum=True)),
    ],
    ids=["scan", "ssd, pack grid", "ssd, sequence grid"],
)
def test_cumulative_sums_need_their_own_term(op, kernel, promises):
    without = 0.0
    for regime in REGIMES[::2]:
        s = sample(OPS[op], "float32", regime)
        got = run(kernel, s)
        assert max(scores(got, oracle_answer(s, promises, gradients=True)).values()) <= MARGIN
        without = max(without, *scores(got, oracle_answer(s, Promises(compute="fp32"), gradients=True)).values())
    assert without > 1


def rounding_ssd(low: torch.dtype, **arguments: Any) -> Any:
    """SSD as masked attention, the operands of every product rounded to `low`, forward and backward."""

    def rounded(x: Tensor) -> Tensor:
        return x.to(low).to(x.dtype)

    def recurrence(h: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        L = refs.segsum(torch.cat([torch.zeros_like(A)[None], dt * A]).mT).exp()
        scores = rounded(torch.einsum("ihn, jhn -> hij", C, B) * L[:, 1:, 1:])
        added = rounded(dt[..., None] * x)
        entering = torch.einsum("hi, ihn, hpn -> ihp", L[:, 1:, 0], C, rounded(h))
        weighted = rounded(L[:, -1, 1:].mT[..., None] * B)
        h_end = torch.einsum("jhp, jhn -> hpn", added, weighted) + L[:, -1, 0, None, None] * h
        return torch.einsum("hij, jhp -> ihp", scores, added) + entering, h_end

    a = arguments
    D = a["D"] if a["D"].ndim == 2 else a["D"][:, None]
    return state_space(
        recurrence,
        *(a["x"], a["dt"], a["A"], a["B"], a["C"], D, a["z"], a["dt_bias"], a["initial_states"]),
        a["initial_states"].shape[1:],
        softplus=a["dt_softplus"],
        cu_seqlens=a["cu_seqlens"],
    )


def rounding_attention(
    low: torch.dtype, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, cu_seqlens: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    """Attention whose weights are rounded to `low`, forward and backward."""
    mask = {name: options[name] for name in ("causal", "window_size")}
    sinks, softcap = sinks.float(), options["softcap"]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        n, group = len(q), q.shape[1] // k.shape[1]
        k, v = (repeat(x.float(), "j hk c -> j (hk g) c", g=group) for x in (k, v))
        ones = torch.eye(n, dtype=torch.float64)[:, None].expand(n, q.shape[1], n)
        alone = {"cu_seqlens": torch.tensor([0, n]), **mask}
        visible = refs.attention(torch.zeros_like(ones), torch.zeros_like(ones), ones, **alone).transpose(0, 1) > 0
        scores = torch.einsum("ihc, jhc -> hij", q.float(), k) * options["softmax_scale"]
        scores = torch.where(visible, softcap * (scores / softcap).tanh(), -torch.inf)
        scores = torch.cat([scores, repeat(sinks, "h -> h i 1", i=n)], -1)
        weights = scores.softmax(-1)[..., :n]
        return torch.einsum("hij, jhc -> ihc", weights.to(low).float(), v), scores.logsumexp(-1).T

    pieces = [attend(*p) for p in zip(*(split_sequences(x, cu_seqlens) for x in (q, k, v)), strict=True)]
    y = join_sequences((y for y, _ in pieces), q.new_zeros(*q.shape[:2], v.shape[-1]))
    return y, join_sequences((lse for _, lse in pieces), q.new_zeros(q.shape[:2]).float())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("op", "kernel"), [("ssd", rounding_ssd), ("attention", rounding_attention)], ids=["ssd", "attention"]
)
def test_rounded_operands_need_their_own_term(op, kernel, dtype):
    without = 0.0
    for regime in REGIMES[::2]:
        s = sample(OPS[op], dtype, regime)
        got = run(partial(kernel, getattr(torch, dtype)), s)
        assert max(scores(got, oracle_answer(s, Promises(compute="operand"), gradients=True)).values()) <= MARGIN
        without = max(without, *scores(got, oracle_answer(s, Promises(compute="fp32"), gradients=True)).values())
    assert without > 1


def test_budget_constants_are_those_calibrated_here():
    assert (K_ACC, K_ACC_WITH_CUMSUM) == (32.0, 8.0)


@pytest.mark.parametrize("op", WITH_MAGNITUDES, ids=lambda op: op.name)
@pytest.mark.parametrize("lengths", [(), (0,), (0, 2, 0)])
def test_magnitude_ops_take_packs_of_nothing(op, lengths):
    s = sample(op, lengths=lengths)
    promises = Promises(chunk=16, cumsum=True)
    for magnitude_op in [op.absolute, *([op.cumsum(promises)] if op.cumsum else [])]:
        bounds = vjp(magnitude_op, s, gradients=True, absolute=True)
        assert all(b.isfinite().all() for b in bounds.values())
        assert not any(bounds[TensorKey(name)][sum(lengths) :].any() for name in s.outputs if s.axes[name][0] == "t")


def test_magnitude_has_slope_one():
    x = torch.tensor([-2.0, 0.0, 3.0], requires_grad=True)
    y = magnitude_ops.magnitude(x)
    assert y.tolist() == [2, 0, 3]
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("n_tokens", [0, 1, 64, 150])
def test_an_ssd_has_the_same_terms_token_by_token(n_tokens: int) -> None:
    generator = torch.Generator().manual_seed(n_tokens)
    shapes = {"h": (2, 3, 4), "x": (n_tokens, 2, 3), "dt": (n_tokens, 2), "A": (2,), "B": (n_tokens, 2, 4)}
    draws = {n: torch.randn(s, generator=generator, dtype=torch.float64).abs() for n, s in shapes.items()}
    draws |= {"C": draws["B"].flip(0), "A": -draws["A"]}

    def chunks(h, x, dt, A, B, C):
        return magnitude_ops.chunked_ssd(h, x, *magnitude_ops._decay(dt, A), B, C)

    def tokens(h, x, dt, A, B, C):
        added = x[..., None] * B[:, :, None]
        states, h = magnitude_ops._states(h, dt[..., None, None], A[:, None, None], added)
        return (states * C[:, :, None]).sum(-1), h

    found, wanted = (torch.autograd.functional.vjp(f, tuple(draws.values()), _ones(f, draws)) for f in (chunks, tokens))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)


def _ones(f: Callable[..., Any], draws: dict[str, Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.ones_like(y) for y in f(**draws))
