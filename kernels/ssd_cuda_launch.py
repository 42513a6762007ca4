"""From a call of ssd to launches of its kernels in CUDA C++: which calls they take, and their order.

Of the backward pass, lists of segments, states carried between them and what is short stay with Triton: see
ssd_launch_bwd.py.
"""

# mypy: allow-untyped-calls

from collections.abc import Generator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from packproof.kernels import cuda
from packproof.kernels.launch import align_rows, architecture, cdiv
from packproof.kernels.sequences import offsets
from packproof.kernels.ssd_launch import CarriedStates, SsdProblem, ends_shape
from packproof.kernels.ssd_tiles import CHUNK, MULTIPLE, tiles
from packproof.kernels.worklists import n_programs

_SOURCE = "ssd.cu"
_CHANNELS = 64  # of a head
_STATES = (64, 128)
SHORT = 32  # tokens of a sequence that one program takes whole, at most
_HEADS = 2  # of a group in one program
_BOX = (CHUNK, 1, 64)  # tokens, a head or group, channels or states, of one copy
_STATE_BOX = (64, 64)  # channels, states
_THREADS = {"fwd_prepare": 256, "fwd_segment_state": 384, "fwd_state_passing": 256, "fwd_scan": 384, "fwd_short": 256}
_THREADS |= {"bwd_state": 384, "bwd_segment": 384, "bwd_scan": 384, "bwd_chunk": 512, "bwd_short": 256}
_PREPARED_HEADS = 64  # of a program
_SHORT_HEADS = 8  # of a program
_PASSING_SEQUENCES = 16  # at a time, where all have a final state
_TRIANGLE = 36 * 64  # elements of C Bt on and below the diagonal, in blocks of 8 x 8
_SCALES = CHUNK + 4  # of a group in a chunk, after them


def refusal(x: Tensor, B: Tensor) -> str:
    """Why the kernels in CUDA C++ cannot run, "" if they can."""
    heads = x.shape[1] // max(B.shape[1], 1)
    if x.dtype != torch.bfloat16:
        return f"x is {str(x.dtype).removeprefix('torch.')} and it computes in bfloat16"
    if x.shape[2] != _CHANNELS:
        return f"x has {x.shape[2]} channels a head and it takes {_CHANNELS}"
    if B.shape[2] not in _STATES:
        return f"B has {B.shape[2]} states and it takes {' or '.join(map(str, _STATES))}"
    if heads < _HEADS:
        return f"a group has {heads} head and it takes at least {_HEADS}"
    return cuda.missing_hopper(x.device)


@cache
def macros(states: int, segment: int, softplus: bool, gated: bool, of_channels: bool) -> cuda.Macros:
    """The macros of the source."""
    values = {"STATES": states, "SEGMENT": segment, "SOFTPLUS": softplus, "GATED": gated, "D_OF_CHANNELS": of_channels}
    return ("TOKEN", "BF16"), *((name, str(int(value))) for name, value in values.items())


@cache
def shared_bytes(kernel: str, states: int) -> int:
    """Dynamic shared memory of a kernel, with what alignment to 1,024 bytes takes."""
    keys, tile, state, heads = CHUNK * states * 2, CHUNK * 128, _CHANNELS * states * 2, _HEADS * CHUNK * 8
    of_head, deep = tile * _HEADS, states == _STATES[0]  # a smaller state leaves room for another stage
    segments = 4 * (keys + of_head + heads + 32) + 4 * of_head
    sizes = {
        "fwd_segment_state": segments,
        "fwd_scan": 3 * (2 * keys + of_head + 4 * _TRIANGLE + heads + 48 + 4 * _SCALES)
        + 3 * of_head
        + heads
        + _HEADS * 8,
        "fwd_short": _SHORT_HEADS * tile // 2,
        "bwd_short": _SHORT_HEADS * tile + keys,
        "bwd_segment": segments,
        "bwd_state": 4 * (keys + of_head + heads + 32) + _HEADS * 2 * (state + CHUNK * 4),
        "bwd_scan": (2 + deep) * (2 * keys + of_head + 4 * _TRIANGLE + heads + 32)
        + 3 * of_head
        + _HEADS * state
        + heads,
        "bwd_chunk": (3 + deep) * (2 * tile + 2 * state + 1056) + 2 * keys + 3 * tile + state + 56 * CHUNK + 128,
    }
    return sizes[kernel] + 1024 if kernel in sizes else 0


@cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def mapped(tensor: Tensor) -> Tensor:
    """The tensor itself if the copy engine can read it, otherwise a copy."""
    aligned = align_rows(tensor, MULTIPLE)
    return aligned.contiguous() if 0 in aligned.stride() else aligned


class HopperPass:
    """What a pass needs of a call: the tensors as the kernels read them. An absent tensor is another one, unread."""

    source = _SOURCE

    def __init__(
        self, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
        bias: Tensor | None, cu_seqlens: Tensor, softplus: bool,
    ) -> None:  # fmt: skip
        (self.T, self.H, _), (_, self.G, self.N), self.S = x.shape, B.shape, len(cu_seqlens) - 1
        self.segment = tiles(torch.bfloat16, architecture(x.device)).segment
        self.rows, pieces = self.T // CHUNK + self.S, self.T // self.segment + self.S
        self.first_decay = self.rows * self.G * (_TRIANGLE + _SCALES + CHUNK * self.N // 2)  # in `memory`
        x, B, C, z = mapped(x), mapped(B), mapped(C), None if z is None else mapped(z)
        dt, A, gate = dt if dt.stride(1) == 1 else dt.contiguous(), A.contiguous(), x if z is None else z
        forms = macros(self.N, self.segment, softplus, z is not None, D is not None and D.ndim == 2)
        self.kernels = cuda.kernels(self.source, x.device, forms)
        self.arguments: dict[str, Any] = {
            **{"x": x, "dt": dt, "A": A, "B": B, "C": C, "z": gate},
            **{"D": A if D is None else D.contiguous(), "bias": A if bias is None else bias.contiguous()},
            **{"has_D": int(D is not None), "has_bias": int(bias is not None)},
            **{"has_initial": 0, "keep_final": 0, "scans_all": 0},
            **{"T": self.T, "S": self.S, "H": self.H, "G": self.G, "rows": self.rows, "pieces": pieces},
            **{"cu_seqlens": offsets("ssd", cu_seqlens, self.T), "dt_stride": dt.stride(0)},
            **{"x_stride": x.stride(0), "x_head": x.stride(1), "z_stride": gate.stride(0), "z_head": gate.stride(1)},
            **{"B_stride": B.stride(0), "B_group": B.stride(1), "C_stride": C.stride(0), "C_group": C.stride(1)},
            "memory": A.new_empty(self.first_decay + self.rows * self.H * (2 * CHUNK + 1) + 12 * (1 + pieces) + 8),
        }

    def launch(self, kernel: str, programs: int, **arguments: Any) -> None:
        """Launch a kernel. arguments: those that differ from `self.arguments`."""
        self.kernels.launch(
            f"_ssd_{kernel}_kernel",
            programs,
            _THREADS[kernel],
            shared_bytes(kernel, self.N),
            self.arguments | arguments,
        )

    def prepare(self) -> None:
        """What all kernels share. Zeros in slack of y."""
        self.launch("fwd_prepare", n_programs(self.rows * (self.G + cdiv(self.H, _PREPARED_HEADS))))

    def map_tensors(self, *names: str) -> None:
        """Tensors as the copy engine reads and writes them."""
        for name in names:
            is_other = name == "z" and self.arguments["z"] is self.arguments["x"]
            self.arguments[f"{name}_map"] = (
                self.arguments["x_map"] if is_other else cuda.tensor_map(self.arguments[name], _BOX, 128)
            )


class HopperForward(HopperPass):
    """The forward pass.

    scans_all: short sequences too are for the kernel that carries states, since states may enter them.
    """

    def __init__(
        self, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
        bias: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None, softplus: bool, keep_final: bool,
        *, scans_all: bool,
    ) -> None:  # fmt: skip
        super().__init__(x, dt, A, B, C, D, z, bias, cu_seqlens, softplus)
        self.y = x.new_empty(x.shape)
        self.ends = A.new_empty(ends_shape(x, B))
        self.finals = A.new_empty(self.S * keep_final, self.H, _CHANNELS, self.N)
        self.arguments |= {"y": self.y, "ends": self.ends, "initial": self.arguments["A"], "finals": self.finals}
        self.arguments |= {"keep_final": int(keep_final), "scans_all": int(scans_all)}
        self.enter(initial_states)

    def enter(self, initial_states: Tensor | None) -> None:
        """Start sequences from these states instead of zero."""
        if initial_states is not None:
            self.arguments |= {"initial": initial_states.contiguous(), "has_initial": 1}

    def find_segment_states(self) -> None:
        """The states at the ends of segments from zero, and what all kernels share. Zeros in slack."""
        self.map_tensors("x", "B", "z", "y")
        self.prepare()
        if self.T > self.segment or self.arguments["keep_final"]:
            self.launch("fwd_segment_state", multiprocessors(self.y.device))

    def pass_states(self, **arguments: Any) -> None:
        """From them the states between segments, and final states if they are kept."""
        if self.T > self.segment or self.arguments["keep_final"]:
            sequences = min(self.S, _PASSING_SEQUENCES) if self.arguments["keep_final"] else 2
            parts = self.H * (_CHANNELS * self.N // (4 * _THREADS["fwd_state_passing"]))
            self.launch("fwd_state_passing", sequences * parts, **arguments)

    def decay(self) -> Tensor:
        """The product of the decays of all tokens, (h,), for a pack of one sequence without slack."""
        end = self.first_decay + self.rows * self.H * 2 * CHUNK
        chunks = self.arguments["memory"][self.first_decay : end].view(self.rows, self.H, -1, 4)
        decay: Tensor = chunks[: cdiv(self.T, CHUNK), :, -1, 1].sum(0).exp2()
        return decay

    def scan(self) -> Tensor:
        """y, from the states between segments."""
        self.launch("fwd_scan", multiprocessors(self.y.device))
        if not self.arguments["scans_all"]:
            self.launch("fwd_short", n_programs(self.S * cdiv(self.H, _SHORT_HEADS)))
        return self.y

    def run(self) -> tuple[Tensor, Tensor, Tensor]:
        """y, zero in slack; the final states if kept; the states between segments, for backward."""
        if self.T and self.S:
            self.find_segment_states()
            self.pass_states()
            self.scan()
        else:
            self.y.zero_()
            self.finals.copy_(self.arguments["initial"]) if self.arguments["has_initial"] else self.finals.zero_()
        return self.y, self.finals, self.ends


def hopper_over_ranks(
    call: HopperForward, *, leaves: bool
) -> Generator[tuple[Tensor, Tensor] | None, Tensor | None, tuple[Tensor, Tensor]]:
    """The forward pass of one sequence of a pack cut over ranks: see `ssd.forward_over_ranks`.

    call: keeps final states if the sequence leaves the rank.
    """
    call.find_segment_states()
    leaving_state = None
    if leaves:
        own = {"ends": call.ends.clone(), "finals": call.finals.clone()}
        call.pass_states(**own)
        leaving_state = own["finals"], call.decay()
    call.enter((yield leaving_state))
    call.pass_states()
    return call.scan(), call.ends


class HopperBackward(HopperPass):
    """The backward pass, without a gate."""

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
        return cuda.tensor_map(rows.view(-1, self.N), _STATE_BOX, 128)
