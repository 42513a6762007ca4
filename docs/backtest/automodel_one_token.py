"""NeMo Automodel's loss of multi-token prediction at 987ba24e: fewer tokens than depths, IndexError."""

from types import SimpleNamespace

import torch
from nemo_automodel.components.loss.mtp import calculate_mtp_loss

for tokens in (3, 1):
    logits = [torch.randn(1, tokens, 7) for _ in range(2)]
    try:
        loss = calculate_mtp_loss(
            lambda logits, labels, **_: torch.nn.functional.cross_entropy(logits[0], labels[0], reduction="sum"),
            mtp_per_depth_logits=logits,
            labels=torch.zeros(1, tokens, dtype=torch.long),
            model=SimpleNamespace(),
            cu_seqlens=torch.tensor([0, tokens]),
        )
        print(f"pack of {tokens}, 2 depths:", f"loss {loss:.2g}")
    except IndexError as error:
        print(f"pack of {tokens}, 2 depths: IndexError:", error)
