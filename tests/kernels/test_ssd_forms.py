"""What calls of ssd launch on a GPU is among the forms that the compile tier compiles, whatever their sizes."""

from collections.abc import Mapping
from importlib import import_module
from itertools import accumulate, product
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof.kernels import slack, ssd_launch, ssd_tiles, worklists
from packproof.kernels.launch import ARCHITECTURES, POINTERS
from packproof.kernels.variant import Variant

ssd = import_module("packproof.kernels.ssd")
INT32 = {torch.int32: "*i32"}
FEW, MANY = [1], [1, 20, 50, 64, 2100]
Form = tuple[Any, ...]


def listed(variant: Variant) -> Form:
    special = frozenset(p.name for p in variant.kernel.params if p.name in variant.divisible)
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages, **variant.options}
    return (
        variant.kernel.__name__, tuple(variant.signature.items()), tuple(sorted(variant.constexprs.items())), special,
        tuple(sorted(options.items())),
    )  # fmt: skip


def launched(kernel: Any, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> Form:
    """The form that Triton compiles: it specialises what is a multiple of 16, and integers that are 1."""
    values = {p.name: arguments[p.name] for p in kernel.params}
    constexprs = {p.name: values[p.name] for p in kernel.params if p.is_constexpr}
    types, special = {}, set()
    for p in kernel.params:
        value = values[p.name]
        types[p.name] = "constexpr" if p.name in constexprs else type_of(value)
        if p.name in constexprs or p.do_not_specialize:
            continue
        at = value.data_ptr() if isinstance(value, Tensor) else value
        assert isinstance(value, Tensor) or value != 1, f"{kernel.__name__}: {p.name} is 1"
        special |= {p.name} if at % 16 == 0 else set()
    return (
        kernel.__name__, tuple(types.items()), tuple(sorted(constexprs.items())), frozenset(special),
        tuple(sorted(({"num_stages": 2} | options).items())),
    )  # fmt: skip


def type_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return (POINTERS | INT32)[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


@pytest.fixture
def forms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> set[Form]:
    """The forms that calls launch on the architecture, as they come; nothing is computed."""
    found: set[Form] = set()

    def record(kernel: Any, grid: tuple[int, ...], arguments: Mapping[str, Any], **options: Any) -> None:
        found.add(launched(kernel, arguments, options))

    for module in (ssd_launch, worklists, slack):
        monkeypatch.setattr(module, "launch", record)
    monkeypatch.setattr(ssd_launch, "architecture", lambda device: request.param)
    monkeypatch.setattr(ssd, "require_device", lambda *arguments: None)
    return found


def inputs(lengths: list[int], p: int, n: int, dtype: torch.dtype, *, every: bool) -> dict[str, Tensor]:
    tokens = {"x": (3, p), "z": (3, p), "dt": (3,), "B": (1, n), "C": (1, n)}
    found = {name: torch.zeros(sum(lengths), *shape, dtype=dtype) for name, shape in tokens.items()}
    found |= {name: torch.zeros(3) for name in ("A", "D", "dt_bias")}
    found["initial_states"] = torch.zeros(len(lengths), 3, p, n)
    chosen = found if every else ("x", "dt", "A", "B", "C")
    return {name: found[name].requires_grad_() for name in chosen}


@pytest.mark.parametrize("forms", ARCHITECTURES, indirect=True)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_what_calls_launch_is_listed(request: pytest.FixtureRequest, forms: set[Form], dtype: torch.dtype) -> None:
    for lengths, (p, n), every in product((FEW, MANY), ((3, 5), (64, 128), (128, 128)), (False, True)):
        given = inputs(lengths, p, n, dtype, every=every)
        offsets = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        returned = ssd.ssd(**given, cu_seqlens=offsets, return_final_states=every)
        outputs = returned if every else (returned,)
        torch.autograd.grad(outputs, tuple(given.values()), [torch.zeros_like(y) for y in outputs])
    targets = set(ARCHITECTURES[request.node.callspec.params["forms"]])
    known = {listed(variant) for variant in ssd_tiles.variants() if not variant.targets or targets & {*variant.targets}}
    assert [form for form in forms if form not in known] == []
    assert len({form[0] for form in forms}) > 8
