"""flash-linear-attention: labels are shifted over the whole row, so that documents predict the first token of the next.

The loss is that of GLAForCausalLM and most of its classes, of hidden states that are given: it runs on a CPU.
"""

import torch
from fla.models import GLAConfig, GLAForCausalLM

sizes = {"hidden_size": 64, "num_heads": 2, "num_hidden_layers": 1, "vocab_size": 64, "intermediate_size": 96}
model = GLAForCausalLM(GLAConfig(**sizes, fuse_cross_entropy=False, fuse_linear_cross_entropy=False))
hidden, labels = torch.randn(1, 12, 64), torch.randint(64, (1, 12))  # documents of 5 and 7 tokens
other = labels.clone()
other[0, 5] = (labels[0, 5] + 1) % 64  # another label of the second document's first token


def loss(rows, labels):
    return model._compute_logits_and_loss(hidden[:, rows], labels[:, rows])[0].item()


alone, packed = slice(5, 12), slice(0, 12)
moves = [abs(loss(rows, other) - loss(rows, labels)) for rows in (alone, packed)]
print(f"alone, the label of a first token does not count: {moves[0]:.2g}")
print(f"in the pack, it makes the loss of {loss(packed, labels):.4g} move by {moves[1]:.2g}")
ignored = labels.clone()
ignored[0, 5] = -100  # as DataCollatorWithFlattening sends it
mean = (4 * loss(slice(0, 5), labels) + 6 * loss(alone, labels)) / 10
print(f"with -100 there it is {loss(packed, ignored):.7g}; the mean over tokens of the documents is {mean:.7g}")
