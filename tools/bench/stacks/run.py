"""Trains stacks in each mode: the loss before the first step is compared, then whole steps are timed.

Every mode must have the loss of one document at a time, token by token, to rounding. The rounding is measured: the
losses of mode "single" in the dtype of the steps, against the same at twice the precision, the exact ones. In the dtype
of the steps a mode may be twice as far from the exact losses; four times as many roundings do that. A state that leaks
from the document before may move a loss by less. So packproof's own stacks run at twice the precision too. There a
distance due to rounding falls with the unit roundoff, from bf16 to tf32 by 8, and a quarter is allowed; a leak stays as
it is. Both distances are taken over all tokens and over the first ones of each document, where a leak arrives first.
"""

# mypy: allow-untyped-calls

import gc
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from packproof import kernels, refs
from packproof.base.environment import environment
from packproof.base.errors import UsageError
from packproof.bench.stacks.documents import Documents, ForwardPass, documents
from packproof.bench.stacks.model import Stack, mamba_ssm_stack, packproof_stack
from packproof.bench.stacks.results import (
    MAX_LOSS_DISTANCE,
    MAX_WIDE_LOSS_DISTANCE,
    StackEvent,
    StacksFinished,
    StacksStarted,
    Trained,
)
from packproof.bench.stacks.shapes import SHAPES

_DTYPES = {"cuda": torch.bfloat16, "cpu": torch.float32}
_WIDER = {torch.bfloat16: torch.float32, torch.float32: torch.float64}
_LEARNING_RATE = 1e-4
_BEGINNING = 16  # predictions of a document that are compared by themselves
_PEER = ("mamba-ssm", "causal-conv1d")


@dataclass(frozen=True)
class StacksRequest:
    """A bench of stacks."""

    models: tuple[str, ...]
    """Names in SHAPES."""
    modes: tuple[str, ...]
    """Names in MODES."""
    steps: int = 3
    capacity: int = 4096
    """The maximum number of rows in a pass."""
    packs: int = 4
    """Packs of a step."""
    device: str = "cuda"
    seed: int = 0


def run_stacks(request: StacksRequest, ops: Any = None) -> Iterator[StackEvent]:
    """Train the requested models, mode by mode. Raises UsageError before the first event if that is impossible.

    ops: the namespace of ops under the blocks, by default the kernels on a GPU, otherwise the references.
    """
    began = time.monotonic()
    if request.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device: torch {torch.__version__} sees no CUDA device here; use --device cpu")
    models = [_Model(name, request, ops or (kernels if request.device == "cuda" else refs)) for name in request.models]
    packages = {name: version(name) for name in _PEER if find_spec(name.replace("-", "_"))}
    dtype = str(_DTYPES[request.device]).removeprefix("torch.")
    lengths = tuple(models[0].documents.lengths)
    machine = environment(request.device)
    yield StacksStarted(machine, packages, lengths, request.capacity, request.steps, dtype, request.seed)
    for model in models:
        yield from model.rows()
    yield StacksFinished(time.monotonic() - began)


