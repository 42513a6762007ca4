"""Every convention: a correct kernel passes in values and gradients, an incorrect one fails, and an invalid declaration
is one clear error."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import packproof
from packproof.adapters import Batched, Gaps, Padded, adapt, seq_idx
from packproof.base.errors import ArgumentError, UsageError
from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.events import CellFinished, RunStarted
from packproof.harness.report.failed import CheckFailed
from packproof.properties.declarations.declaration import describe_kernel
from tests.adapters import kernels
from tests.sweeps import sweep

KERNELS = f"{Path(kernels.__file__)}"
CORRECT = {
    "gaps": "bf16",
    "channels_first": "bf16",
    "padded_channels_first": "bf16",
    "own_metadata": "bf16",
    "in_place": "fp32",
}
JUDGED_ELSEWHERE = ("padded", "heads_first", "batched", "packed")  # the first two in test_page.py, the others below


def require_passed(name: str, dtype: str, *properties: str) -> None:
    verdicts = packproof.check(
        f"{KERNELS}:{name}", device="cpu", properties=properties, dtypes=[dtype], profile="quick"
    )
    assert {v.cell.property for v in verdicts if v.status == "passed"} == set(properties)


@sweep("name, dtype", [*CORRECT.items()][2:3], [*CORRECT.items()])
def test_a_correct_kernel_passes_in_its_convention(name: str, dtype: str) -> None:
    require_passed(name, dtype, "reference", "memory", "strides")


@pytest.mark.proof
@pytest.mark.parametrize("name", [*CORRECT, *JUDGED_ELSEWHERE])
def test_every_law_holds_in_each_convention(name: str) -> None:
    laws = ("reference", "packing", "isolation", "permutation", "memory", "strides")
    require_passed(name, CORRECT.get(name, "fp32"), *laws)


@pytest.mark.parametrize(
    ("name", "lengths"), [("leaky_padded", [0, 1]), ("ignores_gaps", [1, 1]), ("wrong_positions", [1, 2])]
)
def test_an_incorrect_kernel_fails_in_its_convention(name: str, lengths: list[int]) -> None:
    with pytest.raises(CheckFailed) as caught:
        packproof.check(f"{KERNELS}:{name}", device="cpu", dtypes=["fp32"], properties=["reference"], profile="quick")
    assert f"lengths {lengths} " in str(caught.value)


@pytest.mark.proof
def test_what_is_not_offered_is_reported_and_does_not_pass() -> None:
    few: dict[str, Any] = {"properties": ("carry", "reference"), "dtypes": ("float32",), "profile": "quick"}
    events = list(run_check(CheckRequest(f"{KERNELS}:batched", **few)))
    [started] = [e for e in events if isinstance(e, RunStarted)]
    verdicts = {e.verdict.cell.property: e.verdict for e in events if isinstance(e, CellFinished)}
    assert any("not tested for: initial_states, return_final_states" in note for note in started.notes)
    assert (verdicts["carry"].status, verdicts["reference"].status) == ("skipped", "passed")
    assert verdicts["carry"].reason == "the kernel does not take initial_states, return_final_states"


@sweep("name, domain", [("channels_first", ("2 <= w <= 4", "d % 8 == 0"))], [("packed", ("k == v",))])
def test_what_is_declined_is_found_and_reported(name: str, domain: tuple[str, ...]) -> None:
    """By `declines` and by the kernel's own error."""
    few: dict[str, Any] = {"dtypes": ["fp32"], "properties": ["reference"], "profile": "quick"}
    [verdict] = packproof.check(f"{KERNELS}:{name}", device="cpu", **few)
    assert verdict.judged == verdict.examples > 10
    assert set(verdict.domain) <= set(domain)
    assert verdict.limits[0].count > 0


