"""The shapes of the work of the SSD kernels, and every compiled form that follows from them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from packproof.kernels import slack, worklists
from packproof.kernels.launch import ARCHITECTURES, POINTERS, alignments, interpreted
from packproof.kernels.ssd_backward import gate_kernel, groups_kernel, steps_back_kernel, values_kernel
from packproof.kernels.ssd_forward import outputs_kernel, pass_kernel, states_kernel, steps_kernel, walk_kernel
from packproof.kernels.variant import Variant

MULTIPLE = 16  # elements: rows of tokens and of states start at multiples, so that a kernel has one compiled form
MULTIPLE_INTERPRETED = 2  # which leaves blocks that are not whole
MAX_STATES = 256
CHUNK, SEGMENT = 64, 2048
CHUNK_INTERPRETED, SEGMENT_INTERPRETED = 16, 32

# Hopper's wgmma takes 64 rows: 4 warps share a tile of 64, and as many programs as registers allow hide its latency
_HOPPER = {
    "states": {"num_stages": 3},
    "states_back": {},
    "states_low": {"num_stages": 3, "maxnreg": 168},
    "outputs": {"maxnreg": 168},
    "groups": {"num_stages": 3},
    "values_gated": {"num_warps": 8},
    "outputs_short": {"num_warps": 2},
    "values_short": {"num_warps": 2},
    "values_gated_short": {"num_warps": 2},
    "steps_back_short": {"num_warps": 2},
}
_OTHERS = {
    name: {"num_warps": 2} for name in ("outputs_short", "values_short", "values_gated_short", "steps_back_short")
}


def launch_options(name: str, architecture: str, tokens: torch.dtype) -> dict[str, Any]:
    """Warps, stages of the pipeline, and registers; 255 where the compiler would spill to have fewer."""
    options: dict[str, Any] = {"num_warps": 4, "num_stages": 2, "maxnreg": 255}
    if architecture == "hopper" and tokens == torch.bfloat16:
        return options | _HOPPER.get(name, {})
    if architecture == "hopper":
        return options
    options |= {"num_warps": 8} | _OTHERS.get(name, {})
    if architecture == "amd":
        options |= {"num_stages": 1} | ({"num_warps": 4} if name == "steps_back" else {})
        del options["maxnreg"]
    return options


@dataclass(frozen=True)
class Tiles:
    """chunk, segment: tokens. short: chunks of up to so many tokens have tiles of their own; 0 if none have.

    block_k: states that a product takes at a time. *_p: channels of a head. states_n, columns: states; split_n: of a
    walk that stores them in two parts; walk_n: of one that holds all in registers and makes outputs, its forms, none
    where it would spill. heads: heads of a group that one program takes in turn. step_h: heads whose time steps one
    program prepares. pass_size: elements of a state that pass from segment to segment together. gate_t, gate_p: of a
    program of the gate.
    """

    chunk: int
    segment: int
    short: int
    block_k: int
    states_p: int
    states_n: int
    split_n: int
    walk_n: tuple[int, ...]
    output_p: int
    value_p: int
    step_p: int
    group_p: int
    columns: int
    heads: int
    step_h: int = 16
    pass_size: int = 1024
    gate_t: int = 32
    gate_p: int = 64

    @property
    def gate(self) -> dict[str, int]:
        return {"BLOCK_T": self.gate_t, "BLOCK_P": self.gate_p}


def multiple() -> int:
    return MULTIPLE_INTERPRETED if interpreted(outputs_kernel) else MULTIPLE


@dataclass(frozen=True)
class Rows:
    """Tiles of so many rows, for the long or the short chunks: these would leave most of a long tile empty."""

    rows: int
    short: bool

    @property
    def label(self) -> str:
        return "_short" if self.short else ""


def tiles(tokens: torch.dtype, architecture: str) -> Tiles:
    """The tiles for tokens of bf16 or fp32."""
    if interpreted(outputs_kernel):
        return Tiles(
            chunk=CHUNK_INTERPRETED, segment=SEGMENT_INTERPRETED, short=8, block_k=8, states_p=16, states_n=16,
            split_n=16, walk_n=(16,) if tokens == torch.bfloat16 else (), output_p=16, value_p=16, step_p=16,
            group_p=16, columns=16, heads=2, step_h=2, pass_size=128, gate_t=16, gate_p=16,
        )  # fmt: skip
    if tokens == torch.float32:
        return Tiles(
            chunk=32, segment=SEGMENT, short=0, block_k=32, states_p=32, states_n=64, split_n=64, walk_n=(),
            output_p=32, value_p=16, step_p=16, group_p=32, columns=64, heads=8,
        )  # fmt: skip
    return Tiles(
        chunk=CHUNK, segment=SEGMENT, short=16, block_k={"hopper": 64, "nvidia": 32, "amd": 16}[architecture],
        states_p=64, states_n=128 if architecture == "hopper" else 64, split_n=64,
        walk_n=(64, 128) if architecture == "hopper" else (), output_p=64, value_p=64, step_p=64, group_p=64,
        columns=128, heads=8,
    )  # fmt: skip


def output_heads(t: Tiles, rows: Rows) -> int:
    """Heads that share C Bᵀ of a chunk: next to so few rows of values it is most of the work."""
    return t.heads if rows.short else 1


def row_classes(t: Tiles) -> list[Rows]:
    """The kinds of chunks, which share them between them."""
    return [Rows(t.chunk, False), Rows(t.short, True)] if t.short else [Rows(t.chunk, False)]


_TOKENS = ("x", "B", "C", "z", "y", "dt", "dy", "dy_low", "dx", "ddt", "dz", "values", "other", "gradient", "states",
           "states_low", "dstates", "dfinal", "given")  # fmt: skip
_FP32 = ("A", "D", "bias", "step", "high", "low", "entering", "ends", "finals", "dscores", "dA", "dD", "dbias",
         "entered", "left", "passed")  # fmt: skip
_INT32 = ("cu_seqlens", "chunks", "segments")


def variants() -> list[Variant]:
    """Every compiled form of the kernels. All operands are aligned, so that dtypes and tiles decide."""
    found = []
    for tokens in (torch.bfloat16, torch.float32):
        for kind, targets in ARCHITECTURES.items():
            found += [replace(v, targets=targets) for v in _variants_of(tokens, kind)]
    return [*found, *worklists.variants(), *slack.variants((torch.bfloat16, torch.float32))]


def _variants_of(tokens: torch.dtype, architecture: str) -> list[Variant]:
    t, kind, exact = tiles(tokens, architecture), POINTERS[tokens], tokens == torch.float32
    found: list[Variant] = []
    both = dict.fromkeys((kind, "*fp32"))  # of tensors that a gate leaves in fp32
    pointers = dict.fromkeys(_TOKENS, kind) | dict.fromkeys(_FP32, "*fp32") | dict.fromkeys(_INT32, "*i32")
    base = {"EXACT": exact, "CHUNK": t.chunk}

    def add(name: str, kernel: Any, constants: Mapping[str, Any], form: str = "", **types: str) -> None:
        label = "-".join(filter(None, [architecture, name, kind, form, *types.values()])).replace("*", "")
        options = launch_options(name, architecture, tokens)
        aligned, *_ = alignments(label, kernel, pointers | types, constants, options.pop("num_warps"))
        found.append(replace(aligned, num_stages=options.pop("num_stages"), options=options))

    add("gate", gate_kernel, t.gate, y="*fp32")
    for block_n in t.walk_n:
        held = {"CHUNK": t.chunk, "CHUNKS": t.segment // t.chunk, "BLOCK_P": t.output_p, "BLOCK_N": block_n}
        add("walk", walk_kernel, held, f"n{block_n}")
    walk = base | {"CHUNKS": t.segment // t.chunk, "BLOCK_P": t.states_p}
    for reverse in (False, True):
        way = {"CHUNK": t.chunk, "CHUNKS": t.segment // t.chunk, "BLOCK": t.pass_size, "REVERSE": reverse}
        back = "back" * reverse
        add("pass", pass_kernel, way, back)
        for x in both if reverse else (kind,):
            for every, low in ((False, False), (True, False), *([] if reverse or exact else [(True, True)])):
                form = {
                    "REVERSE": reverse,
                    "STORE_ALL": every,
                    "STORE_LOW": low,
                    "BLOCK_N": t.split_n if low else t.states_n,
                }
                name = "states_back" if reverse else "states_low" if low else "states"
                add(name, states_kernel, walk | form, "all" if every else "ends", x=x)
    for rows in row_classes(t):
        add("steps", steps_kernel, {"ROWS": rows.rows, "BLOCK_H": t.step_h}, f"r{rows.rows}")
        shape = base | {"ROWS": rows.rows}
        for y in both:
            blocks = {"CHUNKS": t.segment // t.chunk, "HEADS": output_heads(t, rows)}
            blocks |= {"BLOCK_P": t.output_p, "BLOCK_K": t.block_k}
            add("outputs" + rows.label, outputs_kernel, shape | blocks, y=y)
        for gated in (False,) if exact else (False, True):
            form, label = shape | {"GATED": gated}, "gated" * gated
            of_states = {"BLOCK_P": t.value_p, "BLOCK_K": t.block_k}
            add("values" + "_gated" * gated + rows.label, values_kernel, form | of_states, entering=kind)
            of_heads = {"HEADS": t.heads, "BLOCK_P": t.step_p, "BLOCK_K": t.block_k}
            add("steps_back" + rows.label, steps_back_kernel, form | of_heads, label)
        for of_B in (False, True):
            for values in (kind,) if of_B else both:
                blocks = {"OF_B": of_B, "BLOCK_P": t.group_p, "COLUMNS": t.columns}
                add("groups" + rows.label, groups_kernel, shape | blocks, "dB" if of_B else "dC", values=values)
    return found
