"""The models and modes of the bench by name; nothing here needs torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from packproof.base.errors import UsageError
from packproof.base.names import require_known


@dataclass(frozen=True)
class Shape:
    """A stack of one kind of block."""

    block: Literal["mamba", "mamba2"]
    d_model: int
    layers: int
    """The number of blocks."""
    vocabulary: int = 50_280
    """The number of tokens that the embedding knows."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Arguments of the block. The defaults are those of the published models."""

    @property
    def tiny(self) -> bool:
        """Whether the references can train it in seconds."""
        return self.d_model < 64


SHAPES = {
    "mamba-tiny": Shape("mamba", 16, 2, 61, {"d_state": 4}),
    "mamba-110m": Shape("mamba", 768, 24),
    "mamba-780m": Shape("mamba", 1536, 48),
    "mamba-1.4b": Shape("mamba", 2048, 48),
    "mamba2-tiny": Shape("mamba2", 16, 2, 61, {"d_state": 4, "headdim": 8}),
    "mamba2-110m": Shape("mamba2", 768, 24),
    "mamba2-780m": Shape("mamba2", 1536, 48),
    "mamba2-1.4b": Shape("mamba2", 2048, 48),
}
DEFAULTS = {"cuda": ("mamba-1.4b", "mamba2-1.4b"), "cpu": ("mamba-tiny", "mamba2-tiny")}
CAPACITY = {"cuda": 4096, "cpu": 128}  # rows of a pass
MODES = {
    "single": "one document in each pass",
    "padded": "documents padded to the longest of their batch, as many as the rows of a pack allow",
    "packed": "one pack in each pass",
    "mamba_ssm": "the same packs in mamba-ssm's block, with seq_idx",
}


def models(names: tuple[str, ...] | None, device: str) -> tuple[str, ...]:
    """The names of the shapes to train. Raises UsageError for an unknown name and for a model that needs a GPU."""
    model_names = tuple(require_known("model", name, SHAPES) for name in names or DEFAULTS[device])
    gpu_models = [name for name in model_names if not SHAPES[name].tiny]
    if gpu_models and device == "cpu":
        tiny_models = ", ".join(name for name, shape in SHAPES.items() if shape.tiny)
        raise UsageError(f"--model: {gpu_models[0]} needs a GPU; references on a CPU train {tiny_models}")
    if 0 < len(gpu_models) < len(model_names):
        raise UsageError(
            f"--model: {', '.join(model_names)} do not train on the same documents; a tiny one runs without others"
        )
    return model_names


def modes(names: tuple[str, ...] | None) -> tuple[str, ...]:
    """The modes, in the order of MODES. Raises UsageError for an unknown name."""
    mode_names = {require_known("mode", name, MODES) for name in names or MODES}
    return tuple(name for name in MODES if name in mode_names)
