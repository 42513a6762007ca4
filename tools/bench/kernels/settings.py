"""The sizes, optional inputs and options at which an op is timed: those of models on a GPU, small ones on a CPU."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from packproof.base.axes import Axes, parse, role
from packproof.base.errors import UsageError
from packproof.base.names import did_you_mean
from packproof.bench.kernels.layouts import BenchLayout
from packproof.properties.cases import Case, Sample, draw
from packproof.properties.ops import Op

Sizes = Mapping[str, int | str]

_BLOCK = 4093  # rows to draw and repeat: a prime, so sequences of a named layout differ


@dataclass(frozen=True)
class Setting:
    """How one op is timed."""

    sizes: Sizes
    """The sizes of the axes, as in a case; "longest" stands for the longest sequence of the layout."""
    present: tuple[str, ...] = ()
    """Optional inputs to pass."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments."""
    omitted_arguments: tuple[str, ...] = ()
    """Default inputs and options that a kernel under test does not take."""

    def __str__(self) -> str:
        words = [" ".join(f"{axis}={n}" for axis, n in self.sizes.items() if n != "longest")]
        words += [*self.present, *(f"{name}={value}" for name, value in self.options.items())]
        return ", ".join([*words, *(f"without {name}" for name in self.omitted_arguments)])

    def without_arguments(self, names: Collection[str]) -> "Setting":
        """The same setting without these optional inputs and options."""
        return dataclasses.replace(
            self,
            present=tuple(name for name in self.present if name not in names),
            options={name: value for name, value in self.options.items() if name not in names},
            omitted_arguments=tuple(name for name in self.arguments if name in names),
        )

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of a kernel besides the op's required inputs."""
        return (*self.present, *self.options)

    def case(self, lengths: Sequence[int], dtype: str, seed: int) -> Case:
        options = tuple(self.options.items())
        return Case(tuple(lengths), dtype, tuple(self.sizes.items()), present=self.present, options=options, seed=seed)

    def sample(self, op: Op, layout: BenchLayout, dtype: str, seed: int) -> Sample:
        """Tensors for this layout.

        One block of rows is drawn and repeated, because drawing a million tokens takes minutes.
        """
        sizes = {axis: layout.longest if n == "longest" else n for axis, n in self.sizes.items()}
        block_case = dataclasses.replace(self, sizes=sizes).case((min(layout.tokens, _BLOCK),), dtype, seed)
        block = draw(op, block_case)
        counts = {"token": layout.tokens, "sequence": len(layout.lengths)}

        def stretch(x: Tensor, axes: Axes) -> Tensor:
            if not x.is_floating_point():  # positions: each sequence starts at 0, as far as tables reach
                return x.new_zeros(counts[role(axes)])
            return x if role(axes) == "shared" else x[torch.arange(counts[role(axes)]) % max(len(x), 1)]

        return dataclasses.replace(
            block,
            lengths=layout.lengths,
            inputs={name: stretch(x, block.axes[name]) for name, x in block.inputs.items()},
            cotangents={name: stretch(x, block.axes[name]) for name, x in block.cotangents.items()},
        )


