"""From tensors to launches of the SSD kernels: alignment, tiles, and the order of the passes."""

# mypy: allow-untyped-calls

from typing import Any, NamedTuple

import torch
from torch import Tensor

from packproof.kernels.launch import architecture, cdiv, padded
from packproof.kernels.sequences import offsets
from packproof.kernels.ssd_bwd import (
    crossing_kernel,
    gate_kernel,
    inside_kernel,
    values_kernel,
    walk_back_kernel,
)
from packproof.kernels.ssd_fwd import outputs_kernel, pass_kernel, states_kernel, steps_kernel, walk_kernel
from packproof.kernels.ssd_tiles import (
    Rows,
    launch_options,
    multiple,
    row_classes,
    shared_heads,
    tiles,
)
from packproof.kernels.worklists import n_programs, worklists


def aligned(tensor: Tensor) -> Tensor:
    """The tensor itself if its last axis is dense and all else is aligned, otherwise a padded copy."""
    n = multiple()
    short = -tensor.shape[-1] % n
    fits = tensor.stride(-1) == 1 and not short and all(stride % n == 0 for stride in tensor.stride()[:-1])
    if fits and (not tensor.is_cuda or tensor.data_ptr() % n == 0) and tensor.stride(0) < 2**24:
        return tensor
    return padded(tensor, short).clone(memory_format=torch.contiguous_format)


