"""All programs at once: the bits of one program after another, its faults with their texts, its memory."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from packproof.harness.interpreter import repair
from packproof.harness.interpreter.batch.launch import BatchingSanitizer
from packproof.harness.interpreter.sanitizer import Sanitizer
from tests.harness import triton_batches

repair.install()


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(torch.uint8)


def both(run: Callable[[], list[Tensor]]) -> tuple[list[Tensor], list[Tensor], BatchingSanitizer]:
    """The results of programs one after another, and together."""
    with Sanitizer():
        wanted = run()
    with BatchingSanitizer() as sanitizer:
        got = run()
    return wanted, got, sanitizer


@pytest.mark.parametrize("name", triton_batches.LAUNCHES)
def test_a_batch_has_the_bits_of_one_program_after_another(name: str) -> None:
    wanted, got, sanitizer = both(triton_batches.LAUNCHES[name])
    assert sanitizer.batches == sanitizer.launches == 1
    assert all(torch.equal(bits(w), bits(g)) for w, g in zip(wanted, got, strict=True))