_MODELS: Mapping[str, Setting] = {
    "causal_conv1d": Setting({"d": 4096, "w": 4}, ("bias",), {"activation": "silu"}),
    "rope": Setting({"h": 32, "k": 128, "r": 64, "m": "longest"}),
    "rope_qk": Setting({"hq": 32, "hk": 8, "k": 128, "r": 64, "m": "longest"}),
    "grouped_mm": Setting({"d": 2048, "f": 768}),
    "hadamard": Setting({"h": 32, "k": 128}, ("signs",)),
    "rope_hadamard": Setting({"h": 32, "k": 128, "r": 64, "m": "longest"}, ("signs",)),
    "selective_scan": Setting({"d": 4096, "n": 16, "g": 1}, ("D", "z", "delta_bias"), {"delta_softplus": True}),
    "ssd": Setting({"h": 64, "p": 64, "n": 128, "g": 1}, ("D",), {"dt_softplus": True}),
    "attention": Setting({"hq": 16, "hk": 16, "k": 128, "v": 128}, (), {"causal": True}),
    **dict.fromkeys(
        ("linear_attention", "simple_gla", "retention", "delta_rule"), Setting({"hk": 16, "hv": 16, "k": 128, "p": 128})
    ),
    "gated_delta_rule": Setting({"hk": 16, "hv": 32, "k": 128, "p": 128}, (), {"qk_l2norm": True}),
    "kda": Setting({"h": 32, "k": 128, "p": 128}, (), {"qk_l2norm": True}),
}
_SMALL: Mapping[str, Sizes] = {
    "causal_conv1d": {"d": 64, "w": 4},
    "rope": {"h": 4, "k": 64, "r": 32, "m": "longest"},
    "rope_qk": {"hq": 4, "hk": 2, "k": 64, "r": 32, "m": "longest"},
    "grouped_mm": {"d": 64, "f": 32},
    "hadamard": {"h": 4, "k": 64},
    "rope_hadamard": {"h": 4, "k": 64, "r": 32, "m": "longest"},
    "selective_scan": {"d": 16, "n": 16, "g": 1},
    "ssd": {"h": 4, "p": 16, "n": 16, "g": 1},
    "attention": {"hq": 4, "hk": 4, "k": 32, "v": 32},
}


def setting(
    op: Op,
    device: str,
    sizes: Mapping[str, int],
    inputs: Sequence[str] | None,
    options: Mapping[str, str] | None = None,
) -> Setting:
    """The op's setting on this device, with the given sizes, optional inputs and options.

    UsageError for unknown names and values.

    options: values in text.
    """
    model_setting = _MODELS.get(op.name) or Setting((*op.model_sizes, *op.sizes)[0])
    default_sizes = model_setting.sizes if device == "cuda" else _SMALL.get(op.name, op.sizes[0])
    for axis in sizes:
        if axis not in default_sizes:
            raise UsageError(f"--sizes: {op.name} has no axis {axis!r}; it has {', '.join(default_sizes)}")
    optional = [name for name, spec in op.inputs.items() if parse(spec).optional]
    for name in inputs or ():
        if name not in optional:
            raise UsageError(
                f"--inputs: {op.name} has no optional input {name!r}; {did_you_mean(name, optional)}"
                f"it has {', '.join(optional) or 'none'}"
            )
    return dataclasses.replace(
        model_setting,
        sizes={**default_sizes, **sizes},
        present=model_setting.present if inputs is None else tuple(dict.fromkeys(inputs)),
        options={**model_setting.options, **{name: _option(op, name, text) for name, text in (options or {}).items()}},
    )


def _option(op: Op, name: str, text: str) -> Any:
    """The value of the op's option for this text."""
    if name not in op.options:
        raise UsageError(
            f"--options: {op.name} has no option {name!r}; {did_you_mean(name, op.options)}"
            f"it has {', '.join(op.options) or 'none'}"
        )
    values = {str(value).lower(): value for value in op.options[name]}
    if text.lower() not in values:
        raise UsageError(
            f"--options: {name} is {text!r}, expected {' or '.join(str(value) for value in op.options[name])}"
        )
    return values[text.lower()]


def sizes_from_text(text: str) -> dict[str, int]:
    """The sizes of `--sizes d=4096,n=16`."""
    sizes = {}
    for axis, number in _pairs("--sizes", text, "sizes of axes, such as d=4096,n=16").items():
        if not number.isdecimal() or not int(number):
            raise UsageError(f"--sizes: {axis} is {number!r} in {text!r}, expected a whole number above zero")
        sizes[axis] = int(number)
    return sizes


def options_from_text(text: str) -> dict[str, str]:
    """The options of `--options activation=none`, their values in text."""
    return _pairs("--options", text, "options of the op, such as activation=none")


def _pairs(option: str, text: str, expected: str) -> dict[str, str]:
    """The pairs of `a=1,b=2`; UsageError for another form, and for a repeated name."""
    pairs: dict[str, str] = {}
    for word in text.split(","):
        name, _, value = word.strip().partition("=")
        if not name or not value:
            raise UsageError(f"{option}: {word.strip()!r} in {text!r}; expected {expected}")
        if name in pairs:
            raise UsageError(f"{option}: {name} comes twice in {text!r}; name it once")
        pairs[name] = value
    return pairs
