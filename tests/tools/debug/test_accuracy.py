"""`packproof.accuracy`: a tuner's candidate is judged by the derived budget, in any dtype, at some of its sequences."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import packproof
from packproof import refs
from packproof.base.errors import ArgumentError, InaccurateError, LayoutError, PackproofError, UsageError

X, WEIGHT = torch.randn(8, 3, generator=torch.manual_seed(0)), torch.randn(3, 4, generator=torch.manual_seed(1))
CU_SEQLENS = torch.tensor([0, 3, 8])
THREE: Any = 3  # of no op


def conv_check(dtype: torch.dtype = torch.float32, **options: Any) -> packproof.Accuracy:
    return packproof.accuracy("causal_conv1d", {"x": X.to(dtype), "weight": WEIGHT.to(dtype)}, CU_SEQLENS, **options)


def conv(dtype: torch.dtype = torch.float32, offsets: Tensor = CU_SEQLENS) -> Tensor:
    return refs.causal_conv1d(X.to(dtype), WEIGHT.to(dtype), cu_seqlens=offsets)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_right_result_is_accepted_and_one_of_another_layout_is_not(dtype: torch.dtype) -> None:
    check = conv_check(dtype)
    check(conv(dtype))
    assert not check.accepts(conv(dtype, torch.tensor([0, 8])))
    with pytest.raises(
        InaccurateError, match=r"^causal_conv1d: y: sequence 1, token 0, element \[\d\]: got \S+, reference"
    ):
        check(conv(dtype, torch.tensor([0, 8])))


def test_a_fixed_tolerance_would_decide_otherwise() -> None:
    """1e-2, Helion's default: it takes a leak of 5e-3, and refuses a sum in parts, as a split of K makes it."""
    leak = conv() + torch.where(torch.arange(8)[:, None] == 3, 5e-3, 0.0)
    torch.testing.assert_close(leak, conv(), atol=1e-2, rtol=1e-2)
    assert not conv_check().accepts(leak)

    T, K = 32, 512
    q, k, v = (torch.randn(T, 1, n, generator=torch.manual_seed(n)) for n in (K, K + 1, 8))
    inputs = {"q": q, "k": k[..., :K], "v": v}
    halves = {name: x.bfloat16() for name, x in inputs.items()}
    offsets = torch.tensor([0, T])
    baseline, split = (linear_attention(halves, parts) for parts in (1, 16))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(split, baseline, atol=1e-2, rtol=1e-2)
    check = packproof.accuracy("linear_attention", halves, offsets, options={"scale": 1.0})
    assert check.accepts(baseline)
    assert check.accepts(split)


def linear_attention(inputs: dict[str, Tensor], parts: int) -> Tensor:
    """Causal linear attention of one sequence, with q kᵀ summed in parts."""
    q, k, v = (inputs[name][:, 0].float() for name in ("q", "k", "v"))
    products = [(a @ b.T).bfloat16().float() for a, b in zip(q.chunk(parts, 1), k.chunk(parts, 1), strict=True)]
    scores = torch.stack(products).sum(0)
    return (scores.tril().bfloat16().float() @ v).bfloat16()[:, None]


def test_it_has_the_signature_of_helion() -> None:
    """Helion 1.5 calls `autotune_baseline_accuracy_check_fn(actual, expected)`; an AssertionError is a no."""
    check = conv_check()
    assert list(inspect.signature(check).parameters) == ["actual", "expected"]

    def helion_accepts(check_fn: Callable[[object, object], None], output: object, baseline: object) -> bool:
        try:
            check_fn(output, baseline)
        except AssertionError:
            return False
        return True

    wrong = conv(offsets=torch.tensor([0, 8]))
    assert helion_accepts(check, conv(), wrong)  # a wrong baseline refuses no right candidate
    assert not helion_accepts(check, wrong, wrong)


def test_nan_is_never_accepted() -> None:
    y = conv()
    y[7, 0] = math.nan
    assert not conv_check().accepts(y)


def test_what_a_tuner_passes_is_turned_into_outputs() -> None:
    check = conv_check(outputs=lambda arguments: arguments["y_ptr"])
    assert check.accepts({"y_ptr": conv()})
    with pytest.raises(InaccurateError, match=r"2 values came but y was expected; `outputs` selects them"):
        conv_check()((conv(), conv()))
    with pytest.raises(InaccurateError, match=r"y is bfloat16 \(8, 3\) but float32 \(8, 3\) was expected"):
        conv_check()(conv().bfloat16())
    with pytest.raises(InaccurateError, match="a dict came but y was expected"):
        conv_check()({"y": conv()})


