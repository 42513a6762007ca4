"""A convention as lines of torch: the kernel gets from them what its adapter gives it, and the op the same results."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from packproof import adapters
from packproof.adapters import NullSlot, Padded, Scaled, Tokens, Tree, WindowBuffer, adapt, mask, natural_log
from packproof.adapters.adapter import Adapter
from packproof.adapters.call_lines import SPREAD, WRITTEN, CallLines
from packproof.adapters.pool_slots import PoolSlots
from packproof.base.errors import UsageError
from packproof.properties.cases import Sample, draw
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.declaration import describe_kernel, parse_declaration
from tests.adapters import kernels, window_kernels
from tests.adapters.cache_kernels import cache_writer
from tests.adapters.conventions import CONVENTIONS, IDS, conv_td
from tests.adapters.draft_kernels import beside_a_pool, convolution, mamba
from tests.adapters.paged_kernels import listed, paged
from tests.adapters.test_pools import causal_conv1d_update
from tests.sweeps import sweep

MOST_TOKENS = 30


POOL = {"states": "conv_state", "state_indices": "conv_state_indices"}
OWN_CODE = "an option folded in"
ADAPTERS: Mapping[str, Callable[[], Adapter]] = {
    **{name: lambda name=name: CONVENTIONS[name].correct for name in CONVENTIONS if name != OWN_CODE},
    **{name: lambda x=x: x for name, x in vars(kernels).items() if isinstance(x, Adapter)},
    "a slot for all drafts": convolution,
    "a slot for each draft": mamba,
    "a buffer of drafts": beside_a_pool,
    "pages by tables": paged,
    "pages by lists": listed,
    "slots in pages": cache_writer,
    "a slot of none": lambda: adapt(
        causal_conv1d_update,
        op="causal_conv1d_update",
        metadata={},
        names=POOL,
        slots=NullSlot(),
        converted={"state_indices": lambda slots: slots.int()},
        in_place=("states",),
        domain="length == 1; slack == 0; 2 <= w <= 4",
    ),
    "drafts in a tree": lambda: replace(kernels.padded, tokens=Tree()),
    "slack is not converted": lambda: adapt(
        conv_td, op="causal_conv1d", metadata=IDS, converted={"x": torch.sigmoid, "y": torch.sigmoid}
    ),
    "outputs and inputs converted": lambda: adapt(
        kernels.padded.target,
        op="causal_conv1d",
        tokens=Padded(),
        metadata={"attention_mask": mask},
        converted={"x": torch.sigmoid, "y": natural_log, "bias": Scaled(0.5), "weight": functional.softplus},
    ),
}


def samples(adapter: Adapter, dtype: str) -> Iterator[Sample]:
    """The first of its golden cases, slack among them where it takes any."""
    declared = parse_declaration(describe_kernel(adapter), "it")
    space = Space(adapter.op, dtype, declared.promises, declared.parameters, domain=declared.domain, mixed=False)
    cases = [case for case in golden_cases(space) if 0 < case.n_tokens <= MOST_TOKENS]
    for case in (*cases[:8], *[case for case in cases[8:] if case.slack][:2]):
        yield draw(adapter.op, case)


def arguments_of(adapter: Adapter, sample: Sample) -> dict[str, Any]:
    """Those that the adapter takes."""
    arguments = {**sample.passed_inputs, **sample.metadata, **sample.options}
    return {n: x for n, x in arguments.items() if n in adapter.__signature__.parameters}


def answer(sample: Sample, arguments: Mapping[str, Any], wrt: Sequence[str], call: Callable[..., Any]) -> list[Tensor]:
    """The outputs of a call, and the gradients by these inputs."""
    leaves = {n: x.clone().requires_grad_(n in wrt) if isinstance(x, Tensor) else x for n, x in arguments.items()}
    outputs = call(**leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    pairs = [(y, sample.cotangents[n]) for n, y in zip(sample.outputs, outputs, strict=True) if y.requires_grad]
    ys, dys = [y for y, _ in pairs], [dy for _, dy in pairs]
    gradients = torch.autograd.grad(ys, [leaves[n] for n in wrt], dys, allow_unused=True) if pairs else ()
    return [*(y.detach() for y in outputs), *(g for g in gradients if g is not None)]


def by_lines(adapter: Adapter, sample: Sample, wrt: Sequence[str], **leaves: Any) -> tuple[Tensor, ...]:
    """The outputs of the call that the lines make."""
    tensors: list[Tensor] = []

    def literal(x: Tensor) -> str:
        tensors.append(x.detach().clone())
        return f"tensors[{len(tensors) - 1}]"

    call = CallLines(adapter, leaves, {n: len(sample.axes[n]) for n in sample.outputs}, wrt, literal)
    scope = {"torch": torch, "functional": functional, "kernel": adapter.function, "tensors": tensors, "nan": torch.nan}
    scope |= {n: leaves[n] for n in call.read_tensors()}
    exec("\n".join([SPREAD, *call.lines("kernel"), *call.output_lines()]), scope)
    return tuple(scope[n] for n in sample.outputs)


def compare(adapter: Adapter, dtype: str, *, gradients: bool) -> int:
    """The number of calls that are the same by the adapter and by its lines."""
    n_same = 0
    for sample in samples(adapter, dtype):
        supported = arguments_of(adapter, sample)
        wrt = [n for n in sample.wrt if n in supported] if gradients else []
        try:
            expected = answer(sample, supported, wrt, adapter)
        except (NotImplementedError, RuntimeError):  # it does not take this call
            continue
        result = answer(sample, supported, wrt, partial(by_lines, adapter, sample, wrt))
        assert len(result) == len(expected)
        assert all(torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0)) for x, y in zip(result, expected, strict=True))
        n_same += 1
    return n_same


@sweep("name", [*ADAPTERS][::3], rest=[*ADAPTERS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_lines_are_the_adapted_call(name: str, dtype: str) -> None:
    assert compare(ADAPTERS[name](), dtype, gradients=True) >= 3


def test_a_conversion_of_its_own_is_written_as_values_where_no_gradient_goes_through_it() -> None:
    adapter = CONVENTIONS[OWN_CODE].correct
    assert compare(adapter, "float32", gradients=False) >= 3
    with pytest.raises(UsageError, match="converted 'q' is folded, which is code"):
        compare(adapter, "float32", gradients=True)


class Reversed(Tokens):
    def to(self, x: Tensor, cu_seqlens: Tensor, outside: float | bool | None = None) -> Tensor:
        return x.flip(0)

    def back(self, y: Tensor, cu_seqlens: Tensor, tokens: int) -> Tensor:
        return y.flip(0)


OFFSETS = {name: make for name, make in kernels.packed.metadata.items() if name != "longest"}


@pytest.mark.parametrize(
    ("adapter", "reason"),
    [
        (replace(kernels.padded, tokens=Reversed()), "tokens=.*Reversed.* moves more than rows, and is code"),
        (window_kernels.chain(), r"slots=WindowBuffer\(.*\) moves more than rows"),
        (replace(kernels.packed, metadata=OFFSETS, given={"longest": object()}), "'longest' is <object .*, which is"),
        (replace(kernels.packed, metadata={**OFFSETS, "longest": lambda *_: {1}}), r"'longest' is \{1\}, which is not"),
    ],
)
def test_what_is_code_is_refused(adapter: Adapter, reason: str) -> None:
    sample = next(samples(adapter, "float32"))
    with pytest.raises(UsageError, match=reason):
        by_lines(adapter, sample, (), **arguments_of(adapter, sample))


def test_a_convention_that_is_packproofs_own_is_written_or_refused() -> None:
    """Each layout of tokens and of slots that packproof has; a new one is written, or named here."""
    layouts = {x for x in vars(adapters).values() if isinstance(x, type) and issubclass(x, Tokens | PoolSlots)}
    assert layouts - {*WRITTEN} == {Tokens, WindowBuffer}
