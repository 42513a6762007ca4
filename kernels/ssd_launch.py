"""From tensors to launches of the SSD kernels: alignment, tiles, the states, and the order of the forward pass."""

# mypy: allow-untyped-calls

from typing import Any, NamedTuple

import torch
from torch import Tensor

from packproof.kernels import launch as launching
from packproof.kernels.launch import architecture, cdiv, launch, pad_last_axes
from packproof.kernels.sequences import offsets
from packproof.kernels.slack import zero_slack
from packproof.kernels.ssd_fwd import (
    _ssd_fwd_chunk_cumsum_kernel,
    _ssd_fwd_chunk_scan_kernel,
    _ssd_fwd_chunk_state_kernel,
    _ssd_fwd_fused_chunk_scan_kernel,
    _ssd_fwd_state_passing_kernel,
)
from packproof.kernels.ssd_tiles import (
    Rows,
    launch_options,
    multiple,
    row_classes,
    tiles,
)
from packproof.kernels.worklists import n_programs, worklists


def align_rows(tensor: Tensor) -> Tensor:
    """The tensor itself if it is aligned as the kernels need, otherwise a padded copy."""
    return launching.align_rows(tensor, multiple())


def ends_shape(x: Tensor, B: Tensor) -> tuple[int, ...]:
    """The shape of the states between segments. A short pack has none."""
    (T, H, P), N, segment = x.shape, B.shape[2], tiles(x.dtype, architecture(x.device)).segment
    return (T // segment + 1 if T > segment else 0, H, *(cdiv(size, multiple()) * multiple() for size in (P, N)))


class Steps(NamedTuple):
    """Time steps and log-decays (h, t) in fp32."""

    step: Tensor
    high: Tensor
    """The rounded log-decay."""
    low: Tensor
    """The remainder of the log-decay."""


class CarriedStates(NamedTuple):
    """States, or their gradients."""

    ends: Tensor
    """At the ends of segments, the one at token b in row b // segment."""
    finals: Tensor
    """At the end of each sequence, empty unless kept."""
    states: Tensor
    """Between chunks, the one at token b in row b // chunk."""


class SsdProblem:
    """One call: the tensors as the kernels read them, and its launches.

    every_sequence: list segments of every sequence, as final states and gradients of initial states need.
    skipped: other kernels take sequences of up to as many tokens.
    unit_steps: all steps are 1, and dt A is the log-decay of a token.
    scale: a factor of C.
    """

    def __init__(
        self, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, bias: Tensor | None,
        cu_seqlens: Tensor, initial_states: Tensor | None, softplus: bool, *, every_sequence: bool,
        op: str = "ssd", scale: float = 1.0, unit_steps: bool = False, skipped: int = 0,
    ) -> None:  # fmt: skip
        (self.T, self.H, self.p), (_, self.G, self.n) = x.shape, B.shape
        self.S, self.skipped = len(cu_seqlens) - 1, skipped
        self.cu_seqlens = offsets(op, cu_seqlens, self.T)
        exact = x.dtype != torch.bfloat16  # fp16 computes as fp32: the exponents of products do not fit fp16
        self.dtype = torch.float32 if exact else torch.bfloat16
        self.x, self.B, self.C = (align_rows(token.to(self.dtype)) for token in (x, B, C))
        dt, A = dt.float() if exact else dt, A.contiguous()
        dt = dt if dt.stride(1) == 1 else dt.contiguous()
        self.P, self.N = self.x.shape[2], self.B.shape[2]
        self.has_D = D is not None
        if D is not None:
            head_channels = D[:, None].expand(self.H, self.p) if D.ndim == 1 else D
            D = align_rows(head_channels.contiguous())
        self.initial = self.pad_states(initial_states)
        self.architecture = architecture(x.device)
        self.tiles = tiles(self.dtype, self.architecture)
        self.fused = any(self.N <= block_n for block_n in self.tiles.fused_n)
        self.work = worklists(
            self.cu_seqlens, self.T, chunk=self.tiles.chunk, half=self.tiles.half, short=self.tiles.short,
            segment=self.tiles.segment, every_sequence=every_sequence, skipped=skipped,
        )  # fmt: skip
        self.slots = len(self.work.chunks[0]) - 1
        self.arguments: dict[str, Any] = {
            **{"x": self.x, "dt": dt, "A": A, "B": self.B, "C": self.C, "cu_seqlens": self.cu_seqlens},
            **{"D": A if D is None else D, "bias": A if bias is None else bias.contiguous()},
            **{"has_D": int(self.has_D), "has_bias": int(bias is not None), "is_softplus": int(softplus)},
            **{"scale": scale, "unit_steps": int(unit_steps)},
            **{"T": self.T, "S": self.S, "H": self.H, "G": self.G, "P": self.P, "N": self.N},
            **{"x_stride": self.x.stride(0), "x_head": self.x.stride(1), "dt_stride": dt.stride(0)},
            **{"B_stride": self.B.stride(0), "B_group": self.B.stride(1)},
            **{"C_stride": self.C.stride(0), "C_group": self.C.stride(1)},
            **{"EXACT": exact, "CHUNK": self.tiles.chunk, "CHUNKS": self.tiles.segment // self.tiles.chunk},
        }
        self.softplus_of = dt if softplus else self.x  # not read otherwise
        self.steps = self._steps()
        self.arguments |= self.steps._asdict()

    def forward(
        self, z: Tensor | None, *, keep_final: bool, segment_states: CarriedStates | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """y after the gate z, zero in slack; the final states if kept; the states between segments, for backward.

        segment_states: from `find_segment_states` of x and B; see `carry`.
        """
        carried = self.carry(
            self.x, self.B, self.initial, keep_final=keep_final, store=not self.fused, reverse=False,
            segment_states=segment_states,
        )  # fmt: skip
        gate = None if z is None else align_rows(z.to(self.dtype))
        y = self.outputs(carried, gate, self.dtype, fused=self.fused)
        zero_slack(self.cu_seqlens, y)
        return y[..., : self.p], self.trim_states(carried.finals), carried.ends

    def pad_states(self, states: Tensor | None) -> Tensor | None:
        """States (s, h, p, n) padded to the shape of the kernels."""
        if states is None:
            return None
        return align_rows(pad_last_axes(states, self.N - self.n, self.P - self.p).contiguous())

    def trim_states(self, states: Tensor) -> Tensor:
        """States without the padding."""
        return states[:, :, : self.p, : self.n].contiguous()

    def new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.x.new_empty(shape, dtype=dtype)

    @property
    def fused_block_n(self) -> int:
        """States of the smallest fused form that holds all of them in registers."""
        return min(n for n in self.tiles.fused_n if self.N <= n)

    def chunks(self, rows: Rows) -> Tensor:
        """The list of the chunks for these tiles."""
        return self.work.chunks[rows.kind]

    def launch(self, kernel: Any, name: str, programs: int, **arguments: Any) -> None:
        """Launch a kernel.

        arguments: all arguments that are not in `self.arguments`, or that differ.
        """
        if programs:
            options = launch_options(name, self.architecture, self.dtype)
            launch(kernel, (programs,), self.arguments | arguments, **options)

    def items(self, programs_per_chunk: int) -> int:
        """Programs that share a list of chunks with `programs_per_chunk` units of work in each."""
        return n_programs(self.slots * programs_per_chunk)

    def _entering_arguments(self, states: Tensor | None) -> dict[str, Any]:
        """An absent state is any fp32 tensor, unread."""
        return {"entering": self.steps.high if states is None else states, "has_entering": int(states is not None)}

    def _steps(self) -> Steps:
        steps, block = Steps(*(self.new(self.H, self.T) for _ in range(3))), self.tiles.step_h
        for rows in row_classes(self.tiles):
            self.launch(
                _ssd_fwd_chunk_cumsum_kernel, "chunk_cumsum", self.items(cdiv(self.H, block)),
                **steps._asdict(), chunks=self.chunks(rows), ROWS=rows.rows, BLOCK_H=block,
            )  # fmt: skip
        return steps

    def decay(self) -> Tensor:
        """The product of the decays of all tokens, (h,), for a pack of one sequence."""
        chunk, high = self.tiles.chunk, self.steps.high
        chunk_sums = high[:, chunk - 1 :: chunk].sum(1)
        return (chunk_sums + high[:, -1] if self.T % chunk else chunk_sums).exp2()

    def _chunk_states(
        self, values: Tensor, keys: Tensor, entering: Tensor | None, carried: CarriedStates,
        *, keep_final: bool, store_all: bool, reverse: bool,
    ) -> None:  # fmt: skip
        t = self.tiles
        self.launch(
            _ssd_fwd_chunk_state_kernel, self.option_name("chunk_state_reverse", values) if reverse else "chunk_state",
            self.items(self.H * cdiv(self.P, t.states_p) * cdiv(self.N, t.states_n)),
            **carried._asdict(), **self._entering_arguments(entering), x=values, B=keys,
            segments=self.work.all_segments, x_stride=values.stride(0), x_head=values.stride(1),
            B_stride=keys.stride(0), B_group=keys.stride(1), keep_final=int(keep_final), STORE_ALL=store_all,
            REVERSE=reverse, BLOCK_P=t.states_p, BLOCK_N=t.states_n,
        )  # fmt: skip

    def find_segment_states(self, values: Tensor, keys: Tensor, *, reverse: bool) -> CarriedStates:
        """The states at the end of each segment from a zero state, or their gradients: the first step of `carry`."""
        ends = self.x.new_empty(ends_shape(self.x, self.B), dtype=torch.float32)
        carried = CarriedStates(ends, self.new(self.S, self.H, self.P, self.N), self.new(0, self.H, self.P, self.N))
        self._chunk_states(values, keys, None, carried, keep_final=True, store_all=False, reverse=reverse)
        return carried

    def carry(
        self, values: Tensor, keys: Tensor, entering: Tensor | None,
        *, keep_final: bool, store: bool, reverse: bool, ends: Tensor | None = None,
        segment_states: CarriedStates | None = None, keep_ends: bool = True,
    ) -> CarriedStates:  # fmt: skip
        """The states, or their gradients: at the ends of segments, and on request at the ends of sequences and between
        chunks.

        ends: known states at the ends of segments. With them, and in reverse, the states between chunks are rounded to
        the dtype of the kernels, for gradients.
        segment_states: from `find_segment_states`, overwritten, but `ends` only if keep_ends. The states at the ends of
        sequences then lack the part of `entering`.
        """
        t, has_several_segments = self.tiles, self.T > self.tiles.segment and ends is None
        n_boundaries = self.T // t.chunk + 1 if self.T > t.chunk and (store or reverse) else 0
        state_dtype = self.dtype if ends is not None or reverse else torch.float32
        states = self.new(n_boundaries, self.H, self.P, self.N, dtype=state_dtype)
        if segment_states is not None:
            carried = segment_states._replace(states=states)
        else:
            carried = CarriedStates(
                self.x.new_empty(ends_shape(self.x, self.B), dtype=torch.float32) if ends is None else ends,
                self.new(self.S if keep_final else 0, self.H, self.P, self.N),
                states,
            )
        arguments = (values, keys, entering, carried)
        if segment_states is None and (has_several_segments or keep_final):
            self._chunk_states(*arguments, keep_final=keep_final, store_all=False, reverse=reverse)
        if has_several_segments:
            size = self.P * self.N
            self.launch(
                _ssd_fwd_state_passing_kernel, "state_passing", len(carried.ends) * self.H * cdiv(size, t.passing_size),
                **self._entering_arguments(entering), ends=carried.ends, finals=carried.finals, size=size,
                keep_final=int(keep_final), keep_ends=int(keep_ends), REVERSE=reverse, BLOCK=t.passing_size,
            )  # fmt: skip
        if store and self.T > t.chunk:
            self._chunk_states(*arguments, keep_final=False, store_all=True, reverse=reverse)
        return carried

    def outputs(self, carried: CarriedStates, z: Tensor | None, dtype: torch.dtype, *, fused: bool) -> Tensor:
        """y in `dtype`, after the gate z if there is one. Slack holds arbitrary values, here as in the gradients.

        fused: whether the kernel carries the state itself, from the states between segments alone.
        """
        t, gate = self.tiles, self.x if z is None else z
        y, blocks = self.new(self.T, self.H, self.P, dtype=dtype), cdiv(self.P, t.output_p)
        arguments = self._entering_arguments(self.initial) | {
            **{"z": gate, "z_stride": gate.stride(0), "z_head": gate.stride(1), "has_z": int(z is not None)},
            **{"ends": carried.ends, "y": y, "BLOCK_P": t.output_p},
        }
        if fused:
            self.launch(
                _ssd_fwd_fused_chunk_scan_kernel, "fused_chunk_scan", self.items(self.H * blocks), **arguments,
                segments=self.work.segments[0], BLOCK_N=self.fused_block_n,
            )  # fmt: skip
        for rows in row_classes(t)[int(fused) :]:  # only the short ones if the fused kernel takes the long ones
            heads, n_blocks = self.head_blocks(rows)
            self.launch(
                _ssd_fwd_chunk_scan_kernel, "chunk_scan" + rows.label, self.items(n_blocks * blocks), **arguments,
                states=carried.states, chunks=self.work.segments[rows.kind] if fused else self.chunks(rows),
                n_blocks=n_blocks, ROWS=rows.rows, HEADS=heads, BLOCK_K=rows.block_k,
            )  # fmt: skip
        return y

    def option_name(self, name: str, dy: Tensor) -> str:
        """The name of the launch options of a kernel. After a gate, gradients are fp32 next to bf16 tokens."""
        return name + "_gated" * (dy.dtype != self.dtype)

    def head_blocks(self, rows: Rows) -> tuple[int, int]:
        """The number of heads of a group in one program, one after another, and the number of such blocks."""
        return rows.heads, self.G * cdiv(self.H // self.G, rows.heads)
