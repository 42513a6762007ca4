"""The models in these rogues."""

import torch
from torch import nn

WIDTH = 8


class Model(nn.Module):
    """A mean over the tokens of a document so far, correct."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, cu_seqlens):
        rows = self.linear(x)[0]
        documents = rows.split(cu_seqlens.diff().tolist())
        return torch.cat([document.cumsum(0) for document in documents])[None]


class Leaky(Model):
    """It sums over the whole pack."""

    def forward(self, x, cu_seqlens):
        return self.linear(x).cumsum(1)
