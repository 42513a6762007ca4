"""Linear attention, its gated forms and the delta rule: every form against an independent loop, and what all share."""

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.base.axes import parse, shape
from packproof.base.signatures import SIGNATURES

OPS = ("linear_attention", "simple_gla", "retention", "delta_rule", "gated_delta_rule", "kda")
SIZES = {"hk": 2, "hv": 4, "h": 3, "k": 3, "p": 2}
LENGTHS = [(5, 0, 1, 7), (0, 0), (), (4,), (0, 9)]
CHUNKS = (1, 3, 64)


@dataclass(frozen=True)
class Problem:
    """The arguments of a call in float64, by name, and incoming gradients for its two outputs."""

    op: str
    inputs: dict[str, Tensor]
    lengths: tuple[int, ...]
    options: dict[str, Any]
    cotangents: tuple[Tensor, Tensor]

    @property
    def offsets(self) -> list[int]:
        return [0, *accumulate(self.lengths)]

    def run(self, form: str = "", **options: Any) -> tuple[Tensor, Tensor]:
        call = getattr(refs, self.op + form)
        given = {**self.options, "return_final_states": True, **options}
        return call(**self.inputs, cu_seqlens=torch.tensor(self.offsets), **given)

    def vjp(self, form: str = "", **options: Any) -> dict[str, Tensor]:
        """Outputs and gradients by name."""
        inputs = {name: x.detach().requires_grad_() for name, x in self.inputs.items()}
        outputs = replace(self, inputs=inputs).run(form, **options)
        reached = [(y, g) for y, g in zip(outputs, self.cotangents, strict=True) if y.requires_grad]
        ys, cotangents = zip(*reached, strict=True)
        found = torch.autograd.grad(ys, list(inputs.values()), cotangents, materialize_grads=True)
        gradients = {f"d{name}": g for name, g in zip(inputs, found, strict=True)}
        return {"y": outputs[0].detach(), "final_states": outputs[1].detach(), **gradients}

    def axis(self, name: str) -> str:
        """The first axis of a tensor, or of the gradient of one."""
        signature = SIGNATURES[self.op]
        spec = {**signature.inputs, **signature.outputs}.get(name) or signature.inputs[name[1:]]
        return parse(spec).alternatives[0][0]

    def only(self, j: int) -> "Problem":
        rows = {"t": slice(*self.offsets[j : j + 2]), "s": slice(j, j + 1)}
        inputs = {name: x[rows[self.axis(name)]] if self.axis(name) in rows else x for name, x in self.inputs.items()}
        dy, dS = self.cotangents
        return replace(self, inputs=inputs, lengths=self.lengths[j : j + 1], cotangents=(dy[rows["t"]], dS[rows["s"]]))


def problem(op: str, lengths: tuple[int, ...], *, rich: bool = True, slack: int = 0, seed: int = 0) -> Problem:
    """rich: with states, and for the delta rule with every option."""
    g = torch.Generator().manual_seed(seed)
    sizes = {**SIZES, "t": sum(lengths) + slack, "s": len(lengths)}

    def normal(name: str, spec: str) -> Tensor:
        x = torch.randn(*shape(parse(spec).alternatives[0], sizes), dtype=torch.float64, generator=g)
        if name == "k":
            return x / x.norm(dim=-1, keepdim=True)
        return {"g": -x.abs(), "decay": -x.abs(), "beta": x.sigmoid()}.get(name, x)

    signature = SIGNATURES[op]
    specs = {name: spec for name, spec in signature.inputs.items() if rich or not parse(spec).optional}
    options = {name: True for name in ("qk_l2norm", "beta_sigmoid") if rich and name in signature.options}
    return Problem(
        op,
        {name: normal(name, spec) for name, spec in specs.items()},
        lengths,
        {"scale": 0.7, **options} if rich else {},
        (normal("", signature.outputs["y"]), normal("", signature.outputs["final_states"])),
    )


