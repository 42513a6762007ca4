"""A small random model of any causal language model of transformers, with each layer type of its default config.

A config has hundreds of fields; a few dozen names of fields give the sizes (SIZES). Lists with an entry for each layer
are cut to one layer of each kind. Everything without a rule is in `exceptions`.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from packproof.base.errors import UsageError
from packproof.models.board.exceptions import EVEN_IF_NONE, KINDS, SIZES, SPECIAL

_MAX_PARAMETERS = 20_000_000
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_decoder_layers")


@dataclass(frozen=True)
class Architecture:
    """A causal language model of transformers."""

    name: str
    """Its model type."""
    model: str
    """Its class."""
    also: tuple[str, ...] = ()
    """Other model types of the same class."""


@cache
def architectures() -> dict[str, Architecture]:
    """The causal language models of the installed transformers, by name."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as MODELS  # noqa: PLC0415
    except ImportError as error:
        raise UsageError("the models are those of transformers: pip install transformers") from error
    return architectures_of(MODELS)


def architectures_of(models: Mapping[str, Any]) -> dict[str, Architecture]:
    """The architectures by name, one for each class. Where a class has several model types, the text model's is taken.

    models: the class of each model type.
    """
    by_class: dict[str, list[str]] = {}
    for name, model in models.items():
        by_class.setdefault(model, []).append(name)
    result = {}
    for model, names in by_class.items():
        matching_names = [n for n in names if model.lower().startswith(n.replace("_", "").replace("-", ""))]
        name = next((n for n in names if n.endswith("_text")), (matching_names or names)[0])
        result[name] = Architecture(name, model, tuple(n for n in names if n != name))
    return dict(sorted(result.items()))


def tiny_config(name: str) -> tuple[Any, str]:
    """A small config of this model type, and the kinds of its layers. Errors of transformers pass through."""
    from transformers import CONFIG_MAPPING  # noqa: PLC0415

    config_class, special = CONFIG_MAPPING[name], dict(SPECIAL.get(name, {}))
    default = config_class(**special.pop("default", {}))
    values = small_values({**default.to_dict(), **vars(default)}, SIZES)
    values |= {field: copy.deepcopy(value) for field, value in special.items()}
    config = config_class(**values)
    return config, layer_kinds(config)


def small_values(config_fields: dict[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of the fields that a config has, and one layer of each kind."""
    values = {
        f: value
        for f, value in sizes.items()
        if config_fields.get(f) is not None or (f in config_fields and f in EVEN_IF_NONE)
    }
    if "kv_lora_rank" in config_fields:
        values["num_key_value_heads"] = values["num_attention_heads"]  # latent attention has no groups
    return values | one_layer_per_kind(config_fields)


def one_layer_per_kind(config_fields: dict[str, Any]) -> dict[str, Any]:
    """The number of layers and the lists along them, cut to one layer of each kind, and to two at least."""
    field = next((field for field in _LAYERS if isinstance(config_fields.get(field), int)), None)
    if field is None:
        return {}
    layer_lists = {
        n: v
        for n, v in config_fields.items()
        if isinstance(v, list | tuple) and len(v) == config_fields[field] and n != field
    }
    first_layers: dict[tuple[str, ...], int] = {}
    for layer in range(config_fields[field]):
        first_layers.setdefault(tuple(str(layer_lists[n][layer]) for n in KINDS if n in layer_lists), layer)
    layers = list(first_layers.values()) if len(first_layers) > 1 else list(range(min(2, config_fields[field])))
    return {field: len(layers), **{n: [v[layer] for layer in layers] for n, v in layer_lists.items()}}


def layer_kinds(config: Any) -> str:
    """The kinds of layers named by a config, as "linear_attention, full_attention"."""
    unique_kinds: dict[str, None] = {}
    for name in KINDS:
        for kind in getattr(config, name, None) or ():
            if isinstance(kind, str):
                unique_kinds[kind] = None
    return ", ".join(unique_kinds)


def tiny_model(name: str) -> tuple[nn.Module, str]:
    """A small model with random weights, and the kinds of its layers. Errors of transformers pass through."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    config, layers = tiny_config(name)
    return build_small(AutoModelForCausalLM, config), layers


def build_small(auto_class: Any, config: Any) -> nn.Module:
    """The model of this config, unless it is large. Raises ValueError; errors of transformers pass through.

    auto_class: of transformers, such as AutoModelForCausalLM.
    """
    with torch.device("meta"):
        size = sum(p.numel() for p in auto_class.from_config(config).parameters())
    if size > _MAX_PARAMETERS:
        raise ValueError(f"its small config still has {size / 1e6:,.0f} million parameters")
    model: nn.Module = auto_class.from_config(config)
    return model
