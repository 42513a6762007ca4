"""Where an adapted kernel is found, and what its op is."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

import packproof
from packproof.adapters import Packed, adapt, seq_idx
from packproof.base.errors import UsageError
from packproof.properties.declarations.declaration import custom_op, describe_kernel
from tests.adapters.gated import GATED, Kernel
from tests.in_process import packproof_in

KERNELS = """
import packproof
from packproof.refs import causal_conv1d, seq_idx_from_cu_seqlens


@packproof.kernel(op="causal_conv1d")
def conv(x, weight, bias=None, *, cu_seqlens):
    return causal_conv1d(x.mT, weight, bias, cu_seqlens=cu_seqlens).mT


class Module:
    @staticmethod
    def conv(x, weight, bias=None, *, cu_seqlens):
        return causal_conv1d(x.mT, weight, bias, cu_seqlens=cu_seqlens).mT
"""
ADAPTERS = """
from packproof.adapters import Batched, Packed, adapt

conv = adapt("the_kernels.py:conv", tokens=Packed(axis=-1), slack=False)
wrong = adapt("the_kernels.py:conv", tokens=Packed(), slack=False)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "the_kernels.py").write_text(KERNELS)
    (tmp_path / "inner" / "adapted.py").write_text(ADAPTERS)
    return tmp_path


def check(folder: Path, target: str) -> str:
    options = ("--dtype", "fp32", "--property", "reference", "--profile", "quick", "--device", "cpu")
    return packproof_in(folder, "check", target, *options).stdout


def test_a_file_is_found_beside_the_one_that_names_it_and_the_op_is_the_kernels(folder: Path) -> None:
    assert "every property held, on the kernel's own terms (" in check(folder, "inner/adapted.py:conv")


def test_the_report_on_a_wrong_declaration_names_the_one_that_passes(folder: Path) -> None:
    printed = check(folder, "inner/adapted.py:wrong")
    assert "passes with tokens=Packed(axis=-1), here and in 6 other packs: is that the kernel's" in printed, printed


def test_an_adapter_is_checked_as_its_own_op_alone(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"op is 'rope', but it is an adapter of 'causal_conv1d', .*; leave op out"):
        packproof.check(f"{folder}/inner/adapted.py:conv", op="rope")


def test_a_file_is_looked_for_in_the_current_folder_first(folder: Path) -> None:
    x, weight, offsets = torch.randn(5, 3), torch.randn(3, 2), torch.tensor([0, 2, 5])
    want = packproof.refs.causal_conv1d(x, weight, cu_seqlens=offsets)
    with contextlib.chdir(folder / "inner"):
        adapter = adapt("the_kernels.py:Module.conv", op="causal_conv1d", tokens=Packed(-1))
        assert torch.equal(adapter(x, weight, cu_seqlens=offsets), want)
    assert adapter.title == "the_kernels.py:Module.conv"


def test_two_adapters_of_one_file_run_it_once(folder: Path) -> None:
    target = f"{folder}/inner/the_kernels.py:conv"
    one, other = (adapt(target).function for _ in range(2))
    assert one is other


def test_an_op_of_ones_own_is_inherited() -> None:
    @packproof.kernel(op=GATED)
    def gated(q: Any, k: Any, v: Any, g: Any, beta: Any, *, offsets: Any) -> Any:
        return Kernel()(q, k, v, g, beta, cu_seqlens=offsets)

    adapter = adapt(gated, metadata={"offsets": packproof.adapters.cu_seqlens})
    assert adapter.op is GATED
    assert custom_op(adapter) is GATED
    assert describe_kernel(adapter)["parameters"] == ["q", "k", "v", "g", "beta", "cu_seqlens"]


def test_a_kernel_without_an_op_needs_one() -> None:
    with pytest.raises(UsageError, match="op is None, and the kernel is declared with none; name one: causal_conv1d"):
        adapt(test_an_op_of_ones_own_is_inherited)


def test_positional_only_arguments_are_passed_by_position() -> None:
    def conv(x: torch.Tensor, weight: torch.Tensor, bias: object, ids: torch.Tensor, tile: int = 8, /) -> torch.Tensor:
        assert (bias, tile) == (None, 8)
        return x

    adapter = adapt(conv, op="causal_conv1d", metadata={"ids": seq_idx})
    assert describe_kernel(adapter)["parameters"] == ["x", "weight", "bias", "cu_seqlens"]
    x = torch.randn(5, 3)
    assert adapter(x, torch.randn(3, 2), cu_seqlens=torch.tensor([0, 5])) is x


def test_an_extension_without_a_signature_is_offered_what_is_by_position() -> None:
    adapter = adapt(
        torch.dot,  # a builtin: nothing can be read from it
        op="causal_conv1d",
        metadata={},
        positional=("x", "weight", "bias", "activation"),
    )
    assert describe_kernel(adapter)["parameters"] == ["x", "weight", "bias", "activation", "cu_seqlens"]


def test_an_optional_argument_that_a_kernel_requires_is_none_or_the_plainest_option() -> None:
    seen = []

    def conv(x: Any, weight: Any, bias: Any, initial_states: Any, activation: Any, return_final_states: Any) -> Any:
        seen.append((bias, initial_states, activation, return_final_states))
        return x

    adapter = adapt(conv, op="causal_conv1d", metadata={}, without=("initial_states", "return_final_states"))
    x, weight, offsets = torch.randn(5, 3), torch.randn(3, 2), torch.tensor([0, 5])
    adapter(x, weight, cu_seqlens=offsets)
    adapter(x, weight, activation="silu", cu_seqlens=offsets)
    assert seen == [(None, None, None, False), (None, None, "silu", False)]
    assert describe_kernel(adapter)["parameters"] == ["x", "weight", "bias", "activation", "cu_seqlens"]
