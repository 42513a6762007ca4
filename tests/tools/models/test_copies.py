"""Copies of modules: of one that keeps tensors with a graph, and of one that cannot be copied."""

import threading

import pytest
import torch
from torch import Tensor, nn

from packproof.base.errors import ArgumentError
from packproof.models import check_module
from packproof.models.subjects.copies import copy_module
from tests.tools.models.models import WIDTH, Conv


class KeepsItsOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = Conv(), nn.Linear(WIDTH, WIDTH)
        self.kept = {"scale": [self.linear.weight.exp()]}
        self.register_buffer("norm", self.linear.weight.norm())
        self.y: Tensor = self(torch.ones(1, 3, WIDTH))

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        self.y = self.linear(self.conv(x[0], cu_seqlens))[None]
        return self.y


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])
        setattr(self.layers[0], "lock", threading.Lock())  # noqa: B010


def test_a_module_that_keeps_tensors_with_a_graph_is_copied_without_their_graphs() -> None:
    module = KeepsItsOutput()
    copied = copy_module(module)
    assert isinstance(copied, KeepsItsOutput)
    for mine, its in ((copied.y, module.y), (copied.kept["scale"][0], module.kept["scale"][0])):
        assert torch.equal(mine, its)
        assert mine.data_ptr() != its.data_ptr()
        assert not mine.requires_grad
    assert copied.y.grad_fn is None
    assert module.y.grad_fn is not None
    assert all(parameter.requires_grad for parameter in copied.parameters())


def test_a_module_that_keeps_its_output_is_judged() -> None:
    held = check_module(KeepsItsOutput, inputs=WIDTH, convention="cu_seqlens", mode=("eval", "train"), profile="quick")
    assert {verdict.status for verdict in held} == {"passed"}


def test_what_cannot_be_copied_is_named() -> None:
    text = r"module: layers\.0\.lock, of type lock, cannot be copied \(TypeError: .*; let forward make it, or define"
    with pytest.raises(ArgumentError, match=text):
        copy_module(Locked())