class _Model:
    """One model, trained in one mode after the other."""

    def __init__(self, name: str, request: StacksRequest, ops: Any) -> None:
        self.name, self.shape, self.request, self.ops = name, SHAPES[name], request, ops
        self.device, self.dtype = request.device, _DTYPES[request.device]
        self.documents = documents(
            *(request.capacity, request.packs),
            vocabulary=self.shape.vocabulary,
            tiny=self.shape.tiny,
            seed=request.seed,
        )

    def rows(self) -> Iterator[Trained]:
        judge = self._judge()
        for mode in self.request.modes:
            try:
                yield self._row(mode, judge)
            except torch.OutOfMemoryError as error:
                yield Trained(self.name, mode, "too large", str(error).partition("\n")[0])
            except Exception as error:
                traceback.print_exc()
                yield Trained(self.name, mode, "failed", f"{type(error).__name__}: {error}".partition("\n")[0])
            self._free()

    def _judge(self) -> "Judge":
        """A judge with the losses of one document at a time, in the dtype of the steps and at twice the precision."""
        single_losses, exact_losses = self._losses("single"), self._losses("single", wide=True)
        return Judge(single_losses, exact_losses, first_prediction_mask(self.documents).to(self.device))

    def _losses(self, mode: str, *, wide: bool = False) -> Tensor:
        """The loss of each prediction, in the dtype of the steps, or at twice its precision."""
        stack = self._stack(mode)
        stack = stack.to(_WIDER[self.dtype]) if wide else stack
        return losses(stack, self._passes(mode), self.documents.predictions)

    def _stack(self, mode: str) -> Stack:
        stack = packproof_stack(self.shape, self.ops, self.device, self.dtype, self.request.seed)
        return mamba_ssm_stack(self.shape, self.device, self.dtype, stack) if mode == "mamba_ssm" else stack

    def _row(self, mode: str, judge: "Judge") -> Trained:
        row = Trained(self.name, mode, "timed", tokens=sum(self.documents.lengths))
        if mode == "mamba_ssm" and self.shape.block == "mamba":
            return replace(row, status="cannot", reason="mamba-ssm's Mamba takes no boundaries: it cannot run a pack")
        if mode == "mamba_ssm" and not (self.device == "cuda" and find_spec("mamba_ssm")):
            why = "mamba-ssm is not installed" if self.device == "cuda" else "mamba-ssm needs a GPU"
            return replace(row, status="not installed", reason=why)
        narrow = self._losses(mode)
        wide = None if mode == "mamba_ssm" else judge.distance(self._losses(mode, wide=True))
        row = replace(row, loss=float(narrow.mean()), apart=judge.distance(narrow), apart_wide=wide)
        if reason := mismatch_reason(row):
            return replace(row, status="wrong", reason=reason)
        self._free()
        return self._time_steps(row, self._stack(mode), self._passes(mode))

    def _time_steps(self, row: Trained, stack: Stack, passes: Sequence[ForwardPass]) -> Trained:
        """The row with its timed steps. An extra first step compiles the kernels."""
        row = replace(
            row,
            parameters=sum(parameter.numel() for parameter in stack.parameters()),
            passes=len(passes),
            rows=sum(forward_pass.input_ids.numel() for forward_pass in passes),
        )
        step = make_training_step(stack, passes, self.documents.predictions)
        step_losses, seconds = [step()], []
        self._wait()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        for _ in range(self.request.steps):
            start = time.perf_counter()
            step_losses.append(step())
            self._wait()
            seconds.append(time.perf_counter() - start)
        peak = torch.cuda.max_memory_allocated() if self.device == "cuda" else None
        row = replace(row, losses=tuple(map(float, step_losses)), seconds=tuple(seconds), peak=peak)
        if not all(loss < float("inf") for loss in row.losses):
            return replace(row, status="wrong", reason="its loss is not finite", seconds=())
        return row

    def _passes(self, mode: str) -> list[ForwardPass]:
        return [forward_pass.to(self.device) for forward_pass in self.documents.passes(mode)]

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _free(self) -> None:
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()


@dataclass(frozen=True)
class Judge:
    """Compares the losses of a mode with those of one document per pass."""

    single_losses: Tensor
    """(n,), the loss of each prediction with one document per pass, in the dtype of the steps."""
    exact_losses: Tensor
    """(n,), the same at twice the precision."""
    first_predictions: Tensor
    """(n,), whether a prediction is among the first ones of a document."""

    def distance(self, mode_losses: Tensor) -> float:
        """The distance of the losses from the exact ones, in units of the rounding of one document at a time.

        The larger of two values: over all predictions, and over the first ones of documents. NaN where a loss is NaN.
        """
        parts = [(mode_losses - self.exact_losses, self.single_losses - self.exact_losses)]
        parts += [
            (error[self.first_predictions], single_error[self.first_predictions]) for error, single_error in parts
        ]
        ratios = torch.stack(
            [_root_mean_square(error) / _root_mean_square(single_error) for error, single_error in parts]
        )
        return float(ratios.max())


def mismatch_reason(row: Trained) -> str:
    """Why the losses of a mode differ from those of one document at a time, "" if they do not. NaN always differs."""
    for distance, limit in ((row.apart, MAX_LOSS_DISTANCE), (row.apart_wide, MAX_WIDE_LOSS_DISTANCE)):
        if distance is not None and not distance <= limit:
            precision = "" if limit == MAX_LOSS_DISTANCE else " at twice the precision"
            rounding = f"{distance:.3g} x the rounding of one document at a time{precision}, and {limit:g} x is allowed"
            return f"its losses are not those of one document at a time: they differ by {rounding}"
    return ""


def _root_mean_square(x: Tensor) -> Tensor:
    return x.double().square().mean().sqrt()


def first_prediction_mask(step_documents: Documents) -> Tensor:
    """Whether each prediction of a step is among the first ones of its document (n,)."""
    return torch.cat([torch.arange(length - 1) < _BEGINNING for length in step_documents.lengths])


@torch.no_grad()
def losses(stack: Stack, passes: Sequence[ForwardPass], predictions: int) -> Tensor:
    """The loss of each prediction of a step (predictions,), in the order of the documents."""
    result: Tensor | None = None
    for forward_pass in passes:
        pass_losses = stack(forward_pass)
        result = pass_losses.new_full((predictions,), float("nan")) if result is None else result
        result[forward_pass.prediction_indices] = pass_losses
    assert result is not None, "no passes"
    return result


def make_training_step(stack: Stack, passes: Sequence[ForwardPass], predictions: int) -> Callable[[], Tensor]:
    """A function for one step, over all passes and with one update. It returns the mean loss."""
    optimizer = torch.optim.AdamW(stack.parameters(), lr=_LEARNING_RATE, fused=True)

    def step() -> Tensor:
        total = torch.zeros((), device=passes[0].input_ids.device, dtype=torch.float64)
        for forward_pass in passes:
            loss = stack(forward_pass).sum() / predictions
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step