def by_loops(case: Problem) -> tuple[np.ndarray, np.ndarray]:
    """The equations in numpy, a head, a token and a matrix at a time; nothing in common with the references."""
    x = {name: tensor.numpy() for name, tensor in case.inputs.items()}
    q, k, v = x["q"].copy(), x["k"].copy(), x["v"]
    if case.options.get("qk_l2norm"):
        q, k = (z / np.sqrt((z * z).sum(-1)[..., None] + 1e-6) for z in (q, k))
    heads, width = v.shape[1], k.shape[2]
    y, finals = np.zeros_like(v), np.zeros((len(case.lengths), heads, width, v.shape[2]))
    for j, h in np.ndindex(len(case.lengths), heads):
        S = x["initial_states"][j, h] if "initial_states" in x else np.zeros((width, v.shape[2]))
        own = h // (heads // k.shape[1])
        for t in range(*case.offsets[j : j + 2]):
            gate = x["decay"][h] if "decay" in x else x["g"][t, h] if "g" in x else 0.0
            if "A_log" in x:
                gate = -np.exp(x["A_log"][h]) * np.log1p(np.exp(gate + x["dt_bias"][h]))
            forget = np.diag(np.exp(gate * np.ones(width)))
            key = k[t, own][:, None]
            if "beta" in x:
                beta = 1 / (1 + np.exp(-x["beta"][t, h])) if case.options.get("beta_sigmoid") else x["beta"][t, h]
                S = (np.eye(width) - beta * key @ key.T) @ forget @ S + beta * key @ v[t, h][None]
            else:
                S = forget @ S + key @ v[t, h][None]
            y[t, h] = case.options.get("scale", width**-0.5) * S.T @ q[t, own]
        finals[j, h] = S
    return y, finals


