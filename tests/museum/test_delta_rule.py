"""The bugs of linear attention and the delta rule pass the kind of test that their projects had."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from packproof.museum import entries
from packproof.properties.ops.catalogue import OPS


class Plain(NamedTuple):
    """lengths: of the pack. states: whether initial and final states are among what is compared. gradients: of y."""

    lengths: tuple[int, ...]
    states: bool = True
    gradients: bool = True
    key_heads: int = 1


PLAIN = {
    "L1": Plain((15, 31), gradients=False),
    "L2": Plain((15, 31)),
    "L3": Plain((61, 44, 57), gradients=False),
    "L4": Plain((61, 44, 57), key_heads=2),
    "L5": Plain((61, 44, 57)),
    "L6": Plain((61, 44, 57)),
    "L7": Plain((61, 44, 57)),
    "L8": Plain((61, 44, 57)),
    "L9": Plain((61, 44, 57)),
    "L10": Plain((61, 44, 57), states=False),
    "L11": Plain((128,)),
    "L12": Plain((61, 44, 57)),
    "L13": Plain((64, 64)),
    "L14": Plain((64, 64)),
    "L15": Plain((61, 44, 57)),
    "L16": Plain((61, 44, 57)),
}


def drawn(op: str, plain: Plain) -> dict[str, Tensor]:
    """As such tests draw them: normal, keys of unit length, gates by logsigmoid, beta by sigmoid."""
    torch.manual_seed(0)
    t, h, k, p = sum(plain.lengths), 2, 8, 6
    hk = h if op == "kda" else plain.key_heads
    q, keys, v = torch.randn(t, hk, k), torch.randn(t, hk, k), torch.randn(t, h, p)
    gate = torch.randn(t, h, k) if op == "kda" else torch.randn(t, h)
    found = {"q": q, "k": keys / keys.norm(dim=-1, keepdim=True), "v": v, "g": torch.nn.functional.logsigmoid(gate)}
    found |= {"beta": torch.rand(t, h), "decay": torch.tensor([-0.3, -0.05])}
    found |= {"initial_states": torch.randn(len(plain.lengths), h, k, p)} if plain.states else {}
    return {name: x for name, x in found.items() if name in OPS[op].inputs}


@pytest.mark.parametrize("name", PLAIN)
def test_it_passes_a_plain_allclose(name: str) -> None:
    entry, plain = entries()[name], PLAIN[name]
    offsets = torch.tensor([0, *plain.lengths]).cumsum(0)
    inputs = drawn(entry.op, plain)
    results = []
    for function, dtype in ((entry.load(), torch.float32), (OPS[entry.op].reference, torch.float64)):
        leaves = {name: x.to(dtype).requires_grad_() for name, x in inputs.items()}
        y, states = function(**leaves, cu_seqlens=offsets, return_final_states=True)
        found = [y, *([states] if plain.states else [])]
        if plain.gradients:
            found += torch.autograd.grad(y.sum(), list(leaves.values()))
        results.append([x.detach().float() for x in found])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_all_have_one() -> None:
    assert set(PLAIN) == {
        name for name, entry in entries().items() if entry.kernel.startswith("packproof.museum.delta")
    }
