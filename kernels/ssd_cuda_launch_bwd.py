"""The kernels in CUDA C++ of SSD's backward pass, where they take the place of those in Triton: see ssd_bwd.cu.

Lists of pieces, gradients of states at the ends of segments and what is short stay with Triton: see ssd_launch_bwd.py.
"""

# mypy: allow-untyped-calls

from typing import Any

import torch
from torch import Tensor

from packproof.kernels import cuda
from packproof.kernels.ssd_cuda_launch import HopperPass, mapped, multiprocessors
from packproof.kernels.ssd_launch import CarriedStates, SsdProblem, ends_shape
from packproof.kernels.ssd_tiles import CHUNK

_TILE = (64, 64)  # channels, states


class HopperBackward(HopperPass):
    """The launches of one call without a gate."""

    source = "ssd_bwd.cu"

    def __init__(self, problem: SsdProblem, dy: Tensor, *inputs: Any) -> None:
        """inputs: those of `HopperPass`."""
        super().__init__(*inputs)
        self.problem, self.dx = problem, dy.new_empty(dy.shape)
        dy = mapped(dy)
        self.arguments |= {"dy": dy, "dx": self.dx, "y": self.dx, "dy_stride": dy.stride(0), "dy_head": dy.stride(1)}
        self.map_tensors("x", "B", "C", "dy", "dx")
        self.prepare()

    def states(self, ends: Tensor) -> Tensor:
        """The states between chunks in bf16, the one at token b in row b // CHUNK. ends: those between segments."""
        count, initial = self.T // CHUNK + 1 if self.T > CHUNK else 0, self.problem.initial
        states = self.dx.new_empty(count, self.H, self.dx.shape[2], self.N)
        if count:
            self.launch(
                "bwd_state", multiprocessors(self.dx.device), segments=self.problem.work.all_segments, ends=ends,
                initial=self.arguments["A"] if initial is None else initial, has_initial=int(initial is not None),
                states_map=self._state_map(states),
            )  # fmt: skip
        return states

    def segment_gradients(self, *, keep_initial: bool) -> CarriedStates:
        """The gradients of states at the starts of segments from zero: what `SsdProblem.find_segment_states` returns.

        keep_initial: also where a sequence starts.
        """
        shape = (self.H, self.dx.shape[2], self.N)
        new = self.arguments["A"].new_empty
        ends, finals = new(ends_shape(self.dx, self.problem.B)), new(self.S if keep_initial else 0, *shape)
        self.launch(
            "bwd_segment", multiprocessors(self.dx.device), segments=self.problem.work.all_segments, dends=ends,
            dinitial=finals, keep_initial=int(keep_initial),
        )  # fmt: skip
        return CarriedStates(ends, finals, new(0, *shape))

    def x_gradient(self, dfinal: Tensor | None, dends: Tensor, dstates: Tensor) -> Tensor:
        """dx of segments that are not short, zero in slack; fills `dstates`, in bf16.

        dfinal, dends: the gradients of states at the ends of sequences and between segments.
        """
        n_finals = 0 if dfinal is None else self.S
        self.remainders = dstates.new_empty(len(dends) + n_finals, self.H, self.dx.shape[2], self.N)
        self.launch(
            "bwd_scan", multiprocessors(self.dx.device), segments=self.problem.work.segments[0], dends=dends,
            dfinal=self.arguments["A"] if dfinal is None else dfinal, has_final=int(dfinal is not None),
            dstates_map=self._state_map(dstates), remainders=self.remainders,
        )  # fmt: skip
        return self.dx

    def chunk_gradients(
        self, states: Tensor, dstates: Tensor, initial: Tensor, dfinal: Tensor, *, has_final: bool, **gradients: Tensor
    ) -> Tensor:
        """Fills `gradients`, parameters of the kernel, for chunks that are not short. The last step.

        states, dstates: between chunks, in bf16.
        initial, dfinal: at the starts and ends of sequences, in bf16; not read if there are none.

        Returns their part of dD (h, p), empty without a D.
        """
        maps = {"states": states, "dstates": dstates, "initial": initial, "dfinal": dfinal}
        maps["remainders"] = self.remainders
        of_chunk = (self.H, self.dx.shape[2]) if self.arguments["has_D"] else (0,)
        dD = self.dx.new_zeros(self.problem.slots, *of_chunk, dtype=torch.float32)
        self.launch(
            "bwd_chunk", multiprocessors(self.dx.device), chunks=self.problem.work.chunks[0],
            has_initial=int(self.problem.initial is not None), has_final=int(has_final), dD=dD, **gradients,
            **{f"{name}_map": self._state_map(tensor) for name, tensor in maps.items()},
        )  # fmt: skip
        dD = dD.sum(0)
        if self.problem.skipped:
            dD += self._short_gradients(**gradients)
        self.arguments.clear()  # and so the memory that the kernels shared
        del self.remainders
        return dD

    def _short_gradients(self, **gradients: Tensor) -> Tensor:
        """dx and `gradients` of sequences that the lists skip. Returns their part of dD."""
        programs = min(2 * multiprocessors(self.dx.device), self.S * self.G)
        dD = self.dx.new_zeros(programs * self.arguments["has_D"], self.H, self.dx.shape[2], dtype=torch.float32)
        self.launch("bwd_short", programs, dD=dD, **gradients)
        return dD.sum(0) if self.arguments["has_D"] else dD.new_zeros(0)

    def _state_map(self, states: Tensor) -> Any:
        """States between chunks as the copy engine reads and writes them. Without any, a tensor that is not used."""
        rows = states if len(states) else self.dx.new_empty(1, self.N)
        return cuda.tensor_map(rows.view(-1, self.N), _TILE, 128)
