"""Modes: what is wrong in one alone is detected there, with its name; and what cannot be run is said."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.cond import cond_op

from packproof.harness.report.events import RunFinished, Verdict
from packproof.models.check import check_module, run_module_check
from packproof.models.request import module_request
from packproof.models.subjects.choices import TieBreaker
from packproof.models.subjects.modes import Mode, supported_modes
from tests.in_process import packproof_in
from tests.tools.models.models import WIDTH, Attention, Conv, Hybrid, InContext, MaskedAttention

LAYOUTS = ((5, 7), (1, 1, 30))  # those that are made for a module are many more


def verdicts(module: nn.Module | Callable[[], nn.Module], **options: Any) -> dict[tuple[str, str, str], Verdict]:
    options = {"convention": "cu_seqlens", "profile": "quick", "records": False, **options}
    *_, end = run_module_check(replace(module_request(module, **options), layouts=LAYOUTS))
    assert isinstance(end, RunFinished)
    return {(v.cell.op, v.cell.dtype, v.cell.property): v for v in end.verdicts}


def told_unless(forgets: Callable[[nn.Module, Tensor], bool]) -> nn.Module:
    class Forgetful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention()

        def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
            return self.attention(x[0], None if forgets(self, x) else cu_seqlens)

    return Forgetful()


def failed(found: dict[tuple[str, str, str], Verdict]) -> set[tuple[str, str, str]]:
    return {name for name, verdict in found.items() if verdict.status == "failed"}


MODES = ("eval", "train", "checkpointing")


def test_a_correct_model_passes_in_every_mode() -> None:
    found = verdicts(Hybrid(mixers=[Attention]), modes=MODES)
    assert {v.status for v in found.values()} == {"passed"}
    assert {op for op, _, _ in found} == {"cu_seqlens", "cu_seqlens (train)", "cu_seqlens (checkpointing)"}


def test_a_leak_in_train_mode_alone() -> None:
    found = verdicts(told_unless(lambda module, x: module.training), modes=("eval", "train"), inputs=WIDTH)
    assert {op for op, _, _ in failed(found)} == {"cu_seqlens (train)"}


def test_a_leak_in_one_dtype_alone() -> None:
    model = told_unless(lambda module, x: x.dtype == torch.bfloat16)
    found = verdicts(model, dtypes=("fp32", "bf16"), inputs=WIDTH)
    assert ("cu_seqlens", "bfloat16", "isolation") in failed(found)
    assert ("cu_seqlens", "float32", "isolation") not in failed(found)


def test_boundaries_that_are_gone_when_a_layer_is_computed_again() -> None:
    found = verdicts(InContext(), modes=MODES, convention="seq_idx", inputs=WIDTH)
    assert {op for op, _, _ in failed(found)} == {"seq_idx (checkpointing)"}
    leak = found["seq_idx (checkpointing)", "float32", "isolation"].failure
    assert leak is not None
    assert leak.lengths == (1, 1)
    assert leak.lines[1] == "first module that leaks: layers.1 (Told)"
    assert "it leaks in the backward pass alone: outputs move by no more than rounding" in leak.lines


def test_an_error_of_the_backward_pass_is_a_refusal() -> None:
    class OnlyForward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Any:
            raise NotImplementedError("no backward on this device")

    class Layer(Attention):
        def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:  # type: ignore[override]
            return OnlyForward.apply(super().forward(x[0], cu_seqlens))

    found = verdicts(Layer(), inputs=WIDTH)["cu_seqlens", "float32", "isolation"]
    assert found.status == "inconclusive"
    words = "the module refused: in the backward pass, NotImplementedError: no backward on this device"
    assert found.reason == words


def test_an_operator_of_higher_order_is_called() -> None:
    """As flex attention is one: what looks on at what a model computes must not refuse it."""

    class Layer(Attention):
        def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:  # type: ignore[override]
            y = super().forward(x[0], cu_seqlens)
            return cond_op(torch.tensor(True), lambda y: (y * 2,), lambda y: (y * 3,), (y,))[0]

    request = module_request(Layer(), convention="cu_seqlens", inputs=WIDTH, records=False)
    *_, end = run_module_check(replace(request, layouts=((2, 3),)))  # each call of such an operator traces its branches
    assert isinstance(end, RunFinished)
    assert {v.status for v in end.verdicts} == {"passed"}, end
    with TieBreaker(5):
        assert Layer()(torch.ones(1, 5, WIDTH), torch.tensor([0, 5])).shape == (5, WIDTH)


def test_dropout_is_off_in_train_mode() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.first, self.attention_dropout = Attention(), nn.Dropout(0.5), 0.5

        def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
            y = self.attention(self.first(x[0]), cu_seqlens)
            return nn.functional.dropout(y, self.attention_dropout, self.training)

    assert {v.status for v in verdicts(Dropping(), modes=("train",), inputs=WIDTH).values()} == {"passed"}


class Chosen(Hybrid):
    """Has implementations of attention as a model of transformers has them; eager forgets the boundaries."""

    def __init__(self) -> None:
        super().__init__(mixers=[Conv, Attention])
        self.config = SimpleNamespace(_attn_implementation="sdpa")

    def set_attn_implementation(self, name: str) -> None:
        if name.startswith("flash"):
            raise ImportError(f"{name} is not installed")
        self.config._attn_implementation = name
        told = Chosen.eager if name == "eager" else Chosen.other
        self._told = told

    @staticmethod
    def eager(layer: int, cu_seqlens: Tensor) -> Tensor | None:
        return None if layer == 1 else cu_seqlens

    @staticmethod
    def other(layer: int, cu_seqlens: Tensor) -> Tensor | None:
        return cu_seqlens


def test_a_leak_of_one_attention_alone() -> None:
    found = verdicts(Chosen(), attention=("sdpa", "eager"))
    assert {op for op, _, _ in failed(found)} == {"cu_seqlens (eager)"}
    leak = found["cu_seqlens (eager)", "float32", "isolation"].failure
    assert leak is not None
    assert "first module that leaks: layers.1.mixer (Attention)" in leak.lines


def test_an_attention_that_cannot_be_had_is_not_judged() -> None:
    for model, why in ((Hybrid(), "the module lets no attention be chosen"), (Chosen(), "is not installed")):
        found = verdicts(model, attention=("flash_attention_2",))
        assert {v.status for v in found.values()} == {"inconclusive"}
        assert all(why in v.reason for v in found.values())


def test_the_matrix_has_what_the_module_admits_and_says_what_not() -> None:
    modes, notes = supported_modes(Chosen())
    plain, compiled = [str(m) for m in modes if not m.compiled], [str(m) for m in modes if m.compiled]
    assert plain == [
        *("", "train", "checkpointing", "selective", "reentrant", "accumulation", "autocast", "frozen"),
        *("eager", "eager, train", "eager, checkpointing"),
        *("flex_attention", "flex_attention, train", "flex_attention, checkpointing"),
    ]
    assert compiled == ["train, compiled", "eager, train, compiled", "flex_attention, train, compiled"]
    assert "flash_attention_2: not run: ImportError: flash_attention_2 is not installed" in notes
    assert notes[-1].startswith(("PyTorch's fallbacks ran", "with "))


@pytest.mark.proof
def test_what_the_matrix_cannot_run_does_not_count() -> None:
    class Untrainable(Hybrid):
        def forward(self, input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
            if self.training:
                raise RuntimeError("for inference only")
            return super().forward(input_ids, cu_seqlens)

    held = check_module(Untrainable(mixers=[Attention]), convention="cu_seqlens", matrix=True, profile="quick")
    found = {(v.cell.op, v.status) for v in held}
    assert ("cu_seqlens", "passed") in found
    assert ("cu_seqlens (train)", "skipped") in found
    assert {v.cell.dtype for v in held} == {"float32", "bfloat16"}


class Masked(nn.Module):
    def __init__(self, *, forgets: bool) -> None:
        super().__init__()
        self.attention, self._forgets = MaskedAttention(), forgets

    def forward(self, x: Tensor, seq_idx: Tensor) -> Tensor:
        lost = self._forgets and torch.compiler.is_compiling()
        return self.attention(x[0], torch.zeros_like(seq_idx[0]) if lost else seq_idx[0])


@pytest.mark.proof  # it compiles for a minute
@pytest.mark.parametrize("forgets", [False, True])
def test_a_leak_of_the_compiled_model_alone(forgets: bool) -> None:
    plain, compiled = (
        verdicts(Masked(forgets=forgets), convention="seq_idx", inputs=WIDTH, compiled=each) for each in (False, True)
    )
    assert {v.status for v in plain.values()} == {"passed"}
    isolation = compiled["seq_idx (compiled)", "float32", "isolation"]
    if not forgets:
        assert {v.status for v in compiled.values()} == {"passed"}
    else:
        assert isolation.failure is not None
        assert isolation.failure.lengths == (1, 1)
        assert "uncompiled it does not leak" in isolation.failure.lines


FALLBACK = """
import torch
try:
    import causal_conv1d as fast
except ImportError:
    fast = None

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(4, 4)

    def forward(self, x, cu_seqlens):
        lengths = cu_seqlens.diff().tolist() if fast else [x.shape[1]]
        return self.out(torch.cat([part.cumsum(0) for part in x[0].split(lengths)]))[None]
"""


@pytest.mark.proof
def test_a_leak_of_the_fallback_alone(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text(FALLBACK)
    (tmp_path / "causal_conv1d.py").write_text("")
    line = ["model", "layers.py:Layer", "--inputs", "4", "--convention", "cu_seqlens", "--profile", "quick"]
    done = packproof_in(tmp_path, *line)
    assert done.returncode == 0, done.stderr
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", "packproof", *line, "--without-kernels"]
    fallback = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert fallback.returncode == 1, fallback.stderr
    assert "FAILED  isolation" in fallback.stdout


def test_a_mode_is_what_its_file_has() -> None:
    assert Mode.from_json({"attention": "", "train": True, "checkpointing": False, "compiled": False}) == Mode(
        train=True
    )
