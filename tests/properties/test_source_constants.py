"""The integers in a kernel's source, however they are written."""

import functools
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from packproof.adapters import adapt
from packproof.base.importing import load_module
from packproof.properties.declarations.declaration import describe_kernel, kernel, parse_declaration
from packproof.properties.declarations.source_constants import source_constants

BLOCK = 64
NAMES = {"table": 3_001}


@dataclass(slots=True)
class Config:
    window: int = 3_002


class Lazy:
    """An object whose code must not run while constants are read."""

    def __getattr__(self, name: str) -> int:
        raise AssertionError(name)

    @property
    def limit(self) -> int:
        raise AssertionError


CONFIG, LAZY = Config(), Lazy()


def helper(x: Any) -> Any:
    return x[:3_003]


class _Function(torch.autograd.Function):
    @staticmethod
    def backward(_ctx: Any, dy: Any) -> Any:
        return dy[:3_004]


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.limit = 3_005

    def forward(self, x: Any) -> Any:
        return x[: self.limit]


class Derived(Module):
    table = 3_014

    def forward(self, x: Any) -> Any:
        return super().forward(x)[: self.table]


def literal(x: Any) -> Any:
    return x[:3_006]


def shift(x: Any) -> Any:
    return x[: 1 << 12]


def exponent(x: Any) -> Any:
    return x[: 1 << 30]


def product(x: Any) -> Any:
    return x[: 64 * BLOCK]


def default(x: Any, *, limit: int = 3_007) -> Any:
    return x[:limit]


def config(x: Any) -> Any:
    settings = CONFIG
    return x[: settings.window]


def config_by_default(x: Any, settings: Any = CONFIG) -> Any:
    return x[: settings.window]


def item(x: Any) -> Any:
    return x[: NAMES["table"]]


def calling(x: Any) -> Any:
    return helper(x)


def differentiated(x: Any) -> Any:
    return _Function.apply(x)


def closure(limit: int) -> Any:
    return lambda x: x[:limit]


def lazy(x: Any) -> Any:
    return x[: LAZY.limit + LAZY.other]


def library(x: Any) -> Any:
    return torch.nn.functional.silu(x)


@pytest.mark.parametrize(
    ("function", "constants"),
    [
        (literal, [3_006]),
        (shift, [4_096]),
        (exponent, []),
        (product, [64, 4_096]),
        (default, [3_007]),
        (config, [3_002]),
        (config_by_default, [3_002]),
        (item, [3_001]),
        (calling, [3_003]),
        (differentiated, [3_004]),
        (closure(3_008), [3_008]),
        (functools.partial(literal), [3_006]),
        (Module(), [3_005]),
        (Module().forward, [3_005]),
        (Derived(), [3_005, 3_014]),
        (lazy, []),
        (library, []),
        (len, []),
    ],
)
def test_an_integer_is_read_however_it_is_written(function: Any, constants: list[int]) -> None:
    assert source_constants(function) == constants


def test_a_declared_kernel_and_an_adapter_have_those_of_their_function() -> None:
    declared = kernel(op="rope")(literal)
    assert source_constants(declared) == [3_006]

    def rope(x: Any, cos: Any, sin: Any, *, cu_seqlens: Any) -> Any:
        return x[:3_009]

    assert 3_009 in source_constants(adapt(rope, op="rope"))


def test_modules_beside_the_kernel_are_read_and_no_others(working_folder: Path) -> None:
    (working_folder / "limits.py").write_text("LIMIT = 3_010\ndef cut(x):\n    return x[:3_011]\n")
    (working_folder / "mine.py").write_text(
        "import argparse, limits\ndef f(x):\n    argparse.ArgumentParser()\n    return limits.cut(x)[:limits.LIMIT]\n"
    )
    try:
        module = load_module(working_folder / "mine.py")
        assert source_constants(module.f) == [3_010, 3_011]
    finally:
        sys.path.remove(str(working_folder))
        sys.modules.pop("limits", None)


def test_source_that_is_gone_leaves_the_compiled_constants() -> None:
    namespace: dict[str, Any] = {}
    exec("def f(x, n=3_012):\n    return x[:3_013 * 2]", namespace)
    assert source_constants(namespace["f"]) == [3_012, 6_026]


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("plain", [4_010]),
        ("autotuned", [4_005, 4_006]),
        ("heuristic", [32, 4_005, 4_006, 4_007, 4_008]),
        ("tuned_heuristic", [4_009]),
    ],
)
def test_triton_kernels_have_those_of_their_launch_and_their_configurations(name: str, constants: list[int]) -> None:
    pytest.importorskip("triton")
    from tests.properties import triton_constants  # noqa: PLC0415  (imports triton)

    expected_constants = sorted([*triton_constants.OF_KERNEL, *constants])
    assert source_constants(getattr(triton_constants, name)) == expected_constants


def test_a_description_is_data_from_an_untrusted_process() -> None:
    description = {**describe_kernel(literal), "constants": [3_006, True, "7", 1.5]}
    assert parse_declaration(description, "mine").constants == (3_006,)


def test_reading_is_quick() -> None:
    start = time.process_time()
    source_constants(torch.nn.functional.scaled_dot_product_attention)
    source_constants(Module())
    assert time.process_time() - start < 1.0


def test_a_narrow_integer_ends_at_a_power_of_two() -> None:
    def rows(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(len(x)).to(torch.int16) + x.to(torch.int64).to(torch.uint8)

    assert source_constants(rows) == [1 << 8, 1 << 15]
