"""From a call of selective_scan to launches of its kernels: layouts, tiles, their order, and their compiled forms."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from packproof.kernels import cuda, slack
from packproof.kernels.launch import (
    ARCHITECTURES,
    POINTERS,
    architecture,
    cdiv,
    launch,
    pad_last_axes,
    runs_interpreted,
    specializations,
)
from packproof.kernels.selective_scan_bwd import (
    _selective_scan_bwd_chunk_state_kernel,
    _selective_scan_bwd_kernel,
    _selective_scan_bwd_reduce_kernel,
    _selective_scan_bwd_state_passing_kernel,
)
from packproof.kernels.selective_scan_fwd import (
    _selective_scan_fwd_chunk_state_kernel,
    _selective_scan_fwd_kernel,
    _selective_scan_fwd_state_passing_kernel,
)
from packproof.kernels.sequences import offsets
from packproof.kernels.slack import zero_slack
from packproof.kernels.variant import Variant

OP = "selective_scan"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_ALIGNED = 16
_SOURCE = "selective_scan.cu"


class _Tiles(NamedTuple):
    """Constants of the kernels."""

    ends: dict[str, int]
    """Of the kernels of chunk states and state passing."""
    scan: dict[str, int]
    """Of the forward kernel."""
    back: dict[str, int]
    """Of the backward kernel."""
    BLOCK_N: int  # states held in registers; more of them take several launches
    TILE: int
    """Channels of a tile of states in memory."""
    elements: int
    """Of a program of state passing and of the sums over parts."""

    @property
    def states(self) -> dict[str, int]:
        return {"BLOCK_N": self.BLOCK_N, "TILE": self.TILE}

    @property
    def state(self) -> tuple[int, int]:
        return self.BLOCK_N, self.TILE


_TILES = _Tiles(
    ends={"SIZE": 1024, "BLOCK_D": 128},
    scan={"WINDOW": 256, "SIZE": 1024, "BLOCK_D": 128},
    back={"WINDOW": 1024, "SIZE": 1024, "KEEP": 32, "TOKENS": 2, "BLOCK_D": 32},
    BLOCK_N=16,
    TILE=32,
    elements=256,
)
_TILES_NATIVE = _TILES._replace(back=_TILES.back | {"WINDOW": 256, "BLOCK_D": 128})  # of selective_scan.cu
_TILES_INTERPRETED = _Tiles(  # small: tests need several of each
    ends={"SIZE": 8, "BLOCK_D": 4},
    scan={"WINDOW": 8, "SIZE": 8, "BLOCK_D": 4},
    back={"WINDOW": 8, "SIZE": 8, "KEEP": 4, "TOKENS": 2, "BLOCK_D": 4},
    BLOCK_N=8,
    TILE=2,
    elements=64,
)
_TOKENS = ("u", "delta", "z", "dy", "y", "du", "ddelta", "dz", "dB", "dC")
_STATES = (
    *("A", "B", "C", "skip", "bias", "initial", "kept", "boundaries", "final_states", "partial", "ends", "sums"),
    *("backs", "dinitial", "dfinal", "parts", "dA", "dD", "dbias"),
)


def launch_options(name: str, architecture: str, tokens: torch.dtype) -> dict[str, int]:
    """Warps, and registers: with fewer registers more programs run and hide latency, as long as nothing is spilled."""
    options = {"num_warps": {"bwd-whole": 1, "bwd-split": 2}.get(name, 4)}
    if architecture == "amd":  # Triton has maxnreg for NVIDIA alone
        return options
    if name == "fwd-whole":
        options["maxnreg"] = 112 if tokens == torch.float16 else 80 if architecture == "hopper" else 96
    if name == "fwd-split":
        options["maxnreg"] = 128
    if name == "bwd_chunk_state":
        options["maxnreg"] = 80
    return options


@cache
def macros(tokens: torch.dtype, gated: bool, softplus: bool) -> cuda.Macros:
    """The macros of the source in CUDA C++."""
    values = {
        **{"TOKEN": cuda.TOKENS[tokens], "GATED": int(gated), "SOFTPLUS": int(softplus)},
        **{name: _TILES_NATIVE.back[name] for name in ("WINDOW", "SIZE", "KEEP")},
        **{"CHUNK_STATE_BLOCKS": 5, "FORWARD_BLOCKS": 4, "BACKWARD_BLOCKS": 3},
    }
    return tuple((name, str(value)) for name, value in values.items())


def shared_bytes(kernel: str) -> int:
    """Dynamic shared memory of a kernel in CUDA C++: rows of B and C, and states before each pair of tokens."""
    if kernel != "_selective_scan_bwd_kernel":
        return 0
    n, back = _TILES_NATIVE.BLOCK_N, _TILES_NATIVE.back
    return 4 * (back["KEEP"] * 2 * n + 8 * back["BLOCK_D"] * n)


def refusal(device: torch.device, n: int) -> str:
    """Why the kernels in CUDA C++ cannot run, "" if they can."""
    if n > _TILES_NATIVE.BLOCK_N:
        return f"A has {n} states and it holds {_TILES_NATIVE.BLOCK_N}"
    return cuda.missing_requirement(device)


def _tiles() -> _Tiles:
    return _TILES_INTERPRETED if runs_interpreted(_selective_scan_fwd_kernel) else _TILES


def dense_rows(tensor: Tensor) -> Tensor:
    """The tensor itself if its channels are dense and a row's offset fits 32 bits, otherwise a contiguous copy."""
    return tensor if tensor.stride(1) == 1 and tensor.stride(0) < 2**31 else tensor.contiguous()


