"""The sizes, optional inputs and options that an op is timed with: those of models on a GPU, small ones on a CPU."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from packproof.harness.bench.layouts import BenchLayout
from packproof.properties.cases.case import Case
from packproof.properties.cases.sample import Sample, draw
from packproof.properties.op import Op
from packproof.refs.axes import Axes, parse, role
from packproof.refs.errors import UsageError

Sizes = Mapping[str, int | str]

_BLOCK = 4093  # rows that are drawn and then repeated: a prime, so that sequences of a named layout differ


@dataclass(frozen=True)
class Setting:
    """sizes: of the axes, as in a case. present: optional inputs that are passed. options: keyword arguments."""

    sizes: Sizes
    present: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [" ".join(f"{axis}={n}" for axis, n in self.sizes.items() if n != "longest")]
        return ", ".join([*words, *self.present, *(f"{name}={value}" for name, value in self.options.items())])

    @property
    def arguments(self) -> tuple[str, ...]:
        """What a kernel has to take besides the op's required inputs."""
        return (*self.present, *self.options)

    def case(self, lengths: Sequence[int], dtype: str, seed: int) -> Case:
        options = tuple(self.options.items())
        return Case(tuple(lengths), dtype, tuple(self.sizes.items()), present=self.present, options=options, seed=seed)

    def sample(self, op: Op, layout: BenchLayout, dtype: str, seed: int) -> Sample:
        """Tensors for this layout. One block of rows is drawn and repeated: drawing a million tokens takes minutes."""
        sizes = {axis: layout.longest if n == "longest" else n for axis, n in self.sizes.items()}
        drawn = dataclasses.replace(self, sizes=sizes).case((min(layout.tokens, _BLOCK),), dtype, seed)
        block = draw(op, drawn)
        counts = {"token": layout.tokens, "sequence": len(layout.lengths)}

        def stretched(x: Tensor, axes: Axes) -> Tensor:
            return x if role(axes) == "shared" else x[torch.arange(counts[role(axes)]) % max(len(x), 1)]

        return dataclasses.replace(
            block,
            lengths=layout.lengths,
            inputs={name: stretched(x, block.axes[name]) for name, x in block.inputs.items()},
            cotangents={name: stretched(x, block.axes[name]) for name, x in block.cotangents.items()},
        )


_MODELS: Mapping[str, Setting] = {
    "causal_conv1d": Setting({"d": 4096, "w": 4}, ("bias",), {"activation": "silu"}),
    "rope": Setting({"h": 32, "k": 128, "r": 64, "m": "longest"}),
    "rope_qk": Setting({"hq": 32, "hk": 8, "k": 128, "r": 64, "m": "longest"}),
    "selective_scan": Setting({"d": 4096, "n": 16, "g": 1}, ("D", "z", "delta_bias"), {"delta_softplus": True}),
    "ssd": Setting({"h": 64, "p": 64, "n": 128, "g": 1}, ("D",), {"dt_softplus": True}),
    "attention": Setting({"hq": 16, "hk": 16, "k": 128, "v": 128}, (), {"causal": True}),
}
_SMALL: Mapping[str, Sizes] = {
    "causal_conv1d": {"d": 64, "w": 4},
    "rope": {"h": 4, "k": 64, "r": 32, "m": "longest"},
    "rope_qk": {"hq": 4, "hk": 2, "k": 64, "r": 32, "m": "longest"},
    "selective_scan": {"d": 16, "n": 16, "g": 1},
    "ssd": {"h": 4, "p": 16, "n": 16, "g": 1},
    "attention": {"hq": 4, "hk": 4, "k": 32, "v": 32},
}


def setting(op: Op, device: str, sizes: Mapping[str, int], inputs: Sequence[str] | None) -> Setting:
    """The op's setting on this device, with the given sizes and optional inputs; UsageError for unknown names."""
    of_models = _MODELS.get(op.name) or Setting((*op.model_sizes, *op.sizes)[0])
    usual = of_models.sizes if device == "cuda" else _SMALL.get(op.name, op.sizes[0])
    for axis in sizes:
        if axis not in usual:
            raise UsageError(f"--sizes: {op.name} has no axis {axis!r}; it has {', '.join(usual)}")
    optional = [name for name, spec in op.inputs.items() if parse(spec).optional]
    for name in inputs or ():
        if name not in optional:
            raise UsageError(
                f"--inputs: {op.name} has no optional input {name!r}; it has {', '.join(optional) or 'none'}"
            )
    present = of_models.present if inputs is None else tuple(inputs)
    return dataclasses.replace(of_models, sizes={**usual, **sizes}, present=present)


def sizes_from_text(text: str) -> dict[str, int]:
    """The sizes of `--sizes d=4096,n=16`."""
    sizes = {}
    for word in text.split(","):
        axis, _, number = word.strip().partition("=")
        if not axis or not number.isdecimal() or not int(number):
            raise UsageError(f"--sizes: {word.strip()!r} in {text!r}; expected sizes of axes, such as d=4096,n=16")
        sizes[axis] = int(number)
    return sizes
