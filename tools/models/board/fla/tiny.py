"""A small random model of any causal language model of flash-linear-attention, with head sizes that its kernels take.

The package asks for a GPU as it is imported, which no fork survives: its classes are listed from its source.
"""

import ast
import copy
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from packproof.base.errors import UsageError
from packproof.models.board import flash
from packproof.models.board.tiny import Architecture

_SUFFIX = "ForCausalLM"
_BY_VALUE: Mapping[int, tuple[str, ...]] = {
    64: ("vocab_size", "hidden_size", "dim_fx", "compressor_hidden_size"),
    96: ("intermediate_size",),
    32: ("head_dim", "expand_ratio"),
    16: (
        *("num_slots", "state_size", "dt_rank", "time_step_rank", "gate_low_rank_dim", "proj_low_rank_dim"),
        *("decay_low_rank_dim", "a_low_rank_dim", "v_low_rank_dim", "q_lora_rank", "kv_lora_rank"),
        *("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
    ),
    2: ("num_heads", "num_hidden_layers", "compressor_num_heads"),
    1: ("compressor_num_layers",),
}
SIZES: Mapping[str, int] = {field: value for value, fields in _BY_VALUE.items() for field in fields}
# By name of the architecture: fields that depend on each other, hide a kind of layer, or draw random numbers.
SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "cat": {"max_chunk_size": 4, "pad_to_multiple_of": 8},
    "hgrn": {"expand_ratio": 1},
    "hgrn2": {"num_heads": None},
    "lightnet": {"num_heads": None},
    "log_linear_mamba2": {"num_heads": 4},
    "mamba2": {"num_heads": 4, "chunk_size": 64},
    "mamba3": {"num_heads": 4},
    "mla": {"qk_head_dim": 32},
    "nsa": {"num_heads": 16, "num_kv_heads": 1, "head_dim": 16},
    "raven": {"add_gumbel_noise": False, "topk": 4},
    "rodimus": {"ska_attn": {"num_heads": 2, "window_size": 8}},
    "rwkv7": {"value_dim": 64},
    "samba": {"attn": {"layers": [1], "num_heads": 2, "window_size": 8}},
    "yoco": {
        "num_self_decoder_layers": 1,
        "self_decoder_attn": {"head_dim": 32, "num_heads": 2},
        "cross_decoder_attn": {"num_heads": 2},
    },
}


@cache
def fla_architectures() -> dict[str, Architecture]:
    """The causal language models of the installed flash-linear-attention, by the name of their module."""
    spec = importlib.util.find_spec("fla")
    for folder in spec.submodule_search_locations or () if spec else ():
        faces = Path(folder) / "models/__init__.py"
        if faces.is_file():
            return architectures_in(faces.read_text())
    raise UsageError("the models are those of flash-linear-attention: pip install flash-linear-attention")


def architectures_in(source: str) -> dict[str, Architecture]:
    """The classes called ...ForCausalLM that this source imports, by the last part of their module's name."""
    models = {
        (node.module or "").rpartition(".")[2]: alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name.endswith(_SUFFIX)
    }
    return {name: Architecture(name, models[name]) for name in sorted(models)}


def small_fields(name: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a small config.

    defaults: the fields of the default config.
    """
    sizes = {field: size for field, size in SIZES.items() if defaults.get(field) is not None}
    return {**sizes, **copy.deepcopy(dict(SPECIAL.get(name, {})))}


def tiny_fla_model(architecture: Architecture, device: str) -> nn.Module:
    """A small model with random weights, on the CPU. Errors of flash-linear-attention pass through.

    device: where it will run; "cpu": its kernels are interpreted.
    """
    model_class = getattr(_import_models(device), architecture.model)
    config_class = model_class.config_class
    model: nn.Module = model_class(config_class(**small_fields(architecture.name, config_class().to_dict())))
    return model


def _import_models(device: str) -> Any:
    os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")  # products in tf32 round more than what fp32 is allowed
    if device == "cpu":
        from packproof.interpreter import install  # noqa: PLC0415  (needs triton)

        install()  # before the package is imported: it asks for properties of a GPU
    else:
        from packproof.interpreter import draw_configurations  # noqa: PLC0415

        draw_configurations(device)  # the same ones in every run, instead of the fastest of it
    importlib.import_module("transformers.modeling_utils")  # it looks for flash_attn, too
    with _flash_attention():
        return importlib.import_module("fla.models")


@contextmanager
def _flash_attention() -> Iterator[None]:
    """Where flash-attn is not installed, modules imported here get plain PyTorch in its place."""
    if importlib.util.find_spec("flash_attn"):
        yield
        return
    stand_in: Any = ModuleType("flash_attn")
    stand_in.__spec__ = ModuleSpec("flash_attn", None)
    stand_in.flash_attn_func, stand_in.flash_attn_varlen_func = flash.flash, flash.flash_varlen
    sys.modules["flash_attn"] = stand_in
    try:
        yield
    finally:
        del sys.modules["flash_attn"]
