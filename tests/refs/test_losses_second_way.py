"""Every loss in float64 against a second formulation in 40 digits: values and gradients agree within 1e-12."""

import random

import pytest
import torch
from torch import Tensor

from packproof import museum
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.sample import Sample
from packproof.properties.ops.catalogue import OPS
from packproof.properties.ops.losses import LOSSES
from tests.refs.losses_by_mpmath import SECOND_WAYS, numbers

LENGTHS, SLACK = (3, 0, 1, 4), 2
WITHIN = {"rtol": 1e-12, "atol": 1e-12}


def sample_of(name: str, seed: int) -> Sample:
    """Each seed has other tokens that count, other options and another size; every second one all optional inputs."""
    op, rng = OPS[name], random.Random(seed)
    options = tuple((option, rng.choice(values)) for option, values in op.options.items())
    present = tuple(n for n, spec in op.inputs.items() if spec.endswith("?")) if seed % 2 else ()
    sizes = tuple(op.sizes[seed % len(op.sizes[:2])].items())
    return draw(op, Case(LENGTHS, "float64", sizes, slack=SLACK, present=present, options=options, seed=seed))


def reference_of(sample: Sample) -> tuple[Tensor, dict[str, Tensor]]:
    """The output, and the gradients by name."""
    inputs = sample.in_float64()
    y = sample.op.reference(**inputs, **sample.metadata, **sample.options)
    [dy] = sample.cotangents.values() if sample.cotangents else [None]
    leaves = [inputs[n] for n in sample.wrt]
    return y, dict(zip(sample.wrt, torch.autograd.grad(y, leaves, dy) if leaves else (), strict=True))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", SECOND_WAYS)
def test_a_loss_agrees_with_its_second_way(name: str, seed: int) -> None:
    sample = sample_of(name, seed)
    y, gradients = reference_of(sample)
    [dy] = [numbers(d) for d in sample.cotangents.values()] or [None]
    inputs = {n: x.detach() for n, x in sample.inputs.items()}
    value, slopes = SECOND_WAYS[name](**inputs, **sample.options, offsets=sample.offsets, dy=dy)
    torch.testing.assert_close(y, as_tensor(value), **WITHIN)
    assert slopes.keys() == gradients.keys()
    for n, gradient in gradients.items():
        torch.testing.assert_close(gradient, as_tensor(slopes[n]), **WITHIN)


@pytest.mark.parametrize("bug", ["N3", "N5", "N18", "N21", "N23", "N25", "N28"])
def test_a_loss_with_a_bug_disagrees(bug: str) -> None:
    entry = museum.entries()[bug]
    disagreements = []
    for seed in range(8):
        sample = sample_of(entry.op, seed)
        y = entry.load()(**sample.inputs, **sample.metadata, **sample.options)
        [dy] = [numbers(d) for d in sample.cotangents.values()]
        value, _ = SECOND_WAYS[entry.op](**sample.inputs, **sample.options, offsets=sample.offsets, dy=dy)
        disagreements.append(not torch.allclose(y, as_tensor(value), **WITHIN))
    assert any(disagreements)


def as_tensor(x: object) -> Tensor:
    def plain(v: object) -> object:
        return [plain(e) for e in v] if isinstance(v, list) else float(v)

    return torch.tensor(plain(x), dtype=torch.float64)


def test_every_loss_has_a_second_way() -> None:
    assert {op.name for op in LOSSES} == SECOND_WAYS.keys()