def assert_near(got: dict[str, Tensor], want: dict[str, Tensor], tolerance: float) -> None:
    assert got.keys() == want.keys()
    for name, x in want.items():
        torch.testing.assert_close(got[name], x, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def drawn_packs(count: int) -> list[tuple[int, ...]]:
    random = np.random.default_rng(0)
    return [tuple(random.choice([0, 1, 2, 3, 5, 9, 17], random.integers(1, 6)).tolist()) for _ in range(count)]


def assert_like_loops(op: str, packs: list[tuple[int, ...]]) -> None:
    for seed, lengths in enumerate(packs):
        case = problem(op, lengths, rich=seed % 2 == 0, slack=seed % 3, seed=seed)
        want = by_loops(case)
        for form, options in (("", {}), ("_chunked", {"chunk": CHUNKS[seed % 3]})):
            for got, exact in zip(case.run(form, **options), want, strict=True):
                np.testing.assert_allclose(got.numpy(), exact, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("op", OPS)
def test_both_forms_are_the_equations(op: str) -> None:
    assert_like_loops(op, drawn_packs(12))


@pytest.mark.proof
@pytest.mark.parametrize("op", OPS)
def test_both_forms_are_the_equations_on_two_hundred_packs(op: str) -> None:
    assert_like_loops(op, drawn_packs(200))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("rich", [False, True], ids=["plain", "everything"])
@pytest.mark.parametrize("op", OPS)
def test_forms_agree_in_values_and_gradients(op: str, rich: bool, chunk: int) -> None:
    for seed, lengths in enumerate(LENGTHS):
        case = problem(op, lengths, rich=rich, slack=seed % 3, seed=seed)
        assert_near(case.vjp("_chunked", chunk=chunk), case.vjp(), 1e-10)


@pytest.mark.parametrize("op", OPS)
def test_hard_decays_neither_overflow_nor_underflow_to_nan(op: str) -> None:
    case = problem(op, (9, 70), rich=False)
    case = replace(case, inputs={n: 1e3 * x if n in ("g", "decay") else x for n, x in case.inputs.items()})
    assert all(x.isfinite().all() for x in case.vjp().values())
    assert_near(case.vjp("_chunked"), case.vjp(), 1e-10)


@pytest.mark.parametrize("op", [op for op in OPS if "beta" in SIGNATURES[op].inputs])
def test_a_beta_of_two_reflects_and_chunks_keep_the_digits(op: str) -> None:
    case = problem(op, (200,), rich=False)
    case = replace(case, inputs={**case.inputs, "beta": torch.full_like(case.inputs["beta"], 2.0)})
    assert_near(case.vjp("_chunked"), case.vjp(), 1e-10)


@pytest.mark.parametrize("op", OPS)
def test_steps_are_the_sequence(op: str) -> None:
    case = problem(op, (6,), rich=False)
    inputs = case.inputs
    heads = inputs["v"].shape[1]
    q, k = (inputs[name].repeat_interleave(heads // inputs[name].shape[1], 1) for name in "qk")
    rest = {name: inputs[name] for name in ("g", "beta") if name in inputs}
    decay = {"decay": inputs["decay"]} if "decay" in inputs else {}
    S, ys = torch.zeros(heads, 3, 2, dtype=torch.float64), []
    for t in range(6):
        token = {name: x[t] for name, x in rest.items()}
        S, y = getattr(refs, f"{op}_step")(S, q[t], k[t], inputs["v"][t], **token, **decay)
        ys.append(y)
    y, final = case.run()
    assert torch.equal(torch.stack(ys), y)
    assert torch.equal(S, final[0])


@pytest.mark.parametrize("op", OPS)
def test_step_gradients_are_complex_step_derivatives(op: str) -> None:
    """Exact to the last digits, since nothing is subtracted: f'(x) = Im f(x + i h) / h with h = 1e-200."""
    specs = {"S": "h k p", **{n: s for n, s in SIGNATURES[op].inputs.items() if n != "initial_states"}}
    specs = {n: s for n, s in specs.items() if not s.endswith("?")}
    g = torch.Generator().manual_seed(3)

    def token(name: str, spec: str) -> Tensor:
        axes = [{"hk": "h", "hv": "h"}.get(axis, axis) for axis in parse(spec).alternatives[0] if axis != "t"]
        x = torch.randn(*shape(tuple(axes), SIZES), dtype=torch.float64, generator=g)
        return -x.abs() if name in ("g", "decay") else x

    inputs = {name: token(name, spec).requires_grad_() for name, spec in specs.items()}
    step = getattr(refs, f"{op}_step")
    outputs = step(**inputs)
    weights = [torch.randn(y.shape, dtype=torch.float64, generator=g) for y in outputs]
    gradients = torch.autograd.grad(outputs, list(inputs.values()), weights)
    for (name, x), gradient in zip(inputs.items(), gradients, strict=True):
        for i in range(x.numel()):
            moved = {other: y.detach().to(torch.complex128) for other, y in inputs.items()}
            moved[name].view(-1)[i] += 1e-200j
            slope = sum((w * y).sum().imag for w, y in zip(weights, step(**moved), strict=True)) / 1e-200
            assert gradient.flatten()[i].item() == pytest.approx(slope.item(), rel=1e-12, abs=1e-14), (name, i)


def test_a_gated_delta_rule_has_fifty_digits() -> None:
    case = problem("gated_delta_rule", (8,))
    x = {name: tensor.numpy() for name, tensor in case.inputs.items()}
    y, final = case.run()
    with mpmath.workdps(50):
        for h in range(4):
            S = mpmath.matrix(x["initial_states"][0, h].tolist())
            rate = mpmath.exp(mpmath.mpf(x["A_log"][h]))
            for t in range(8):
                q, k = (_normalised(x[name][t, h // 2]) for name in "qk")
                S *= mpmath.exp(-rate * mpmath.log1p(mpmath.exp(mpmath.mpf(x["g"][t, h]) + x["dt_bias"][h])))
                beta = 1 / (1 + mpmath.exp(-mpmath.mpf(x["beta"][t, h])))
                S += beta * k * (mpmath.matrix(x["v"][t, h].tolist()) - S.T * k).T
                out = mpmath.mpf("0.7") * (S.T * q)
                np.testing.assert_allclose(y[t, h].numpy(), [float(z) for z in out], rtol=1e-13, atol=1e-14)
            np.testing.assert_allclose(final[0, h].numpy(), np.array(S.tolist(), dtype=float), rtol=1e-13, atol=1e-14)


def _normalised(x: np.ndarray) -> Any:
    z = mpmath.matrix(x.tolist())
    return z / mpmath.sqrt(sum(c * c for c in z) + mpmath.mpf(1e-6))


@pytest.mark.parametrize("form", ["", "_chunked"])
@pytest.mark.parametrize("op", OPS)
def test_a_sequence_has_the_same_bits_alone_whatever_the_others_hold(op: str, form: str) -> None:
    case = problem(op, (3, 0, 5, 1), slack=2)
    packed, alone = case.vjp(form), [case.only(j).vjp(form) for j in range(4)]
    for name, x in packed.items():
        parts = [found[name] for found in alone]
        if case.axis(name) == "t":
            assert torch.equal(x, torch.cat([*parts, torch.zeros_like(x[:2])])), name
        elif case.axis(name) == "s":
            assert torch.equal(x, torch.cat(parts)), name
        else:
            torch.testing.assert_close(x, torch.stack(parts).sum(0), rtol=1e-12, atol=1e-12)
    spoilt = {n: x.clone() for n, x in case.inputs.items()}
    for name, x in spoilt.items():
        if case.axis(name) in "ts":
            x[:3] = x[8:] = torch.nan
            x[:2] = torch.nan
    rows = {"t": slice(3, 8), "s": slice(2, 3)}
    spoilt["initial_states"] = case.inputs["initial_states"].clone()
    spoilt["initial_states"][[0, 3]] = torch.nan
    for name, x in replace(case, inputs=spoilt).vjp(form).items():
        if case.axis(name) in rows:
            assert torch.equal(x[rows[case.axis(name)]], packed[name][rows[case.axis(name)]]), name


@pytest.mark.parametrize("op", OPS)
def test_an_empty_sequence_returns_its_state_and_its_gradient(op: str) -> None:
    case = problem(op, (0, 2, 0))
    for form in ("", "_chunked"):
        found = case.vjp(form)
        for j in (0, 2):
            assert torch.equal(found["final_states"][j], case.inputs["initial_states"][j])
            assert torch.equal(found["dinitial_states"][j], case.cotangents[1][j])


@pytest.mark.parametrize("op", OPS)
def test_a_run_continues_from_its_final_state(op: str) -> None:
    case = problem(op, (7,))
    y, final = case.run()
    for cut in range(8):
        token = [name for name in case.inputs if case.axis(name) == "t"]
        first, second = (
            replace(case, inputs={**case.inputs, **{n: case.inputs[n][rows] for n in token}}, lengths=(length,))
            for rows, length in ((slice(0, cut), cut), (slice(cut, 7), 7 - cut))
        )
        y_1, state = first.run()
        y_2, state = replace(second, inputs={**second.inputs, "initial_states": state}).run()
        torch.testing.assert_close(torch.cat([y_1, y_2]), y, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(state, final, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", OPS)
def test_low_precision_tokens_compute_in_fp32(op: str, dtype: torch.dtype) -> None:
    case, fixed = problem(op, (9, 3), slack=1), SIGNATURES[op].fixed
    inputs = {n: x.to(torch.float32 if n in fixed else dtype) for n, x in case.inputs.items()}
    low = replace(case, inputs=inputs, cotangents=(case.cotangents[0].to(dtype), case.cotangents[1].float()))
    exact = replace(
        low,
        inputs={n: x.double() for n, x in inputs.items()},
        cotangents=tuple(g.double() for g in low.cotangents),
    ).vjp()
    for name, x in low.vjp().items():
        assert x.dtype == (torch.float32 if name == "final_states" or name[1:] in fixed else dtype), name
        once_rounded = {"rtol": torch.finfo(x.dtype).eps / 2, "atol": 3e-5}
        torch.testing.assert_close(x.double(), exact[name], **once_rounded, msg=lambda m, n=name: f"{n}: {m}")


def test_what_the_ops_have_in_common() -> None:
    """Each is an instance of the next: a gate of 0, the same gate for all tokens, or for all channels."""
    case = problem("gated_delta_rule", (5, 6), rich=False)
    q, k, v, g, beta = (case.inputs[name] for name in ("q", "k", "v", "g", "beta"))
    pack = {"cu_seqlens": torch.tensor(case.offsets)}
    zero, decay = torch.zeros_like(g), g[0]
    same = decay.expand_as(g)
    assert torch.equal(refs.linear_attention(q, k, v, **pack), refs.simple_gla(q, k, v, zero, **pack))
    assert torch.equal(refs.retention(q, k, v, decay, **pack), refs.simple_gla(q, k, v, same, **pack))
    rule = refs.delta_rule(q, k, v, beta, **pack)
    assert torch.equal(rule, refs.gated_delta_rule(q, k, v, zero, beta, **pack))
    wide_q, wide_k = (x.repeat_interleave(2, 1) for x in (q, k))
    by_channel = g[..., None].expand(-1, -1, 3)
    gated = refs.gated_delta_rule(q, k, v, g, beta, **pack)
    assert torch.equal(gated, refs.kda(wide_q, wide_k, v, by_channel, beta, **pack))
    x, states = refs.ssd(v, torch.ones_like(g), decay, k, q, return_final_states=True, **pack)
    y, own = refs.retention(q, k, v, decay, scale=1.0, return_final_states=True, **pack)
    torch.testing.assert_close(x, y, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(states.mT, own, rtol=1e-13, atol=1e-13)
