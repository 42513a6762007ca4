"""Every op in Triton: its message without the interpreter, its compiled forms, its promises."""

from importlib import import_module
from types import ModuleType

import pytest

from packproof.base.errors import ArgumentError
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import OPS

NAMES = (
    *("attention", "causal_conv1d", "grouped_mm", "linear_attention", "hadamard", "rope", "rope_hadamard"),
    *("selective_scan", "ssd"),
)
MODULES = [import_module(f"packproof.kernels.{name}") for name in NAMES]
pytestmark = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])


def test_without_the_interpreter_a_cpu_tensor_is_refused_with_both_ways_out(module: ModuleType) -> None:
    name = module.__name__.rpartition(".")[2]
    sample = draw(OPS[name], Case((3,), "float32", tuple(OPS[name].sizes[0].items())))
    with pytest.raises(ArgumentError, match=r"on cpu, .* to a GPU, or set TRITON_INTERPRET=1 .*packproof\.refs\.\w+$"):
        getattr(module, name)(**sample.inputs, cu_seqlens=sample.cu_seqlens)


def test_every_compiled_form_has_a_name_and_types_for_all_arguments(module: ModuleType) -> None:
    variants = module.variants()
    assert len({variant.name for variant in variants}) == len(variants)
    for variant in variants:
        assert list(variant.signature) == variant.kernel.arg_names
        assert {a for a, kind in variant.signature.items() if kind == "constexpr"} == set(variant.constexprs)


def test_promises_are_promises(module: ModuleType) -> None:
    assert Promises(**module.PROMISES).independent
    assert Promises(**module.PROMISES | module.INTERPRETED).independent