def test_states_are_judged_too() -> None:
    options = {"return_final_states": True}
    check = conv_check(options=options)
    y, states = refs.causal_conv1d(X, WEIGHT, cu_seqlens=CU_SEQLENS, return_final_states=True)
    assert check.accepts((y, states))
    assert not check.accepts((y, states.flip(0)))


def test_long_packs_are_judged_at_their_shortest_and_longest_sequences() -> None:
    lengths = [7, 1, 900, 400, 2, 700]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    x, weight = torch.randn(int(offsets[-1]), 3), WEIGHT
    check = packproof.accuracy("causal_conv1d", {"x": x, "weight": weight}, offsets, max_tokens=1000)
    assert check._selected == [0, 1, 2, 4]
    y = refs.causal_conv1d(x, weight, cu_seqlens=offsets)
    assert check.accepts(y)
    for row, is_judged in ((int(offsets[2]), True), (int(offsets[5]), False)):
        wrong = y.clone()
        wrong[row] += 1
        assert check.accepts(wrong) is not is_judged
    with pytest.raises(InaccurateError, match="sequence 4, token 1, "):
        check(torch.where(torch.arange(len(y))[:, None] == int(offsets[5]) - 1, y + 1, y))


def test_a_reduction_over_the_pack_is_judged_as_a_whole() -> None:
    logits, labels = torch.randn(8, 5), torch.randint(0, 5, (8,))
    inputs = {"logits": logits, "labels": labels}
    check = packproof.accuracy("cross_entropy", inputs, CU_SEQLENS, max_tokens=4)
    loss = refs.cross_entropy(logits, labels, cu_seqlens=CU_SEQLENS)
    assert check.accepts(loss)
    assert not check.accepts(loss * 1.01)


def test_the_default_budget_is_that_of_the_usual_kernels_of_an_op() -> None:
    """A chunked SSD forms decays as differences of sums; a kernel that promises fp32 sums is judged by less."""
    sizes = {"x": (40, 2, 3), "dt": (40, 2), "B": (40, 1, 4), "C": (40, 1, 4)}
    inputs = {name: torch.rand(shape, generator=torch.manual_seed(3)) for name, shape in sizes.items()}
    inputs["A"] = -torch.rand(2)
    usual = packproof.accuracy("ssd", inputs, torch.tensor([0, 40]))
    strict = packproof.accuracy("ssd", inputs, torch.tensor([0, 40]), promises=packproof.Promises(compute="fp32"))
    assert usual.promises.cumsum
    x, dt, A, B, C = (inputs[name] for name in ("x", "dt", "A", "B", "C"))
    y = refs.ssd(x, dt, A, B, C, cu_seqlens=torch.tensor([0, 40]))
    assert usual.accepts(y)
    assert strict.accepts(y)


@pytest.mark.parametrize(
    ("call", "kind", "expected"),
    [
        (lambda: packproof.accuracy("con", {}, CU_SEQLENS), UsageError, "no op is called 'con'"),
        (lambda: packproof.accuracy(THREE, {}, CU_SEQLENS), ArgumentError, "op is 3 but the name of an op"),
        (lambda: packproof.accuracy("causal_conv1d", {"x": X}, CU_SEQLENS), ArgumentError, "input 'weight' is missing"),
        (lambda: conv_check(options={"activatio": "silu"}), ArgumentError, "did you mean 'activation'"),
        (lambda: conv_check(max_tokens=0), ArgumentError, "max_tokens is 0 but a number above 0 was expected"),
        (lambda: conv_check(outputs=3), ArgumentError, "outputs is 3 but a function was expected"),
        (
            lambda: packproof.accuracy("causal_conv1d", {"x": X, "weight": WEIGHT}, torch.tensor([0, 9])),
            LayoutError,
            "cu_seqlens ends at 9",
        ),
    ],
)
def test_a_wrong_call_is_answered(call: Callable[[], Any], kind: type[PackproofError], expected: str) -> None:
    with pytest.raises(kind, match=expected):
        call()
