"""The kernels in CUDA C++ of SSD's backward pass, where they take the place of those in Triton: see ssd_bwd.cu.

Lists of pieces, gradients of states at the ends of segments and what is short stay with Triton: see ssd_launch_bwd.py.
"""

# mypy: allow-untyped-calls

from typing import Any

import torch
from torch import Tensor

from packproof.kernels import cuda
from packproof.kernels.ssd_cuda_launch import HopperPass, mapped, multiprocessors
from packproof.kernels.ssd_launch import SsdProblem
from packproof.kernels.ssd_tiles import CHUNK

_TILE = (64, 64)  # channels, states


class HopperBackward(HopperPass):
    """The launches of one call without a gate."""

    source = "ssd_bwd.cu"

    def __init__(self, problem: SsdProblem, dy: Tensor, *inputs: Any) -> None:
        """inputs: those of `HopperPass`."""
        super().__init__(*inputs)
        self.problem, self.dx = problem, dy.new_empty(dy.shape)
        self.arguments |= {"dy": mapped(dy), "dx": self.dx, "y": self.dx}
        self.map_tensors("x", "B", "C", "dy", "dx")
        self.prepare()

    def x_gradient(self, dfinal: Tensor | None, dends: Tensor, dstates: Tensor) -> Tensor:
        """dx of segments that are not short, zero in slack; fills `dstates`, in bf16.

        dfinal, dends: the gradients of states at the ends of sequences and between segments.
        """
        self.launch(
            "bwd_scan", multiprocessors(self.dx.device), segments=self.problem.work.segments[0], dends=dends,
            dfinal=self.arguments["A"] if dfinal is None else dfinal, has_final=int(dfinal is not None),
            dstates_map=self._state_map(dstates),
        )  # fmt: skip
        return self.dx

    def _state_map(self, states: Tensor) -> Any:
        """States between chunks as the copy engine reads and writes them. Without any, a tensor that is not used."""
        rows = states if len(states) else self.dx.new_empty(1, self.N)
        return cuda.tensor_map(rows.view(-1, self.N), _TILE, 128)
