"""Whose code computes: by files, by the stack, and by the names of kernels on a GPU."""

import functools
import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

from packproof.adapters import adapt
from packproof.harness.process.execution.provenance.device_kernels import is_of_library
from packproof.harness.process.execution.provenance.ownership import Ownership
from packproof.museum.rogues.answers import calls_the_reference
from packproof.museum.rogues.op import running_sum
from tests.harness.rogues import good

TORCH_FILE = torch.nn.functional.__file__


@pytest.mark.parametrize(
    "function", [good, functools.partial(good, scale=2.0), adapt(good, op="rope")], ids=["plain", "partial", "adapted"]
)
def test_a_kernels_own_code_is_its_package(function: Callable[..., Any]) -> None:
    ownership = Ownership(function)
    assert ownership.owns(__file__)
    assert ownership.owns("/somewhere/else/in/no/package.py")
    assert not ownership.owns(TORCH_FILE)
    assert not ownership.owns(json.__file__)
    assert not ownership.owns(running_sum.__code__.co_filename)
    assert not ownership.owns("/tmp/torchinductor_user/ab/kernel.py")


def test_parts_of_packproof_are_different_authors() -> None:
    ownership = Ownership(calls_the_reference)
    assert ownership.owns(running_sum.__code__.co_filename)
    assert not ownership.owns(sys.modules["packproof.kernels"].__path__[0] + "/rope.py")


def test_a_library_that_is_the_kernel_owns_its_code() -> None:
    assert Ownership(torch.nn.functional.layer_norm).owns(TORCH_FILE)


def reference(frame: list[FrameType]) -> None:
    frame.append(sys._getframe())


def test_a_reference_on_the_stack_is_named_with_the_line_that_calls_it() -> None:
    frames: list[FrameType] = []
    code = reference.__code__
    reference(frames)
    caller = Ownership(good, f"{code.co_filename}:{code.co_firstlineno}").caller(frames[0])
    assert caller.reference == f"{__name__}.reference"
    assert caller.line.startswith("test_ownership.py:")
    assert Ownership(good).caller(frames[0]).reference == ""


@pytest.mark.parametrize(
    ("name", "of_library"),
    [
        ("triton_poi_fused_mul_0", True),
        ("void at::native::vectorized_elementwise_kernel<4>", True),
        ("ampere_sgemm_128x64_tn", True),
        ("nvjet_hsh_128x64", True),
        ("product_kernel", False),
        ("_product_kernel", False),
    ],
)
def test_kernels_of_libraries_are_known_by_name(name: str, *, of_library: bool) -> None:
    assert is_of_library(name) == of_library
