"""From a call of ssd to launches of its kernels in CUDA C++: which calls they take, and their order."""

# mypy: allow-untyped-calls

from functools import cache
from typing import Any

import torch
from torch import Tensor

from packproof.kernels import cuda
from packproof.kernels.launch import align_rows, architecture, cdiv
from packproof.kernels.sequences import offsets
from packproof.kernels.slack import zero_slack
from packproof.kernels.ssd_launch import ends_shape
from packproof.kernels.ssd_tiles import CHUNK, MULTIPLE, tiles
from packproof.kernels.worklists import n_programs, worklists

_SOURCE = "ssd.cu"
_CHANNELS = 64  # of a head
_STATES = (64, 128)
_HEADS = 2  # of a group in one program
_BOX = (CHUNK, 1, 64)  # tokens, a head or group, channels or states, of one copy
_THREADS = {"prepare": 256, "segment_state": 384, "state_passing": 256, "scan": 384, "short": 256}
_PREPARED_HEADS = 64  # of a program
_SHORT_HEADS = 8  # of a program


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


def shared_bytes(kernel: str, states: int) -> int:
    """Dynamic shared memory of a kernel, with what alignment to 1,024 bytes takes."""
    keys, tile, heads, align = CHUNK * states * 2, CHUNK * 128, _HEADS * CHUNK * 8, 1024
    match kernel:
        case "segment_state":
            stages = 6 * (keys + _HEADS * tile + heads)
            return stages + _HEADS * 2 * CHUNK * 4 + 6 * 32 + align
        case "scan":
            stages = 3 * (2 * keys + _HEADS * tile + 36 * 256 + heads)
            return stages + _HEADS * 3 * tile + heads + 3 * 32 + _HEADS * 8 + align
        case "short":
            return _SHORT_HEADS * tile + align
    return 0


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def _mapped(tensor: Tensor) -> Tensor:
    """The tensor itself if the copy engine can read it, otherwise a copy."""
    aligned = align_rows(tensor, MULTIPLE)
    return aligned.contiguous() if 0 in aligned.stride() else aligned


class HopperForward:
    """One call: the tensors as the kernels read them, and its launches. An absent tensor is another one, unread."""

    def __init__(
        self, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
        bias: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None, softplus: bool, keep_final: bool,
    ) -> None:  # fmt: skip
        (self.T, self.H, _), (_, self.G, self.N), self.S = x.shape, B.shape, len(cu_seqlens) - 1
        self.keep_final, self.cu_seqlens = keep_final, offsets("ssd", cu_seqlens, self.T)
        self.segment = tiles(torch.bfloat16, architecture(x.device)).segment
        self.every_sequence = keep_final or initial_states is not None
        self.work = worklists(
            self.cu_seqlens, self.T, chunk=CHUNK, half=CHUNK, short=0, segment=self.segment,
            every_sequence=self.every_sequence,
        )  # fmt: skip
        self.slots = self.T // CHUNK + self.S
        self.y = x.new_empty(x.shape)
        self.ends = A.new_empty(ends_shape(x, B))
        self.finals = A.new_empty(self.S * keep_final, self.H, _CHANNELS, self.N)
        x, B, C, z = _mapped(x), _mapped(B), _mapped(C), None if z is None else _mapped(z)
        dt, A, gate = dt if dt.stride(1) == 1 else dt.contiguous(), A.contiguous(), x if z is None else z
        forms = macros(self.N, self.segment, softplus, z is not None, D is not None and D.ndim == 2)
        self.kernels = cuda.kernels(_SOURCE, x.device, forms)
        self.arguments: dict[str, Any] = {
            **{"x": x, "dt": dt, "A": A, "B": B, "C": C, "z": gate, "y": self.y},
            **{"D": A if D is None else D.contiguous(), "bias": A if bias is None else bias.contiguous()},
            **{"has_D": int(D is not None), "has_bias": int(bias is not None)},
            **{"initial": A if initial_states is None else initial_states.contiguous()},
            **{"has_initial": int(initial_states is not None), "keep_final": int(keep_final)},
            **{"ends": self.ends, "finals": self.finals, "chunks": self.work.chunks[0], "slots": self.slots},
            **{"H": self.H, "G": self.G, "dt_stride": dt.stride(0)},
            **{"x_stride": x.stride(0), "x_head": x.stride(1), "z_stride": gate.stride(0), "z_head": gate.stride(1)},
            **{"B_stride": B.stride(0), "B_group": B.stride(1), "C_stride": C.stride(0), "C_group": C.stride(1)},
            "similarities": A.new_empty(self.slots, self.G, 36 * 64),
            "decays": A.new_empty(self.slots, self.H, CHUNK * 2),
            "counters": self.cu_seqlens.new_empty(2),
        }

    def launch(self, kernel: str, programs: int, **arguments: Any) -> None:
        """Launch a kernel. arguments: those missing in `self.arguments`."""
        self.kernels.launch(
            f"_ssd_fwd_{kernel}_kernel", programs, _THREADS[kernel], shared_bytes(kernel, self.N),
            self.arguments | arguments,
        )  # fmt: skip

    def map_tensors(self) -> None:
        """Tensors as the copy engine reads and writes them."""
        for name in ("x", "B", "C", "z", "y"):
            is_other = name == "z" and self.arguments["z"] is self.arguments["x"]
            self.arguments[f"{name}_map"] = (
                self.arguments["x_map"] if is_other else cuda.tensor_map(self.arguments[name], _BOX, 128)
            )

    def carry(self) -> None:
        """Find the states between segments, and the final states if they are kept."""
        segments, multiprocessors = self.work.all_segments, _multiprocessors(self.y.device)
        self.launch("segment_state", multiprocessors, segments=segments)
        blocks = self.H * (_CHANNELS * self.N // (4 * _THREADS["state_passing"]))
        self.launch("state_passing", 2 * blocks, segments=segments)

    def run(self) -> tuple[Tensor, Tensor, Tensor]:
        """y, zero in slack; the final states if kept; the states between segments, for backward."""
        if self.T and self.S:
            self.map_tensors()
            parts = self.G + cdiv(self.H, _PREPARED_HEADS)
            self.launch("prepare", n_programs(self.slots * parts))
            if self.T > self.segment or self.keep_final:
                self.carry()
            self.launch("scan", _multiprocessors(self.y.device), segments=self.work.all_segments)
            if not self.every_sequence:
                programs = n_programs(self.S * cdiv(self.H, _SHORT_HEADS))
                self.launch("short", programs, segments=self.work.segments[1])
        elif self.keep_final and self.S:
            self.finals.copy_(self.arguments["initial"]) if self.arguments["has_initial"] else self.finals.zero_()
        zero_slack(self.cu_seqlens, self.y)
        return self.y, self.finals, self.ends