LENGTHS = ((3, 0, 5, 1), (0,), (), (4, 4))


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("slack", [0, 2])
@pytest.mark.parametrize(
    ("tokens", "shape"),
    [
        (Batched(), lambda t, s, longest: (1, t, 2, 3)),
        (Batched(axis=2), lambda t, s, longest: (1, 2, t, 3)),
        (Batched(axis=-1), lambda t, s, longest: (1, 2, 3, t)),
        (Padded(), lambda t, s, longest: (s, longest, 2, 3)),
        (Padded(axis=2), lambda t, s, longest: (s, 2, longest, 3)),
        (Padded(axis=-1), lambda t, s, longest: (s, 2, 3, longest)),
        (Gaps(4), None),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_there_and_back(
    tokens: Any, shape: Callable[[int, int, int], tuple[int, ...]] | None, lengths: tuple[int, ...], slack: int
) -> None:
    layout = packproof.PackLayout(lengths, slack)
    cu_seqlens = layout.cu_seqlens()
    x = torch.randn(layout.total_tokens, 2, 3, requires_grad=True)
    there = tokens.to(x, cu_seqlens)
    if shape:
        assert there.shape == shape(layout.total_tokens, len(lengths), layout.max_seqlen)
    else:
        assert len(there) == sum(-(-n // 4) * 4 for n in lengths)
    back = tokens.back(2 * there, cu_seqlens, len(x))
    n = layout.total_tokens if isinstance(tokens, Batched) else layout.n_tokens
    assert back[:n].equal(2 * x[:n])
    assert not back[n:].any()
    [gradient] = torch.autograd.grad(back.sum(), x)
    assert gradient[:n].eq(2).all()
    assert not gradient[n:].any()


def test_channels_first_is_channel_last_in_memory() -> None:
    assert Batched(axis=-1).to(torch.zeros(5, 3), torch.tensor([0, 5])).stride(1) == 1


def test_a_batch_that_is_too_large_after_padding_is_declined() -> None:
    x = torch.zeros(1, 2**15).expand(2**10 + 2**8, -1)
    cu_seqlens = torch.cat([torch.arange(2**8), torch.tensor([2**10 + 2**8])])
    with pytest.raises(NotImplementedError, match="a padded batch of 256 x 1025 tokens"):
        Padded().to(x, cu_seqlens)


def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, seq_idx: Tensor, chunk: int) -> Tensor:
    return x


def square(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return x[0] if x.ndim == 3 else x[:1]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"names": {"y": "out"}}, "names has 'y', expected inputs and options of the op: x, weight, bias"),
        ({"without": ("weight",)}, "without has 'weight', expected optional arguments of the op: bias"),
        ({"in_place": ("weight",)}, "in_place has 'weight', expected inputs along the tokens: x"),
        ({"dtypes": ("f32",)}, "dtypes has 'f32', expected a list of fp64, fp32, bf16, fp16"),
        ({"op": "conv"}, "op: 'conv' is not known; there are causal_conv1d"),
        ({"tokens": "padded"}, "tokens is 'padded', expected Packed(), Batched(), Padded(), Gaps()"),
        ({"metadata": {"seq_idx": 3}}, "metadata 'seq_idx' is 3, expected a function of cu_seqlens"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_an_invalid_declaration_is_one_line(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        adapt(conv, **{"op": "causal_conv1d", **declared})


@pytest.mark.parametrize(
    ("convention", "number", "message"),
    [
        (Batched, 4, "Batched: axis is 4, expected 1 (tokens first), 2 (heads first) or -1 (channels first)"),
        (Gaps, 0, "Gaps: multiple is 0, expected a number of rows, at least 1"),
    ],
)
def test_an_invalid_convention_is_one_line(convention: Any, number: int, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        convention(number)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            {"metadata": {"seq_idx": seq_idx}},
            "the kernel requires 'chunk', which is not passed to it; declare it in names",
        ),
        (
            {"metadata": {"position_ids": seq_idx}, "given": {"chunk": 4}},
            "the adapter passes 'position_ids' (in metadata), but the kernel takes (x, weight, bias, seq_idx, chunk)",
        ),
        (
            {"metadata": {"seq_idx": seq_idx}, "given": {"chunk": 4, "block": 2}},
            "the adapter passes 'block' (in given), but the kernel takes",
        ),
        (
            {"metadata": {"seq_idx": seq_idx}, "given": {"chunk": 4}, "names": {"weight": "filter"}},
            "the adapter passes 'filter' (the op's weight), but the kernel takes",
        ),
    ],
    ids=["required", "metadata", "given", "names"],
)
def test_a_declaration_that_does_not_fit_the_kernel_is_one_line(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        describe_kernel(adapt(conv, op="causal_conv1d", **declared))


@pytest.mark.parametrize("target", ["nowhere.at_all:conv", "math:conv", "conv"])
def test_a_kernel_that_cannot_be_imported_is_one_line(target: str) -> None:
    with pytest.raises(UsageError, match=r"cannot be imported here|expected a function or package\.module:function"):
        describe_kernel(adapt(target, op="causal_conv1d"))


def test_an_output_that_is_not_laid_out_as_declared_is_named() -> None:
    adapter = adapt(square, op="causal_conv1d", tokens=Batched(), metadata={})
    x, cu_seqlens = torch.zeros(5, 3), torch.tensor([0, 2, 5])
    with pytest.raises(ArgumentError, match=r"returned \(5, 3\), expected 1 along axis 0 and 5 along axis 1"):
        adapter(x, torch.zeros(3, 2), cu_seqlens=cu_seqlens)


def test_a_kernel_with_var_keywords_is_offered_only_what_names_lists() -> None:
    def everything(*tensors: Tensor, **options: Any) -> Tensor:
        return dict(**options)["x"]  # read by names alone, these would be its arguments

    assert describe_kernel(adapt(everything, op="causal_conv1d"))["parameters"] == ["x", "weight", "cu_seqlens"]
    named = adapt(everything, op="causal_conv1d", names={"activation": "act"})
    assert describe_kernel(named)["parameters"] == ["x", "weight", "activation", "cu_seqlens"]


def test_the_kernel_is_compiled_and_the_layout_of_its_tensors_is_not() -> None:
    seen = []

    def conv(x: Tensor, weight: Tensor) -> Tensor:
        seen.append(torch.compiler.is_compiling())
        return x * weight[:, -1:]

    def lengths(cu_seqlens: Tensor, tokens: int) -> None:
        seen.append(torch.compiler.is_compiling())

    adapted = adapt(
        lambda x, weight, made: conv(x, weight), op="causal_conv1d", tokens=Batched(axis=-1), metadata={"made": lengths}
    )
    x, weight, cu_seqlens = torch.ones(3, 2), torch.full((2, 2), 3.0), torch.tensor([0, 1, 3])
    assert torch.equal(adapted.with_compiled_kernel("aot_eager")(x, weight, cu_seqlens=cu_seqlens), 3 * x)
    assert seen == [False, True]
