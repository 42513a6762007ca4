"""Wrong calls of the blocks: sizes that do not fit, ops that are none, packs of another shape."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from packproof import layers, refs
from tests.wrong_calls.refused import Wrong, assert_refused

OFFSETS = torch.tensor([0, 2, 5])
U = torch.ones(5, 8)


def made(says: tuple[str, ...], **changed: Any) -> Wrong:
    """A Mamba-2 block with other arguments."""
    given: dict[str, Any] = {"d_model": 8, "d_state": 4, "headdim": 4, "ops": refs, **changed}
    return Wrong(lambda: layers.Mamba2Block(**given), says)


def attention(*says: str, **changed: Any) -> Wrong:
    """An attention block with other arguments."""
    given: dict[str, Any] = {"embed_dim": 8, "num_heads": 4, "ops": refs, **changed}
    return Wrong(lambda: layers.AttentionBlock(**given), says)


def called(kind: str, *says: str, u: Any = U, **changed: Any) -> Wrong:
    def call() -> object:
        kinds: dict[str, Callable[..., Any]] = {
            "mamba": layers.MambaBlock,
            "mamba2": partial(layers.Mamba2Block, headdim=4),
            "attention": partial(layers.AttentionBlock, num_heads=2),
        }
        return kinds[kind](8, ops=refs)(u, **{"cu_seqlens": OFFSETS, **changed})

    return Wrong(call, says)


TABLE = {
    "no width": made(d_model=0, says=("Mamba2Block: d_model is 0", "1 or more")),
    "half a state": made(d_state=2.5, says=("Mamba2Block: d_state is 2.5", "a whole number")),
    "heads that do not fit": made(headdim=3, says=("headdim is 3", "does not divide the 16 channels")),
    "groups that do not fit": made(ngroups=3, says=("ngroups is 3", "does not divide the 4 heads")),
    "a head by another name": made(head_dim=4, says=("Mamba2Block: head_dim is no argument; did you mean headdim?",)),
    "ops by name": made(ops="refs", says=("ops is 'refs'", "no causal_conv1d and no ssd", "packproof.refs")),
    "recompute as a word": made(recompute="yes", says=("recompute is 'yes'", "True or False")),
    "a rank of another word": Wrong(
        lambda: layers.MambaBlock(8, dt_rank="full", ops=refs),  # type: ignore[arg-type]
        ("MambaBlock: dt_rank is 'full'", "a whole number"),
    ),
    "mamba with heads": Wrong(
        lambda: layers.MambaBlock(8, headdim=4, ops=refs),  # type: ignore[call-arg]
        ("MambaBlock: headdim is no argument", "dt_rank"),
    ),
    "heads of keys that do not fit": attention("num_heads_kv is 3", "does not divide num_heads, 4", num_heads_kv=3),
    "a width that heads do not share": attention("num_heads is 3", "embed_dim, 8", "say head_dim", num_heads=3),
    "an odd rotation": attention("rotary_emb_dim is 1", "an even number up to head_dim, 2", rotary_emb_dim=1),
    "a rotation past the head": attention("rotary_emb_dim is 4", "up to head_dim, 2", rotary_emb_dim=4),
    "a rotation by nothing": attention("rotary_emb_base is 0", "a finite number above 0", rotary_emb_base=0),
    "pairs by name": attention("rotary_emb_interleaved is 'gpt'", "True or False", rotary_emb_interleaved="gpt"),
    "a window of nothing": attention("sliding_window is 0", "1 or more", sliding_window=0),
    "a negative convolution": attention("d_conv is -1", "0 or more", d_conv=-1),
    "a wrong d_model": attention("AttentionBlock: d_model is no argument", "embed_dim", d_model=8),
    "attention without boundaries": Wrong(
        lambda: layers.AttentionBlock(8, 2, ops=refs)(U), ("forward: cu_seqlens is missing",)
    ),
    "attention of another width": called("attention", "AttentionBlock: u is (5, 7)", "(t, 8)", u=torch.ones(5, 7)),
    "a reference of other heads": Wrong(
        lambda: layers.attention_reference(
            layers.AttentionBlock(8, 4, 2, ops=refs).state_dict(), U, cu_seqlens=OFFSETS, num_heads=4
        ),
        ("attention_reference: num_heads is 4 and num_heads_kv 4", "of other heads"),
    ),
    "no boundaries": Wrong(
        lambda: layers.MambaBlock(8, ops=refs)(U), ("forward: cu_seqlens is missing", "It takes u, cu_seqlens")
    ),
    "boundaries by another name": called("mamba", "seq_idx is no argument", "cu_seqlens", seq_idx=OFFSETS),
    "offsets as a list": called("mamba2", "cu_seqlens is a list", cu_seqlens=[0, 2, 5]),
    "offsets past the end": called("mamba2", "cu_seqlens ends at 6", cu_seqlens=torch.tensor([0, 6])),
    "a batch": called("mamba", "MambaBlock: u is (2, 5, 8)", "(t, 8) or (1, t, 8)", u=torch.ones(2, 5, 8)),
    "another width": called("mamba2", "Mamba2Block: u is (5, 7)", "(t, 8) or (1, t, 8)", u=torch.ones(5, 7)),
    "a vector": called("mamba", "u is (8,)", "(1, t, 8)", u=torch.ones(8)),
    "token ids": called("mamba", "u is int64", "floats", u=torch.ones(5, 8, dtype=torch.int64)),
    "a list of tokens": called("mamba", "u is a list", "(t, 8)", u=[1.0]),
    "a reference of other parameters": Wrong(
        lambda: layers.mamba_reference(layers.Mamba2Block(8, ops=refs, headdim=4).state_dict(), U, cu_seqlens=OFFSETS),
        ("mamba_reference: parameters has no", "dt_proj.weight"),
    ),
    "a reference of a block": Wrong(
        lambda: layers.mamba_reference(layers.MambaBlock(8, ops=refs), U, cu_seqlens=OFFSETS),  # type: ignore[arg-type]
        ("mamba_reference: parameters is a MambaBlock", "a state dict"),
    ),
    "a reference of another width": Wrong(
        lambda: layers.mamba_reference(layers.MambaBlock(9, ops=refs).state_dict(), U, cu_seqlens=OFFSETS),
        ("mamba_reference: u is (5, 8)", "(t, 9)"),
    ),
    "a reference past the end": Wrong(
        lambda: layers.mamba_reference(layers.MambaBlock(8, ops=refs).state_dict(), U, cu_seqlens=OFFSETS + 1),
        ("mamba_reference: cu_seqlens starts at 1",),
    ),
    "a reference of three groups": Wrong(
        lambda: layers.mamba2_reference(
            layers.Mamba2Block(8, headdim=4, ops=refs).state_dict(), U, cu_seqlens=OFFSETS, ngroups=3
        ),
        ("mamba2_reference: ngroups is 3", "4 heads"),
    ),
}


@pytest.mark.parametrize("wrong", TABLE.values(), ids=TABLE.keys())
def test_it_is_refused(wrong: Wrong) -> None:
    assert_refused(wrong)
