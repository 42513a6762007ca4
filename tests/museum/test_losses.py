"""The correct losses of the museum agree with the references in float64, in every form; their bugs do not."""

import pytest
import torch

from packproof import museum
from packproof.harness.process.execution.execute import InProcess
from packproof.museum import Control
from packproof.properties.bounds import vjp
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.sample import Sample
from packproof.properties.ops.catalogue import OPS
from packproof.properties.ops.losses import LOSSES

CONTROLS = {name: c for name, c in museum.controls().items() if c.kernel.startswith("packproof.museum.losses.")}
ENTRIES = {name: e for name, e in museum.entries().items() if e.kernel.startswith("packproof.museum.losses.")}
LAYOUTS = ((5, 0, 1, 9), (0, 0), ())


def samples(op: str) -> list[Sample]:
    """Packs with slack, each with other options, tokens that count and optional inputs."""
    declared, found = OPS[op], []
    for seed in range(4):
        options = tuple((name, values[seed % len(values)]) for name, values in declared.options.items())
        present = tuple(n for n, spec in declared.inputs.items() if spec.endswith("?")) if seed % 2 else ()
        sizes = tuple(declared.sizes[0].items())
        lengths = LAYOUTS[seed % 3]
        found.append(draw(declared, Case(lengths, "float64", sizes, 2, present, options=options, seed=seed)))
    return found


def disagrees(control: Control, sample: Sample) -> bool:
    expected = vjp(sample.op.reference, sample, gradients=sample.op.differentiable)
    result = InProcess(control.load()).run(sample.call(gradients=sample.op.differentiable))
    actual = [*result.outputs.values(), *result.gradients.values()]
    pairs = zip(actual, expected.values(), strict=True)
    return not all(torch.allclose(a.double(), b, rtol=1e-12, atol=1e-12) for a, b in pairs)


@pytest.mark.parametrize("name", CONTROLS)
def test_a_correct_loss_agrees_with_the_reference(name: str) -> None:
    assert not any(disagrees(CONTROLS[name], sample) for sample in samples(CONTROLS[name].op))


def test_each_loss_has_three_forms() -> None:
    for op in LOSSES:
        assert len([c for c in CONTROLS.values() if c.op == op.name]) >= 3


@pytest.mark.parametrize("name", [n for n, e in ENTRIES.items() if "memory" not in e.properties and n not in ("N4",)])
def test_a_loss_with_a_bug_can_be_called(name: str) -> None:
    """It is detected by its properties: tests/quality/test_museum.py. Here it returns what the op does."""
    entry = ENTRIES[name]
    for sample in samples(entry.op):
        result = entry.load()(**sample.inputs, **sample.metadata, **sample.options)
        assert result.shape == sample.op.reference(**sample.inputs, **sample.metadata, **sample.options).shape
