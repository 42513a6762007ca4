"""For the CI of a training repository: the model that is trained computes each document of a pack as if it were alone.

`check_module` raises, and pytest shows why; no plugin is needed. `transformer.py` stands for your model: give it small
sizes, and every kind of layer that you train.
"""

import pytest
import torch
from transformer import Transformer

import packproof


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def test_documents_are_isolated():
    packproof.check_module(Transformer, convention="cu_seqlens", profile="quick")


def test_the_batches_of_our_collator_are_isolated():
    """The check that a training run does on its first batch, on what your collator makes."""
    model = Transformer()
    packproof.guard(model)
    model(torch.randint(64, (1, 12)), cu_seqlens=torch.tensor([0, 5, 12], dtype=torch.int32))


def test_these_checks_see_a_leak():
    """Boundaries lost on the way to the model, as by a wrapper that does not pass them on."""

    class Wrapper(Transformer):
        def forward(self, tokens, cu_seqlens):
            return super().forward(tokens, torch.tensor([0, tokens.shape[1]], dtype=torch.int32))

    with pytest.raises(packproof.CheckFailed, match="reach"):
        packproof.check_module(Wrapper, convention="cu_seqlens", profile="quick")
    model = Wrapper()
    packproof.guard(model)
    with pytest.raises(packproof.CheckFailed, match=r"first module that leaks: layers\.0"):
        model(torch.randint(64, (1, 12)), cu_seqlens=torch.tensor([0, 5, 12], dtype=torch.int32))
