"""What holds for both state-space references, selective scan and SSD, in every form and with every option."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.base.errors import ArgumentError

FORMS: dict[str, list[Callable[..., Any]]] = {
    "selective_scan": [refs.selective_scan, refs.selective_scan_associative],
    "ssd": [refs.ssd, refs.ssd_quadratic, *(partial(refs.ssd_chunked, chunk=c) for c in (1, 3, 64))],
}
REFERENCES = [forms[0] for forms in FORMS.values()]
PAIRS = [(forms[0], form) for forms in FORMS.values() for form in forms[1:]]
PLAIN: frozenset[str] = frozenset()
EVERYTHING = frozenset({"groups", "D", "z", "bias", "softplus", "states"})
OPTION_SETS = [PLAIN, *({o} for o in sorted(EVERYTHING)), {"bias", "softplus"}, {"wide D"}, EVERYTHING]
LENGTHS = [(5, 0, 1, 7), (0, 0), (), (4,), (0, 3)]
TOKENS = ("u", "delta", "x", "dt", "B", "C", "z")


@dataclass(frozen=True)
class Problem:
    """The arguments of a call in float64, and incoming gradients for its two outputs."""

    inputs: dict[str, Tensor]
    lengths: tuple[int, ...]
    options: dict[str, bool]
    cotangents: tuple[Tensor, Tensor]

    @property
    def cu_seqlens(self) -> Tensor:
        return torch.tensor([0, *accumulate(self.lengths)])

    def run(self, form: Callable[..., Any]) -> tuple[Tensor, Tensor]:
        return form(**self.inputs, cu_seqlens=self.cu_seqlens, return_final_states=True, **self.options)

    def vjp(self, form: Callable[..., Any]) -> dict[str, Tensor]:
        """Outputs and gradients by name."""
        inputs = {name: x.detach().requires_grad_() for name, x in self.inputs.items()}
        outputs = replace(self, inputs=inputs).run(form)
        reached = [(y, g) for y, g in zip(outputs, self.cotangents, strict=True) if y.requires_grad]
        ys, cotangents = zip(*reached, strict=True)
        found = torch.autograd.grad(ys, list(inputs.values()), cotangents, materialize_grads=True)
        gradients = {f"d{name}": g for name, g in zip(inputs, found, strict=True)}
        return {"y": outputs[0].detach(), "final_states": outputs[1].detach(), **gradients}

    def only(self, j: int, tokens: slice = slice(None)) -> "Problem":
        """Sequence j alone, or some of its tokens."""
        rows = range(*self.cu_seqlens[j : j + 2].tolist())[tokens]

        def pick(name: str, x: Tensor) -> Tensor:
            if name in TOKENS:
                return x[rows.start : rows.stop]
            return x[j : j + 1] if name == "initial_states" else x

        inputs = {name: pick(name, x) for name, x in self.inputs.items()}
        dy, dh = self.cotangents
        return replace(
            self, inputs=inputs, lengths=(len(rows),), cotangents=(dy[rows.start : rows.stop], dh[j : j + 1])
        )


def problem(
    reference: Callable[..., Any], lengths: tuple[int, ...], wanted: Any = EVERYTHING, *, slack: int = 0, seed: int = 0
) -> Problem:
    g = torch.Generator().manual_seed(seed)
    t, s, d, n = sum(lengths) + slack, len(lengths), 4, 2

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=g)

    is_scan = reference is refs.selective_scan
    x, heads = ("u", (d,)) if is_scan else ("x", (d, 3))
    delta = "delta" if is_scan else "dt"
    step = normal(t, d) if "softplus" in wanted else normal(t, d).abs() + 0.1
    inputs = {x: normal(t, *heads), delta: step, "A": -normal(*((d, n) if is_scan else (d,))).abs()}
    if is_scan and "groups" not in wanted:
        inputs |= {"B": normal(t, n), "C": normal(t, n)}
    else:
        inputs |= {name: normal(t, 2 if "groups" in wanted else 1, n) for name in "BC"}
    state = (d, n) if is_scan else (*heads, n)
    inputs |= {"D": normal(d)} if "D" in wanted else {}
    inputs |= {"D": normal(*heads)} if "wide D" in wanted else {}
    inputs |= {"z": normal(t, *heads)} if "z" in wanted else {}
    inputs |= {f"{delta}_bias": normal(d)} if "bias" in wanted else {}
    inputs |= {"initial_states": normal(s, *state)} if "states" in wanted else {}
    return Problem(inputs, lengths, {f"{delta}_softplus": "softplus" in wanted}, (normal(t, *heads), normal(s, *state)))


def assert_near(got: dict[str, Tensor], want: dict[str, Tensor], tolerance: float) -> None:
    assert got.keys() == want.keys()
    for name, x in want.items():
        torch.testing.assert_close(got[name], x, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("wanted", OPTION_SETS, ids=lambda o: "+".join(sorted(o)) or "plain")
@pytest.mark.parametrize(("reference", "form"), PAIRS)
def test_forms_agree_in_values_and_gradients(reference, form, wanted):
    for seed, lengths in enumerate(LENGTHS):
        case = problem(reference, lengths, wanted, slack=seed % 3, seed=seed)
        assert_near(case.vjp(form), case.vjp(reference), 1e-10)


@pytest.mark.parametrize("reference", REFERENCES)
def test_gradients_are_finite_differences(reference):
    case = problem(reference, (2, 0, 1), slack=1)
    gradients = case.vjp(reference)

    def value(name: str, x: Tensor) -> float:
        outputs = replace(case, inputs={**case.inputs, name: x}).run(reference)
        return sum(float((y * g).sum()) for y, g in zip(outputs, case.cotangents, strict=True))

    weights = {1: 4 / 5, 2: -1 / 5, 3: 4 / 105, 4: -1 / 280}  # central, order 8: error below 1e-11 at this step
    h, generator = 0.005, torch.Generator().manual_seed(1)
    for name, x in case.inputs.items():
        for _ in range(2):
            step = h * torch.randn(x.shape, dtype=x.dtype, generator=generator)
            slope = sum(w * (value(name, x + k * step) - value(name, x - k * step)) for k, w in weights.items())
            assert (gradients[f"d{name}"] * step).sum().item() == pytest.approx(slope, rel=1e-9, abs=1e-12), name


@pytest.mark.proof
@pytest.mark.parametrize("reference", REFERENCES)
def test_slow_gradcheck(reference):
    case = problem(reference, (2, 0, 1), slack=1)
    names = list(case.inputs)

    def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return replace(case, inputs=dict(zip(names, tensors, strict=True))).run(reference)

    assert torch.autograd.gradcheck(run, [x.clone().requires_grad_() for x in case.inputs.values()], fast_mode=False)


@pytest.mark.parametrize("wanted", [PLAIN, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("form", [form for forms in FORMS.values() for form in forms])
def test_a_sequence_has_the_same_bits_alone(form, wanted):
    reference = next(forms[0] for forms in FORMS.values() if form in forms)
    case = problem(reference, (3, 0, 5, 1, 4), wanted, slack=2)
    packed = case.vjp(form)
    alone = [case.only(j).vjp(form) for j in range(5)]
    for name, x in packed.items():
        parts = [a[name] for a in alone]
        if name in ("y", *(f"d{t}" for t in TOKENS)):
            assert torch.equal(x, torch.cat([*parts, torch.zeros_like(x[:2])])), name
        elif name in ("final_states", "dinitial_states"):
            assert torch.equal(x, torch.cat(parts)), name
        else:
            torch.testing.assert_close(x, torch.stack(parts).sum(0), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("form", [form for forms in FORMS.values() for form in forms])
def test_nan_elsewhere_reaches_neither_values_nor_gradients(form):
    reference = next(forms[0] for forms in FORMS.values() if form in forms)
    case = problem(reference, (3, 4, 2), slack=2)
    clean = case.vjp(form)

    def spoil(name: str, x: Tensor) -> Tensor:
        x = x.clone()
        if name in TOKENS:
            x[:3] = x[7:] = torch.nan
        elif name == "initial_states":
            x[0] = x[2] = torch.nan
        return x

    spoilt = replace(case, inputs={name: spoil(name, x) for name, x in case.inputs.items()}).vjp(form)
    for name in clean:
        own = slice(1, 2) if name in ("final_states", "dinitial_states") else slice(3, 7)
        if name in ("y", "final_states", "dinitial_states", *(f"d{t}" for t in TOKENS)):
            assert torch.equal(spoilt[name][own], clean[name][own]), name
            if "states" not in name:
                assert torch.equal(spoilt[name][9:], torch.zeros_like(clean[name][9:])), name


@pytest.mark.parametrize("wanted", [PLAIN, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("cut", range(6))
@pytest.mark.parametrize("reference", REFERENCES)
def test_a_run_continues_from_its_final_state(reference, cut, wanted):
    case = problem(reference, (5,), wanted)
    whole = case.vjp(reference)

    inputs = {name: x.clone().requires_grad_() for name, x in case.inputs.items()}
    first = replace(case, inputs=inputs).only(0, slice(0, cut))
    y_1, state = first.run(reference)
    second = replace(case, inputs=inputs).only(0, slice(cut, 5))
    y_2, state = replace(second, inputs={**second.inputs, "initial_states": state}).run(reference)
    outputs = (torch.cat([y_1, y_2]), state)
    found = torch.autograd.grad(outputs, list(inputs.values()), case.cotangents)
    joined = {"y": outputs[0].detach(), "final_states": outputs[1].detach()}
    joined |= {f"d{name}": g for name, g in zip(inputs, found, strict=True)}
    assert_near(joined, whole, 1e-12)


@pytest.mark.parametrize("form", [form for forms in FORMS.values() for form in forms])
def test_an_empty_sequence_returns_its_state_and_its_gradient(form):
    reference = next(forms[0] for forms in FORMS.values() if form in forms)
    case = problem(reference, (0, 2, 0))
    found = case.vjp(form)
    for j in (0, 2):
        assert torch.equal(found["final_states"][j], case.inputs["initial_states"][j])
        assert torch.equal(found["dinitial_states"][j], case.cotangents[1][j])
    _, zero = problem(reference, (0,), PLAIN).run(form)
    assert not zero.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", [PLAIN, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("reference", REFERENCES)
def test_low_precision_tokens_compute_in_fp32(reference, wanted, dtype):
    case = problem(reference, (9, 3), wanted, slack=1)
    inputs = {name: x.to(dtype if name in TOKENS else torch.float32) for name, x in case.inputs.items()}
    low = replace(case, inputs=inputs, cotangents=(case.cotangents[0].to(dtype), case.cotangents[1].float()))
    exact = replace(
        low,
        inputs={name: x.double() for name, x in low.inputs.items()},
        cotangents=tuple(g.double() for g in low.cotangents),
    ).vjp(reference)
    for name, x in low.vjp(reference).items():
        stored = dtype if name == "y" or name[1:] in TOKENS else torch.float32
        assert x.dtype == stored, name
        once_rounded = {"rtol": torch.finfo(stored).eps / 2, "atol": 3e-5}
        torch.testing.assert_close(x.double(), exact[name], **once_rounded, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("reference", REFERENCES)
def test_only_y_unless_states_are_requested(reference):
    case = problem(reference, (2,))
    y = reference(**case.inputs, cu_seqlens=case.cu_seqlens.int(), **case.options)
    assert torch.equal(y, case.run(reference)[0])


@pytest.mark.parametrize("reference", REFERENCES)
def test_work_and_memory_of_the_backward_grow_with_the_length(reference):
    class Elements(torch.utils._python_dispatch.TorchDispatchMode):
        made = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            self.made += sum(x.numel() for x in (out if isinstance(out, tuple | list) else [out]) if torch.is_tensor(x))
            return out

    def elements(lengths: tuple[int, ...]) -> int:
        with Elements() as count:
            problem(reference, lengths).vjp(reference)
        return count.made

    assert elements((256,)) < 2.2 * elements((128,))  # x[i] under autograd makes it 4
    assert elements((1,) * 256) < 2.2 * elements((1,) * 128)


@pytest.mark.parametrize("form", [form for forms in FORMS.values() for form in forms])
def test_groups_have_to_divide(form):
    reference = next(forms[0] for forms in FORMS.values() if form in forms)
    case = problem(reference, (2,))
    three = {**case.inputs, **{name: case.inputs[name][:, :1].expand(-1, 3, -1) for name in "BC"}}
    with pytest.raises(ArgumentError, match="shared evenly by 3 groups"):
        replace(case, inputs=three).run(form)
