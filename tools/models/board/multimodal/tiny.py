"""A small random model of any architecture of transformers that reads images, its towers as small as its text model."""

import copy
from functools import cache
from typing import Any

from torch import nn

from packproof.base.errors import UsageError
from packproof.models.board import exceptions
from packproof.models.board.multimodal.sizes import OUTER_SIZES, SPECIAL, TEXT_SIZES, TOWER_SIZES
from packproof.models.board.tiny import (
    Architecture,
    architectures_of,
    build_small,
    layer_kinds,
    small_values,
)


@cache
def multimodal_architectures() -> dict[str, Architecture]:
    """The architectures of the installed transformers that read images, by name, one for each class."""
    try:
        from transformers.models.auto.modeling_auto import (  # noqa: PLC0415
            MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as MODELS,
        )
    except ImportError as error:
        raise UsageError("the models are those of transformers: pip install transformers") from error
    return architectures_of(MODELS)


def tiny_multimodal_config(name: str) -> tuple[Any, str]:
    """A small config of this model type, and the kinds of layers of its text model. Errors of transformers pass."""
    from transformers import CONFIG_MAPPING  # noqa: PLC0415

    config_class, special = CONFIG_MAPPING[name], copy.deepcopy(dict(SPECIAL.get(name, {})))
    default = config_class()
    values = small_values({f: v for f, v in default.to_dict().items() if not f.endswith("_config")}, OUTER_SIZES)
    for part, part_class in default.sub_configs.items():
        default_part = getattr(default, part, None)
        if default_part is None and part == "vision_config":  # as gemma4's is, unless it is named
            default_part = part_class()
        if default_part is not None:
            sizes = TEXT_SIZES if part == "text_config" else TOWER_SIZES
            fields = {**default_part.to_dict(), **vars(default_part)}
            values[part] = {
                "model_type": default_part.model_type,
                **small_values(fields, sizes),
                **copy.deepcopy(dict(exceptions.SPECIAL.get(default_part.model_type, {}))),
                **special.get(part, {}),
            }
    config = config_class(**{**values, **special.get("", {})})
    return config, layer_kinds(config.get_text_config())


def tiny_multimodal_model(name: str) -> tuple[nn.Module, str]:
    """A small model with random weights, and the kinds of layers of its text model. Errors of transformers pass."""
    from transformers import AutoModelForImageTextToText  # noqa: PLC0415

    config, layers = tiny_multimodal_config(name)
    return build_small(AutoModelForImageTextToText, config), layers
