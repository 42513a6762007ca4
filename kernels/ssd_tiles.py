"""Tile sizes and launch options of the SSD kernels, and all compiled forms."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from packproof.kernels import slack, worklists
from packproof.kernels.launch import ARCHITECTURES, POINTERS, runs_interpreted, specializations
from packproof.kernels.ssd_bwd import (
    _ssd_bwd_fused_x_kernel,
    _ssd_bwd_gate_kernel,
    _ssd_bwd_inter_chunk_kernel,
    _ssd_bwd_intra_chunk_kernel,
    _ssd_bwd_x_kernel,
)
from packproof.kernels.ssd_fwd import (
    _ssd_fwd_chunk_cumsum_kernel,
    _ssd_fwd_chunk_scan_kernel,
    _ssd_fwd_chunk_state_kernel,
    _ssd_fwd_fused_chunk_scan_kernel,
    _ssd_fwd_state_passing_kernel,
)
from packproof.kernels.variant import Variant

MULTIPLE = 16  # elements: rows of tokens and of states start at multiples, so a kernel needs one compiled form
MULTIPLE_INTERPRETED = 2  # small: leaves partial blocks
MAX_STATES = 256
CHUNK, SEGMENT = 64, 2048
CHUNK_INTERPRETED, SEGMENT_INTERPRETED = 16, 32
_SHORT_K = 32  # with 64 as for long chunks, shared memory would limit short forms to five programs, not eight

# Hopper's wgmma takes 64 rows: 4 warps share a tile of 64, and as many programs as registers allow hide its latency
_HOPPER = {
    "chunk_state": {"num_stages": 3},
    "chunk_scan": {"num_stages": 1},
    "chunk_scan_short": {"num_warps": 1},
    "chunk_scan_half": {"num_warps": 2},
    "x_short": {"num_warps": 1},
    "x_half": {"num_warps": 2},
    "x_half_gated": {"num_warps": 2},
    "x_gated": {"num_warps": 8},
    "x_short_gated": {"num_warps": 2},
    "fused_x": {"num_stages": 1},
    "inter_chunk": {"num_warps": 8},
    "inter_chunk_gated": {"num_warps": 8},
    "inter_chunk_whole": {"num_stages": 3},
    "inter_chunk_ends": {"num_warps": 8},
    "inter_chunk_ends_gated": {"num_warps": 8},
    "inter_chunk_short": {"num_warps": 2},
    "inter_chunk_short_gated": {"num_warps": 2},
    "inter_chunk_short_whole": {"num_warps": 2},
    "inter_chunk_short_ends": {"num_warps": 2},
    "inter_chunk_short_ends_gated": {"num_warps": 2},
    "intra_chunk": {"num_warps": 8},
    "intra_chunk_gated": {"num_warps": 8, "num_stages": 1},
    "intra_chunk_whole": {"num_stages": 3},
    "intra_chunk_half": {"num_warps": 2},
    "intra_chunk_half_whole": {"num_warps": 2},
    "intra_chunk_short": {"num_warps": 1},
    "intra_chunk_short_gated": {"num_warps": 2},
    "intra_chunk_short_whole": {"num_warps": 1},
}
# bytes spilled on purpose. On Hopper they are loop-invariant values, reloaded in each iteration. Forms with fewer
# spills have fewer programs on a multiprocessor and took 1.4 to 2.2 times as long (NOTES.md). Gated forms and other
# GPUs were not timed
_SPILLS = {
    "hopper": {
        "fused_chunk_scan": 64, "fused_x": 24, "inter_chunk_whole": 336,
        "inter_chunk_gated": 8, "intra_chunk_whole": 228, "intra_chunk_gated": 8, "intra_chunk_short_gated": 56,
    },
    "nvidia": {"inter_chunk_gated": 48, "intra_chunk": 16, "intra_chunk_gated": 612},
    "amd": {},
}  # fmt: skip


def launch_options(name: str, architecture: str, tokens: torch.dtype) -> dict[str, Any]:
    """Warps, stages of the pipeline, and registers: 255 where the compiler would otherwise spill to use fewer."""
    options: dict[str, Any] = {"num_warps": 4, "num_stages": 2, "maxnreg": 255}
    if architecture == "hopper" and tokens == torch.bfloat16:
        return options | _HOPPER.get(name, {})
    if architecture == "hopper":
        return options | ({"num_warps": 8} if name.startswith("inter_chunk") else {})
    options |= {"num_warps": 2 if "_short" in name else 8}
    if architecture == "amd":
        options |= {"num_stages": 1} | ({"num_warps": 4} if name.startswith(("intra_chunk", "inter_chunk")) else {})
        del options["maxnreg"]
    elif name in ("intra_chunk", "intra_chunk_gated", "inter_chunk_gated"):
        options |= {"num_stages": 1}
    return options


@dataclass(frozen=True)
class Tiles:
    """Sizes of the work of all kernels. `*_p` are channels of a head in one tile."""

    chunk: int
    """Tokens."""
    segment: int
    """Tokens."""
    half: int
    """Chunks of up to this many tokens have smaller tiles; the same as `short` for none."""
    short: int
    """Chunks of up to this many tokens have the smallest tiles; 0 for none."""
    block_k: int
    """States in one product."""
    states_p: int
    states_n: int
    """States of a tile of a state."""
    fused_n: tuple[int, ...]
    """States of the fused forms, one form each. They hold all states in registers; empty where they would spill."""
    output_p: int
    dx_p: int
    intra_p: int
    inter_p: int
    ends_p: int
    columns: int
    """States in one tile of dB and dC."""
    heads: int
    """Heads of a group in one program, one after another."""
    whole_p: int = 0
    """Up to this many channels, a loop over heads has no loop over channels inside."""
    step_h: int = 16
    """Heads of a program of time steps."""
    passing_size: int = 1024
    """Elements of a state in a program of state passing."""
    gate_t: int = 32
    """Tokens of a program of the gate."""
    gate_p: int = 64
    """Channels of a program of the gate."""

    @property
    def gate(self) -> dict[str, int]:
        return {"BLOCK_T": self.gate_t, "BLOCK_P": self.gate_p}


def multiple() -> int:
    return MULTIPLE_INTERPRETED if runs_interpreted(_ssd_fwd_chunk_scan_kernel) else MULTIPLE


@dataclass(frozen=True)
class Rows:
    """Tiles with one number of rows. A short chunk would leave most of a long tile empty."""

    rows: int
    """Tokens."""
    kind: int
    """The index of the worklist."""
    label: str
    """The suffix of names of launch options."""
    block_k: int
    """States in one product."""
    heads: int
    """Heads that share C Bᵀ of a chunk in the kernels of y and dx. With few rows it is most of the work."""


@cache
def tiles(tokens: torch.dtype, architecture: str) -> Tiles:
    """The tiles for tokens of bf16 or fp32."""
    if runs_interpreted(_ssd_fwd_chunk_scan_kernel):
        return Tiles(
            chunk=CHUNK_INTERPRETED, segment=SEGMENT_INTERPRETED, half=8, short=4, block_k=8, states_p=16, states_n=16,
            fused_n=(16,) if tokens == torch.bfloat16 else (), output_p=16, dx_p=16, intra_p=16, inter_p=16, ends_p=16,
            columns=16, heads=2, whole_p=16, step_h=2, passing_size=128, gate_t=16, gate_p=16,
        )  # fmt: skip
    if tokens == torch.float32:
        return Tiles(
            chunk=32, segment=SEGMENT, half=0, short=0, block_k=32, states_p=32, states_n=64, fused_n=(),
            output_p=32, dx_p=16, intra_p=16, inter_p=32, ends_p=32, columns=64, heads=8,
        )  # fmt: skip
    hopper = architecture == "hopper"
    return Tiles(
        chunk=CHUNK, segment=SEGMENT, half=32 if hopper else 16, short=16,
        block_k={"hopper": 64, "nvidia": 32, "amd": 16}[architecture],
        states_p=64, states_n=128 if hopper else 64, fused_n=(64, 128) if hopper else (), output_p=64, dx_p=64,
        intra_p=64 if hopper else 16, inter_p=64, ends_p=32 if hopper else 16, columns=64, heads=8,
        whole_p=64 if hopper else 0,
    )  # fmt: skip


def inter_chunk_form(t: Tiles, *, whole_heads: bool = False, ends: bool = False) -> dict[str, Any]:
    """The constants of a form of the inter-chunk kernel, without ROWS."""
    return {"WHOLE": whole_heads, "ENDS": ends, "BLOCK_P": t.ends_p if ends else t.inter_p, "COLUMNS": t.columns}


def row_classes(t: Tiles) -> list[Rows]:
    """The kinds of chunks. Every chunk is of one of them."""
    shared_options = {"block_k": min(t.block_k, _SHORT_K), "heads": t.heads}
    classes = [Rows(t.chunk, 0, "", t.block_k, heads=1)]
    if t.half > t.short:
        classes.append(Rows(t.half, 1, "_half", **shared_options))
    if t.short:
        classes.append(Rows(t.short, 2, "_short", **shared_options))
    return classes


_TOKENS = ("x", "B", "C", "z", "y", "dt", "dy", "dy_low", "dx", "ddt", "dz", "dB", "dC", "gradient", "states",
           "dstates", "dfinal")  # fmt: skip
_FP32 = ("A", "D", "bias", "step", "high", "low", "entering", "ends", "finals", "dends", "dA", "dD", "dbias",
         "entered", "left", "of_B", "of_C")  # fmt: skip
_INT32 = ("cu_seqlens", "chunks", "segments")


def variants() -> list[Variant]:
    """Every compiled form of the kernels. All operands are aligned, so dtypes and tiles decide."""
    result = []
    for tokens in (torch.bfloat16, torch.float32):
        for kind, targets in ARCHITECTURES.items():
            result += [replace(v, targets=targets) for v in _variants_of(tokens, kind)]
    return [*result, *worklists.variants(), *slack.variants((torch.bfloat16, torch.float32))]


def _variants_of(tokens: torch.dtype, architecture: str) -> list[Variant]:
    t, kind, exact = tiles(tokens, architecture), POINTERS[tokens], tokens == torch.float32
    result: list[Variant] = []
    pointers = dict.fromkeys(_TOKENS, kind) | dict.fromkeys(_FP32, "*fp32") | dict.fromkeys(_INT32, "*i32")
    pointers |= {"scale": "fp32"}
    base, segment_constants = {"EXACT": exact, "CHUNK": t.chunk}, {"CHUNK": t.chunk, "CHUNKS": t.segment // t.chunk}

    def add(name: str, kernel: Any, constants: Mapping[str, Any], form: str = "", **types: str) -> None:
        label = "-".join(filter(None, [architecture, name, kind, form, *types.values()])).replace("*", "")
        options = launch_options(name, architecture, tokens)
        aligned, *_ = specializations(label, kernel, pointers | types, constants, options.pop("num_warps"))
        spills = 0 if exact else _SPILLS[architecture].get(name, 0)
        result.append(replace(aligned, num_stages=options.pop("num_stages"), options=options, spills=spills))

    add("gate", _ssd_bwd_gate_kernel, t.gate, y="*fp32", high=kind, low=kind)
    both = dict.fromkeys((kind, "*fp32"))  # gradients that passed a gate are fp32

    def gated(dy: str | None) -> str:
        return "_gated" * (dy != kind)

    for block_n in t.fused_n:
        blocks = {"BLOCK_P": t.output_p, "BLOCK_N": block_n}
        add("fused_chunk_scan", _ssd_fwd_fused_chunk_scan_kernel, segment_constants | blocks, f"n{block_n}")
        add("fused_x", _ssd_bwd_fused_x_kernel, segment_constants | blocks, f"n{block_n}", dfinal="*fp32")
    for reverse in (False, True):
        back = "back" * reverse
        add(
            "state_passing",
            _ssd_fwd_state_passing_kernel,
            segment_constants | {"BLOCK": t.passing_size, "REVERSE": reverse},
            back,
        )
        form = {"REVERSE": reverse, "BLOCK_P": t.states_p, "BLOCK_N": t.states_n}
        ends, all_boundaries = (
            {"STORE_ALL": store_all, **base, **segment_constants, **form} for store_all in (False, True)
        )
        if not reverse:
            add("chunk_state", _ssd_fwd_chunk_state_kernel, ends, "ends", states="*fp32")
            for states in both:  # fp32 for outputs
                add("chunk_state", _ssd_fwd_chunk_state_kernel, all_boundaries, "all", states=states)
            continue
        for x in both:
            add("chunk_state_reverse" + gated(x), _ssd_fwd_chunk_state_kernel, ends, "ends", x=x)
            add("chunk_state_reverse" + gated(x), _ssd_fwd_chunk_state_kernel, all_boundaries, "all", x=x)
    for rows in row_classes(t):
        for dt in both:  # log-decays of linear attention may be fp32
            steps = {"ROWS": rows.rows, "BLOCK_H": t.step_h}
            add("chunk_cumsum", _ssd_fwd_chunk_cumsum_kernel, steps, f"r{rows.rows}", dt=dt)
        shape = base | {"ROWS": rows.rows}
        blocks = {"CHUNKS": t.segment // t.chunk, "HEADS": rows.heads}
        blocks |= {"BLOCK_P": t.output_p, "BLOCK_K": rows.block_k}
        for y, states in {kind: "*fp32", "*fp32": kind}.items():  # fp32 before a gate, whose gradient it is for
            add("chunk_scan" + rows.label, _ssd_fwd_chunk_scan_kernel, shape | blocks, y=y, states=states)
        of_states = {"HEADS": rows.heads, "BLOCK_P": t.dx_p, "BLOCK_K": rows.block_k}
        for dy in both:
            add("x" + rows.label + gated(dy), _ssd_bwd_x_kernel, shape | of_states, dy=dy)
            types = {"dy": dy, "entering": kind, "dB": "*fp32", "dC": "*fp32"}
            of_chunks = shape | {"CHUNKS": t.segment // t.chunk}
            for whole_heads in (False, True) if t.whole_p and dy == kind else (False,):
                label = rows.label + "_whole" * whole_heads + gated(dy)
                inter_chunk = of_chunks | inter_chunk_form(t, whole_heads=whole_heads)
                add("inter_chunk" + label, _ssd_bwd_inter_chunk_kernel, inter_chunk, **types)
                intra_chunk = {"WHOLE": whole_heads, "COLUMNS": t.columns, "GATED": dy != kind}
                intra_chunk |= {"BLOCK_P": t.intra_p, "BLOCK_K": rows.block_k}
                add("intra_chunk" + label, _ssd_bwd_intra_chunk_kernel, shape | intra_chunk)
            types |= {"dfinal": "*fp32", "dstates": "*fp32"}
            label = rows.label + "_ends" + gated(dy)
            ends = of_chunks | inter_chunk_form(t, ends=True)
            add("inter_chunk" + label, _ssd_bwd_inter_chunk_kernel, ends, **types)
    return result