def _groups(tensor: Tensor, n_states: int) -> Tensor:
    """B or C as (t, g, n) in fp32, zero-padded to n_states, with rows aligned for vector loads. Small next to u."""
    tensor = (tensor[:, None] if tensor.ndim == 2 else tensor).float()
    n_zeros, strides = n_states - tensor.shape[2], tensor.stride()
    fits = strides[2] == 1 and not n_zeros and strides[0] < 2**31 and not any(s % _ALIGNED for s in strides[:2])
    if fits and tensor.data_ptr() % _ALIGNED == 0:
        return tensor
    return pad_last_axes(tensor, n_zeros).clone(memory_format=torch.contiguous_format)


def _padded_sizes(u: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[int, int, int]:
    """Groups, states, and columns of all groups, padded to whole tiles."""
    tiles, groups = _tiles(), max(x.shape[1] if x.ndim == 3 else 1 for x in (B, C))
    n_states = max(cdiv(A.shape[1], tiles.BLOCK_N), 1) * tiles.BLOCK_N
    return groups, n_states, groups * cdiv(u.shape[1] // groups, tiles.TILE) * tiles.TILE


def kept_shape(u: Tensor, A: Tensor, B: Tensor, C: Tensor, keep_states: bool) -> tuple[int, int]:
    """The shape of the states kept by forward for backward."""
    _, n_states, width = _padded_sizes(u, A, B, C)
    return len(u) // _tiles().back["KEEP"] if keep_states else 0, n_states * width


class PieceStates(NamedTuple):
    """States at the ends of pieces from a zero state, or their gradients, one row per boundary."""

    states: Tensor
    """End states of pieces, or the gradients of the states before them."""
    sums: Tensor
    """Sums of Δ of pieces."""

    def with_copied_states(self) -> "PieceStates":
        return PieceStates(self.states.clone(), self.sums)


class ScanProblem:
    """One call: the tensors as the kernels read them, and its launches. An absent tensor is another one, unread."""

    def __init__(
        self, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
        bias: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None, softplus: bool, native: bool,
    ) -> None:  # fmt: skip
        (self.T, self.D), self.n, self.S = u.shape, A.shape[1], len(cu_seqlens) - 1
        self.G, self.N, self.width = _padded_sizes(u, A, B, C)
        self.has_mixed_groups = B.ndim != C.ndim
        self.tiles, self.architecture = _TILES_NATIVE if native else _tiles(), architecture(u.device)
        self.form = "split" if self.N > self.tiles.BLOCK_N else "whole"
        self.u, self.A, self.cu_seqlens = dense_rows(u), self.tiled(A[None]), offsets(OP, cu_seqlens, self.T)
        self.has_z, self.has_initial = int(z is not None), int(initial_states is not None)
        self.native = cuda.kernels(_SOURCE, u.device, macros(u.dtype, z is not None, softplus)) if native else None
        self.state_blocks = range(0, self.N, self.tiles.BLOCK_N)
        self.split = len(self.state_blocks) > 1
        self.n_partial = self.T * self.split
        delta, z, (B, C) = dense_rows(delta), u if z is None else dense_rows(z), (_groups(x, self.N) for x in (B, C))
        self.arguments: dict[str, Any] = {
            **{"u": self.u, "delta": delta, "A": self.A, "B": B, "C": C, "z": z, "cu_seqlens": self.cu_seqlens},
            **{"skip": self.A if D is None else D.contiguous(), "bias": self.A if bias is None else bias.contiguous()},
            "initial": self.A if initial_states is None else self.tiled(initial_states),
            **{"T": self.T, "S": self.S, "D": self.D, "G": self.G, "N": self.N, "width": self.width},
            **{"u_stride": self.u.stride(0), "delta_stride": delta.stride(0), "z_stride": z.stride(0)},
            **{"B_stride": B.stride(0), "B_group": B.stride(1) if B.shape[1] > 1 else 0},
            **{"C_stride": C.stride(0), "C_group": C.stride(1) if C.shape[1] > 1 else 0},
            **{"has_skip": int(D is not None), "has_bias": int(bias is not None), "use_softplus": int(softplus)},
            **{"has_z": self.has_z, "has_initial": self.has_initial, "SPLIT": self.split, **self.tiles.states},
        }

    def tiled(self, states: Tensor) -> Tensor:
        """States (s, d, n) in the layout of the kernels: (s, N * width), as tiles [BLOCK_N states, TILE channels].

        The n states are padded with zeros to N, and the channels of each group to whole tiles, `width` in all.
        """
        s, (n_block, tile), per_group = len(states), self.tiles.state, self.D // self.G
        states = states.reshape(s, self.G, per_group, self.n)
        padded_states = pad_last_axes(states, self.N - self.n, self.width // self.G - per_group)
        blocks = padded_states.reshape(s, self.width // tile, tile, self.N // n_block, n_block)
        return blocks.permute(0, 3, 1, 4, 2).reshape(s, self.N * self.width).contiguous()

    def untiled(self, tiles: Tensor) -> Tensor:
        """States (s, d, n) from the layout of the kernels: the inverse of `tiled`, without the padding."""
        s, (n_block, tile), per_group = len(tiles), self.tiles.state, self.D // self.G
        blocks = tiles.reshape(s, self.N // n_block, self.width // tile, n_block, tile).permute(0, 2, 4, 1, 3)
        padded_states = blocks.reshape(s, self.G, self.width // self.G, self.N)
        return padded_states[:, :, :per_group, : self.n].reshape(s, self.D, self.n).contiguous()

    def new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.u.new_empty(shape, dtype=dtype)

    def new_states(self, count: int) -> Tensor:
        return self.new(count, self.N * self.width)

    def launch(self, kernel: Any, name: str, programs: int, **arguments: Any) -> None:
        """In CUDA C++ if it has the kernel, otherwise in Triton. arguments: those missing in `self.arguments`."""
        if not programs:
            return
        if self.native is not None and kernel.__name__ in self.native:
            channels, memory = self.tiles.back["BLOCK_D"], shared_bytes(kernel.__name__)
            self.native.launch(kernel.__name__, programs, channels, memory, self.arguments | arguments)
            return
        options = launch_options(name, self.architecture, self.u.dtype)
        launch(kernel, (programs,), self.arguments | arguments, **options)

    def programs(self, rows: int, channels: int) -> int:
        """One program for each row and each block of `channels` channels."""
        return rows * self.G * cdiv(self.D // self.G, channels) if self.S else 0

    @property
    def state_programs(self) -> int:
        """One program for each sequence and each block of elements of its state."""
        return self.S * cdiv(self.N * self.width, self.tiles.elements)

    def find_piece_states(self, keep_final: int) -> PieceStates:
        """The end state of each piece from a zero state. With final states, also of the last piece of a sequence."""
        tile = self.tiles.ends
        rows = self.T // tile["SIZE"]
        piece_states = PieceStates(self.new_states(rows), self.new(rows, self.width))
        for n0 in self.state_blocks:
            self.launch(
                _selective_scan_fwd_chunk_state_kernel, "fwd_chunk_state", self.programs(rows, tile["BLOCK_D"]),
                ends=piece_states.states, sums=piece_states.sums, n0=n0, keep_final=keep_final, **tile,
            )  # fmt: skip
        return piece_states

    def states(self, keep_final: int, piece_states: PieceStates | None = None) -> tuple[Tensor, Tensor]:
        """The states at boundaries, and final states of sequences of whole pieces. `piece_states` is overwritten."""
        tile, final_states = self.tiles.ends, self.new_states(self.S * keep_final)
        ends, sums = piece_states or self.find_piece_states(keep_final)
        if len(ends) or keep_final:
            self.launch(
                _selective_scan_fwd_state_passing_kernel, "fwd_state_passing", self.state_programs, ends=ends,
                sums=sums, final_states=final_states, keep_final=keep_final, SIZE=tile["SIZE"],
                BLOCK=self.tiles.elements,
            )  # fmt: skip
        return ends, final_states

    def scan(
        self, keep_final: int, kept_states: Tensor, piece_states: PieceStates | None = None
    ) -> tuple[Tensor, Tensor]:
        """y, and the final states if kept.

        kept_states: filled with the states for backward, unless empty.
        """
        tile = self.tiles.scan
        ends, final_states = self.states(keep_final, piece_states)
        y, partial = self.new(self.T, self.D, dtype=self.u.dtype), self.new(self.n_partial, self.D)
        programs = self.programs(cdiv(self.T, tile["WINDOW"]), tile["BLOCK_D"])
        for n0 in self.state_blocks:
            self.launch(
                _selective_scan_fwd_kernel, f"fwd-{self.form}", programs, boundaries=ends, y=y, partial=partial,
                final_states=final_states, kept=kept_states, n0=n0, keep_final=keep_final,
                keep_states=int(len(kept_states) > 0), **tile, KEEP=self.tiles.back["KEEP"],
            )  # fmt: skip
        zero_slack(self.cu_seqlens, y)
        return y, final_states

    def gradients(
        self, dy: Tensor, dfinal: Tensor | None, ends: Tensor, piece_gradients: PieceStates | None = None
    ) -> dict[str, Tensor]:
        """The gradients by argument.

        ends: the states kept by forward. dB and dC are fp32 (t, g, n) where one of them has yet to be summed over
        groups.
        """
        tile, dy = self.tiles.back, dense_rows(dy)
        final, has_final = (self.A, 0) if dfinal is None else (self.tiled(dfinal), 1)
        backs, dinitial = self.gradients_of_states(dy, final, has_final, piece_gradients)
        channels, windows = tile["BLOCK_D"], cdiv(self.T, tile["WINDOW"]) if self.S else 0
        programs = self.programs(windows, channels)
        scratch = self.new(
            programs * (self.native is None), tile["KEEP"] // tile["TOKENS"], self.tiles.BLOCK_N, tile["BLOCK_D"]
        )
        parts = self.new(cdiv(self.D // self.G, channels), self.T, self.G, self.N, 2)
        partial = self.new(self.n_partial, 3, self.D)
        du, ddelta, dz = (self.new(t, self.D, dtype=self.u.dtype) for t in (self.T, self.T, self.T * self.has_z))
        dA, dD, dbias = self.new_states(windows), self.new(windows, self.D), self.new(windows, self.D)
        for n0 in self.state_blocks:
            self.launch(
                _selective_scan_bwd_kernel, f"bwd-{self.form}", programs, dy=dy, dy_stride=dy.stride(0), dfinal=final,
                has_final=has_final, ends=ends, backs=backs, kept=scratch, parts=parts, partial=partial, du=du,
                ddelta=ddelta, dz=dz, dA=dA, dD=dD, dbias=dbias, dinitial=dinitial, n0=n0, **tile,
            )  # fmt: skip
        dB, dC = self.group_gradients(parts)
        zero_slack(self.cu_seqlens, du, ddelta, dz)
        shared = {"A": self.untiled(dA.sum(0, keepdim=True))[0], "D": dD.sum(0), "bias": dbias.sum(0)}
        return shared | {"u": du, "delta": ddelta, "z": dz, "B": dB, "C": dC, "initial": self.untiled(dinitial)}

    def find_piece_gradients(self, dy: Tensor) -> PieceStates:
        """The gradient of the state before each piece but the first, from the outputs of the piece alone."""
        tile, rows = self.tiles.ends, self.T // self.tiles.ends["SIZE"]
        piece_gradients = PieceStates(self.new_states(rows), self.new(rows, self.width))
        for n0 in self.state_blocks:
            self.launch(
                _selective_scan_bwd_chunk_state_kernel, "bwd_chunk_state", self.programs(rows, tile["BLOCK_D"]), dy=dy,
                dy_stride=dy.stride(0), backs=piece_gradients.states, sums=piece_gradients.sums, n0=n0, **tile,
            )  # fmt: skip
        return piece_gradients

    def gradients_of_states(
        self, dy: Tensor, final: Tensor, has_final: int, piece_gradients: PieceStates | None = None
    ) -> tuple[Tensor, Tensor]:
        """The gradients of states at boundaries, and of initial states of empty sequences. Changes piece_gradients."""
        tile, dinitial = self.tiles.ends, self.new_states(self.S * self.has_initial)
        backs, sums = piece_gradients or self.find_piece_gradients(dy)
        if len(backs) or self.has_initial:
            self.launch(
                _selective_scan_bwd_state_passing_kernel, "bwd_state_passing", self.state_programs, dfinal=final,
                has_final=has_final, backs=backs, sums=sums, dinitial=dinitial, SIZE=tile["SIZE"],
                BLOCK=self.tiles.elements,
            )  # fmt: skip
        return backs, dinitial

    def group_gradients(self, parts: Tensor) -> tuple[Tensor, Tensor]:
        size, dtype = self.T * self.G * self.N, torch.float32 if self.has_mixed_groups else self.u.dtype
        dB, dC = (self.new(self.T, self.G, self.N, dtype=dtype) for _ in range(2))
        self.launch(
            _selective_scan_bwd_reduce_kernel, "bwd_reduce", cdiv(size, self.tiles.elements), parts=parts, dB=dB, dC=dC,
            n_parts=len(parts), width=self.G * self.N, BLOCK=self.tiles.elements,
        )  # fmt: skip
        return dB[..., : self.n], dC[..., : self.n]


def variants() -> list[Variant]:
    """Every compiled form of the kernels. Rows of B and C are always aligned, so the dtype of the tokens decides."""
    result: list[Variant] = []
    tiles, states, keep = _tiles(), _tiles().states, {"KEEP": _tiles().back["KEEP"]}
    passing_constants = {"BLOCK": tiles.elements} | states
    state_forms: list[tuple[str, Any, dict[str, int]]] = [
        (
            "fwd_state_passing",
            _selective_scan_fwd_state_passing_kernel,
            passing_constants | {"SIZE": tiles.ends["SIZE"]},
        ),
        (
            "bwd_state_passing",
            _selective_scan_bwd_state_passing_kernel,
            passing_constants | {"SIZE": tiles.back["SIZE"]},
        ),
    ]
    token_forms: list[tuple[str, Any, dict[str, int]]] = [
        ("fwd_chunk_state", _selective_scan_fwd_chunk_state_kernel, tiles.ends | states),
        ("bwd_chunk_state", _selective_scan_bwd_chunk_state_kernel, tiles.ends | states),
        ("bwd_reduce", _selective_scan_bwd_reduce_kernel, {"BLOCK": tiles.elements}),
    ]
    for form, split in (("whole", False), ("split", True)):
        token_forms += [
            (f"fwd-{form}", _selective_scan_fwd_kernel, tiles.scan | keep | states | {"SPLIT": split}),
            (f"bwd-{form}", _selective_scan_bwd_kernel, tiles.back | states | {"SPLIT": split}),
        ]
    for dtype, forms in ((torch.float32, state_forms), *((dtype, token_forms) for dtype in DTYPES)):
        for name, kernel, constants in forms:
            pointers = (
                dict.fromkeys(_TOKENS, POINTERS[dtype]) | dict.fromkeys(_STATES, "*fp32") | {"cu_seqlens": "*i32"}
            )
            for kind, targets in ARCHITECTURES.items():
                options = launch_options(name, kind, dtype)
                label = f"{kind}-{name}-{POINTERS[dtype][1:]}"
                variant = specializations(label, kernel, pointers, constants, options.pop("num_warps"))[0]
                result.append(replace(variant, options=options, targets=targets))
    return result + slack.variants(DTYPES)