def ends_shape(x: Tensor, B: Tensor) -> tuple[int, ...]:
    """The shape of the states between segments, of which a short pack has none."""
    (T, H, P), N, segment = x.shape, B.shape[2], tiles(x.dtype, architecture(x.device)).segment
    return (T // segment + 1 if T > segment else 0, H, *(cdiv(size, multiple()) * multiple() for size in (P, N)))


class Steps(NamedTuple):
    """Time steps and log-decays (h, t) in fp32; the log-decay in two parts."""

    step: Tensor
    high: Tensor
    low: Tensor


class Incoming(NamedTuple):
    """The gradient of the outputs before the gate (t, h, p): whole, rounded to the kernels' dtype, and the rest.

    All are the same where there is no gate.
    """

    whole: Tensor
    high: Tensor
    low: Tensor


class Crossing(NamedTuple):
    """What the states at the edges of chunks are to other gradients.

    entered, left: those of decays, (h, t). to_b, to_c: those of B and C, (t, g, n), in fp32.
    """

    entered: Tensor
    left: Tensor
    to_b: Tensor
    to_c: Tensor


class Carried(NamedTuple):
    """States where segments end, at the end of each sequence if kept, and between chunks: at token b in b // chunk."""

    ends: Tensor
    finals: Tensor
    states: Tensor


class SsdProblem:
    """One call: the tensors as the kernels read them, and its launches."""

    def __init__(
        self, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, bias: Tensor | None,
        cu_seqlens: Tensor, initial_states: Tensor | None, softplus: bool, *, every: bool,
    ) -> None:  # fmt: skip
        (self.T, self.H, self.p), (_, self.G, self.n) = x.shape, B.shape
        self.S = len(cu_seqlens) - 1
        self.cu_seqlens = offsets("ssd", cu_seqlens, self.T)
        exact = x.dtype != torch.bfloat16  # fp16 computes as fp32: products of fp16 have no room for its exponents
        self.dtype = torch.float32 if exact else torch.bfloat16
        self.x, self.B, self.C = (aligned(token.to(self.dtype)) for token in (x, B, C))
        self.dt = dt if dt.stride(1) == 1 else dt.contiguous()
        self.A = A.contiguous()
        self.bias, self.has_bias = (A, 0) if bias is None else (bias.contiguous(), 1)
        self.P, self.N = self.x.shape[2], self.B.shape[2]
        self.D, self.has_D = self.A, int(D is not None)
        if D is not None:
            wide = D[:, None].expand(self.H, self.p) if D.ndim == 1 else D
            self.D = aligned(wide.contiguous())
        self.initial = self.states_of(initial_states)
        self.softplus = int(softplus)
        self.architecture = architecture(x.device)
        self.tiles = tiles(self.dtype, self.architecture)
        self.fused = any(self.N <= held for held in self.tiles.walk_n)
        self.constants = {"EXACT": exact, "CHUNK": self.tiles.chunk}
        self.work = worklists(
            self.cu_seqlens, self.T, chunk=self.tiles.chunk, short=self.tiles.short, segment=self.tiles.segment,
            every=every,
        )  # fmt: skip
        self.slots = len(self.work.long) - 1

    def states_of(self, states: Tensor | None) -> Tensor | None:
        """States (s, h, p, n) padded to the shape that the kernels use."""
        if states is None:
            return None
        return aligned(padded(states, self.N - self.n, self.P - self.p).contiguous())

    def trimmed(self, states: Tensor) -> Tensor:
        """States without the padding."""
        return states[:, :, : self.p, : self.n].contiguous()

    def new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.x.new_empty(shape, dtype=dtype)

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        return self.T, self.H, self.G, self.P, self.N

    @property
    def held_n(self) -> int:
        """States of the smallest form that holds all in registers."""
        return min(n for n in self.tiles.walk_n if self.N <= n)

    def _strides(self, values: Tensor, *of_dt: int) -> tuple[int, ...]:
        """Of tokens and of heads or groups, in x, dt if it is given, B, C, and `values`."""
        of_B_and_C = (self.B.stride(0), self.B.stride(1), self.C.stride(0), self.C.stride(1))
        return self.x.stride(0), self.x.stride(1), *of_dt, *of_B_and_C, values.stride(0), values.stride(1)

    def parts(self, *shape: int) -> Tensor:
        """Something for each kind of chunk and each chunk; zero for those that are not there."""
        return self.x.new_zeros(len(row_classes(self.tiles)), self.slots, *shape, dtype=torch.float32)

    def chunks(self, rows: Rows) -> Tensor:
        """The list of the chunks that tiles of so many rows are for."""
        return self.work.short if rows.short else self.work.long

    def launch(self, kernel: Any, name: str, programs: int, *arguments: Any, **constants: Any) -> None:
        if programs:
            kernel[(programs,)](*arguments, **constants, **launch_options(name, self.architecture, self.dtype))

    def items(self, each: int) -> int:
        """Programs that share the items of a list of chunks, `each` for one chunk."""
        return n_programs(self.slots * each)

    def steps(self) -> Steps:
        found, block = Steps(*(self.new(self.H, self.T) for _ in range(3))), self.tiles.step_h
        for rows in row_classes(self.tiles):
            self.launch(
                steps_kernel, "steps", self.items(cdiv(self.H, block)), self.dt, self.A, self.bias,
                self.chunks(rows), *found, self.T, self.H, self.dt.stride(0), self.has_bias, self.softplus,
                ROWS=rows.rows, BLOCK_H=block,
            )  # fmt: skip
        return found

    def _walk(
        self, values: Tensor, keys: Tensor, steps: Steps, entering: Tensor | None, carried: Carried,
        *, keep_final: bool, store_all: bool, reverse: bool,
    ) -> None:  # fmt: skip
        t = self.tiles
        blocks = cdiv(self.P, t.states_p) * cdiv(self.N, t.states_n)
        self.launch(
            states_kernel, self._named("states_back", values) if reverse else "states", self.items(self.H * blocks),
            values, keys, *steps, steps.high if entering is None else entering, self.work.segments, *carried, self.T,
            self.H, self.G, self.P, self.N, values.stride(0), values.stride(1), keys.stride(0), keys.stride(1),
            int(entering is not None), int(keep_final), **self.constants, STORE_ALL=store_all, REVERSE=reverse,
            CHUNKS=t.segment // t.chunk, BLOCK_P=t.states_p, BLOCK_N=t.states_n,
        )  # fmt: skip

    def carry(
        self, values: Tensor, keys: Tensor, steps: Steps, entering: Tensor | None,
        *, keep_final: bool, store: bool, reverse: bool, ends: Tensor | None = None,
    ) -> Carried:  # fmt: skip
        """The states, or their gradients: where segments end, and if asked for, where sequences do and between chunks.

        ends: those where segments end, if they are known; then, and in reverse, those between chunks are rounded to the
        dtype of the kernels, for gradients.
        """
        t, several = self.tiles, self.T > self.tiles.segment and ends is None
        between = self.T // t.chunk + 1 if self.T > t.chunk and (store or reverse) else 0
        rounded = self.dtype if ends is not None or reverse else torch.float32
        carried = Carried(
            self.x.new_empty(ends_shape(self.x, self.B), dtype=torch.float32) if ends is None else ends,
            self.new(self.S if keep_final else 0, self.H, self.P, self.N),
            self.new(between, self.H, self.P, self.N, dtype=rounded),
        )
        arguments = (values, keys, steps, entering, carried)
        if several or keep_final:
            self._walk(*arguments, keep_final=keep_final, store_all=False, reverse=reverse)
        if several:
            size = self.P * self.N
            self.launch(
                pass_kernel, "pass", len(carried.ends) * self.H * cdiv(size, t.pass_size), steps.high,
                steps.high if entering is None else entering, self.cu_seqlens, carried.ends, carried.finals, self.T,
                self.S, self.H, size, int(entering is not None), int(keep_final), REVERSE=reverse, CHUNK=t.chunk,
                CHUNKS=t.segment // t.chunk, BLOCK=t.pass_size,
            )  # fmt: skip
        if store and self.T > t.chunk:
            self._walk(*arguments, keep_final=False, store_all=True, reverse=reverse)
        return carried

    def outputs(self, steps: Steps, carried: Carried, z: Tensor | None, dtype: torch.dtype, *, fused: bool) -> Tensor:
        """y in `dtype`, behind the gate z if there is one; from states between segments alone if fused.

        Slack holds anything, here as in the gradients.
        """
        t, gate = self.tiles, self.x if z is None else z
        y = self.new(self.T, self.H, self.P, dtype=dtype)
        blocks, entering = cdiv(self.P, t.output_p), steps.high if self.initial is None else self.initial
        strides = (*self._strides(gate), int(self.initial is not None), self.has_D, int(z is not None))
        if fused:
            self.launch(
                walk_kernel, "walk", self.items(self.H * blocks), self.x, self.B, self.C, self.D, gate, steps.step,
                steps.high, entering, carried.ends, self.work.long_segments, y, *self.sizes, *strides, CHUNK=t.chunk,
                CHUNKS=t.segment // t.chunk, BLOCK_P=t.output_p, BLOCK_N=self.held_n,
            )  # fmt: skip
        for rows in row_classes(t)[int(fused) :]:  # the short ones only, where a walk takes the long ones
            heads = shared_heads(t, rows)
            in_turn = self.G * self._heads_in_group(heads)
            self.launch(
                outputs_kernel, "outputs" + rows.label, self.items(in_turn * blocks), self.x, self.B, self.C, self.D,
                gate, *steps, entering, carried.ends, carried.states,
                self.work.short_segments if fused else self.chunks(rows), y, *self.sizes, in_turn, *strides,
                **self.constants, CHUNKS=t.segment // t.chunk, ROWS=rows.rows, HEADS=heads, BLOCK_P=t.output_p,
                BLOCK_K=t.block_k,
            )  # fmt: skip
        return y

    def ungate(self, y: Tensor, z: Tensor, dy: Tensor) -> tuple[Tensor, Incoming]:
        """dz, and the gradient of y, the outputs before the gate in fp32."""
        dz, high, low = (self.new(self.T, self.H, self.P, dtype=self.dtype) for _ in range(3))
        gate = self.tiles.gate
        programs = cdiv(self.T, gate["BLOCK_T"]) * self.H * cdiv(self.P, gate["BLOCK_P"])
        self.launch(
            gate_kernel, "gate", programs, y, z, dy, dz, high, low, self.cu_seqlens, self.T, self.S, self.H,
            self.P, z.stride(0), z.stride(1), dy.stride(0), dy.stride(1), **gate,
        )  # fmt: skip
        return dz, Incoming(y, high, low)

    def value_gradients(
        self, dy: Tensor, steps: Steps, dfinal: Tensor | None, carried: Carried, *, fused: bool
    ) -> Tensor:
        """dx.

        carried: gradients of states. fused: those between chunks are not there yet; a walk finds and keeps them.
        """
        t, dx, given = self.tiles, self.new(self.T, self.H, self.P, dtype=self.dtype), int(dfinal is not None)
        strides = self._strides(dy)[2:]
        if fused:
            self.launch(
                walk_back_kernel, "walk_back", self.items(self.H * cdiv(self.P, t.output_p)), self.B,
                self.C, self.D, dy, steps.step, steps.high, steps.high if dfinal is None else dfinal, carried.ends,
                carried.states, self.work.long_segments, dx, *self.sizes, *strides, given, self.has_D, CHUNK=t.chunk,
                CHUNKS=t.segment // t.chunk, BLOCK_P=t.output_p, BLOCK_N=self.held_n,
            )  # fmt: skip
        for rows in row_classes(t)[int(fused) :]:  # the short ones only, where a walk takes the long ones
            heads = shared_heads(t, rows)
            in_turn = self.G * self._heads_in_group(heads)
            self.launch(
                values_kernel, self._named("values" + rows.label, dy), self.items(in_turn * cdiv(self.P, t.value_p)),
                self.B, self.C, self.D, dy, *steps, _rounded(dfinal, carried.states), carried.states,
                self.work.short_segments if fused else self.chunks(rows), dx, *self.sizes, in_turn, *strides, given,
                self.has_D, **self.constants, ROWS=rows.rows, HEADS=heads, BLOCK_P=t.value_p, BLOCK_K=t.block_k,
            )  # fmt: skip
        return dx

    def crossing(self, dy: Tensor, steps: Steps, states: Tensor, dfinal: Tensor | None, dstates: Tensor) -> Crossing:
        """What follows from the states at the edges of chunks and their gradients."""
        t, whole = self.tiles, self._whole(dy)
        n_parts = cdiv(self.N, t.columns)
        entered, left = (self.new(n_parts, self.H, self.T) for _ in range(2))
        of_B, of_C = (self.new(self.T, self.G, self.N) for _ in range(2))
        for rows in row_classes(t):
            self.launch(
                crossing_kernel, self._named("crossing" + rows.label + "_whole" * whole, dy),
                self.items(self.G * n_parts), self.x, self.B, self.C, dy, *steps, _rounded(self.initial, states),
                states, _rounded(dfinal, dstates), dstates, self.chunks(rows), entered, left, of_B, of_C, *self.sizes,
                *self._strides(dy), int(self.initial is not None), int(dfinal is not None), **self.constants,
                WHOLE=whole, ROWS=rows.rows, BLOCK_P=t.group_p, COLUMNS=t.columns,
            )  # fmt: skip
        return Crossing(entered.sum(0), left.sum(0), of_B, of_C)

    def inside(
        self, dy: Incoming, steps: Steps, crossing: Crossing, *, has_final: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """ddt, each token's part of dA and of the bias's gradient (h, t), dB, dC, and the parts of dD (h, p)."""
        t, gated, whole = self.tiles, dy.whole.dtype != self.dtype, self._whole(dy.whole)
        ddt = self.new(self.T, self.H, dtype=self.dtype)
        dA, dbias = self.x.new_zeros(2, self.H, self.T, dtype=torch.float32)
        dB, dC = (self.new(self.T, self.G, self.N, dtype=self.dtype) for _ in range(2))
        dD = self.parts(*((self.H, self.P) if self.has_D else (0,)))
        for kind, rows in enumerate(row_classes(t)):
            self.launch(
                inside_kernel, "inside" + rows.label + "_whole" * whole + "_gated" * gated, self.items(self.G), self.x,
                self.dt, self.A, self.B, self.C, self.bias, dy.high, dy.low, *steps, *crossing, self.chunks(rows), ddt,
                dA, dbias, dB, dC, dD[kind], *self.sizes, *self._strides(dy.high, self.dt.stride(0)),
                int(self.initial is not None), int(has_final), self.has_bias, self.softplus, self.has_D,
                **self.constants, GATED=gated, WHOLE=whole, ROWS=rows.rows, BLOCK_P=t.step_p, BLOCK_K=t.block_k,
                COLUMNS=t.columns,
            )  # fmt: skip
        return ddt, dA, dbias, dB, dC, dD

    def _whole(self, dy: Tensor) -> bool:
        """Whether loops over heads have none over channels inside."""
        return self.P <= self.tiles.whole_p and dy.dtype == self.dtype

    def _named(self, name: str, dy: Tensor) -> str:
        """The name by which launch options are known; gradients that passed a gate are fp32 next to bf16 tokens."""
        return name + "_gated" * (dy.dtype != self.dtype)

    def _heads_in_group(self, heads: int) -> int:
        """Blocks of so many heads in a group."""
        return -(-(self.H // self.G) // heads)


def _rounded(given: Tensor | None, stored: Tensor) -> Tensor:
    """States that a caller gave, in the dtype of those between chunks; those again if none were given."""
    return stored if given is None else given.to(stored.dtype)
