"""A hybrid of four layers and a head, with one leak planted in it where a name says so."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from packproof import refs

WIDTH, VOCABULARY, HEADS = 8, 32, 2


def offsets_of(x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """The boundaries, or one document where there are none."""
    return torch.tensor([0, len(x)], dtype=torch.int32) if cu_seqlens is None else cu_seqlens


def wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, 4))

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        return refs.causal_conv1d(x, self.weight, cu_seqlens=offsets_of(x, cu_seqlens), activation="silu")


class Scan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.B, self.C = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 2)
        self.A_log = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        A = -wide(self.A_log).exp()[:, None].expand(-1, 2)
        delta = torch.nn.functional.softplus(x)
        return refs.selective_scan(x, delta, A, self.B(x), self.C(x), cu_seqlens=offsets_of(x, cu_seqlens))


class SSD(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dt, self.B, self.C = nn.Linear(WIDTH, HEADS), nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 3)
        self.A_log = nn.Parameter(torch.zeros(HEADS))

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        dt = torch.nn.functional.softplus(self.dt(x))
        heads, B, C = x.unflatten(-1, (HEADS, -1)), self.B(x)[:, None], self.C(x)[:, None]
        y = refs.ssd(heads, dt, -wide(self.A_log).exp(), B, C, cu_seqlens=offsets_of(x, cu_seqlens))
        return y.flatten(1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).unbind(1)
        return refs.attention(q, k, v, cu_seqlens=offsets_of(x, cu_seqlens), causal=True).flatten(1)


class Experts(nn.Module):
    """Each token goes to the better of two experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.router(x).softmax(-1)
        best, out = weight.argmax(-1), torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            rows = (best == k).nonzero().flatten()
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows, k, None])
        return out


class Layer(nn.Module):
    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.norm, self.mixer, self.experts = nn.LayerNorm(WIDTH), mixer, Experts()

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        x = x + self.mixer(self.norm(x), cu_seqlens)
        return x + self.experts(x)


class Hybrid(nn.Module):
    """Takes ids (1, t) and cu_seqlens. told: the boundaries that a layer gets, by its number and what came."""

    def __init__(
        self,
        told: Callable[[int, Tensor], Tensor | None] = lambda layer, cu_seqlens: cu_seqlens,
        mixers: Sequence[Callable[[], nn.Module]] = (Conv, Scan, SSD, Attention),
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(mixer()) for mixer in mixers)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self._told = told

    def forward(self, input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
        x = self.embedding(input_ids)[0]
        for number, layer in enumerate(self.layers):
            x = layer(x, self._told(number, cu_seqlens))
        return self.head(x)[None]


def dropped_in(number: int, mixers: Sequence[Callable[[], nn.Module]] = (Conv, Scan, SSD, Attention)) -> Hybrid:
    return Hybrid(lambda layer, cu_seqlens: None if layer == number else cu_seqlens, mixers)


class _Mean(torch.autograd.Function):
    """Right forward, and a backward that adds the gradient of the token before, whatever document it is in."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return dy + torch.cat([dy[1:], dy[:1] * 0])


class LeakyBackward(Hybrid):
    """In the model itself, past its first layer."""

    def forward(self, input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
        x = self.embedding(input_ids)[0]
        for number, layer in enumerate(self.layers):
            x = layer(_Mean.apply(x) if number == 1 else x, cu_seqlens)
        return self.head(x)[None]


class ScanWithLeakyBackward(Scan):
    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Any:
        return _Mean.apply(super().forward(x, cu_seqlens))


class LastBatchsBoundaries(Hybrid):
    """Keeps the boundaries of the first pack that has as many tokens."""

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}
        super().__init__(lambda layer, cu_seqlens: self._kept.setdefault(int(cu_seqlens[-1]), cu_seqlens))


def same(document: Tensor) -> Tensor:
    return document[:, None] == document[None, :]


def ones(document: Tensor) -> Tensor:
    return torch.ones(len(document), len(document), dtype=torch.bool)


class MaskedAttention(Attention):
    """By the document of each token: sees (t, t) is made from it."""

    def __init__(self, sees: Callable[[Tensor], Tensor] = same) -> None:
        super().__init__()
        self._sees = sees

    def forward(self, x: Tensor, document: Tensor | None = None) -> Tensor:
        assert document is not None
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).transpose(0, 2).unbind(1)
        scores = (q @ k.mT).masked_fill(~(self._sees(document) & ones(document).tril()), -torch.inf)
        return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


class Counted(Hybrid):
    """Told by seq_idx, -1 for padding: attention compares it as `read`, the layer below looks for its changes."""

    def __init__(
        self,
        read: Callable[[Tensor], Tensor] = lambda document: document,
        sees: Callable[[Tensor], Tensor] = same,
    ) -> None:
        super().__init__(mixers=[Conv, Attention])
        self.layers[1].mixer, self._read = MaskedAttention(sees), read

    def forward(self, input_ids: Tensor, seq_idx: Tensor) -> Tensor:
        document = seq_idx[0]
        changes = (document.diff() != 0).nonzero().flatten() + 1
        offsets = torch.cat([torch.tensor([0]), changes, torch.tensor([len(document)])]).int()
        x = self.embedding(input_ids)[0]
        for number, layer in enumerate(self.layers):
            x = layer(x, self._read(document) if number == 1 else offsets)
        return self.head(x)[None]


class Positions(nn.Module):
    """Learned positions, then attention by document: positions restart only where `restarts`."""

    def __init__(self, restarts: bool) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(2048, WIDTH)
        self.attention, self._restarts = Attention(), restarts

    def forward(self, input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
        where = torch.arange(input_ids.shape[1])
        if self._restarts:
            where = where - cu_seqlens[torch.searchsorted(cu_seqlens, where, right=True) - 1]
        return self.attention(self.embedding(input_ids)[0] + self.places(where), cu_seqlens)[None]


class InContext(nn.Module):
    """Layers have their boundaries while the model runs, and are told of one document when they are computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Told() for _ in range(2))

    def forward(self, x: Tensor, seq_idx: Tensor) -> Tensor:
        y = x[0]
        for layer in self.layers:
            layer.document = seq_idx[0]
            y = layer(y)
            layer.document = torch.zeros_like(seq_idx[0])
        return y


class Told(MaskedAttention):
    document: Tensor | None = None

    def forward(self, x: Tensor, document: Tensor | None = None) -> Tensor:
        return super().forward(x, self.document)


class Routed(Hybrid):
    """The two experts of each layer score alike, but for what `apart` adds to the first: it gets the tokens."""

    def __init__(self, apart: Callable[[Tensor], Tensor]) -> None:
        super().__init__(mixers=[Attention])
        for layer in self.layers:
            layer.experts = Alike(apart)


class Alike(Experts):
    def __init__(self, apart: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._apart = apart

    def forward(self, x: Tensor) -> Tensor:
        score = self.router(x)[:, :1].expand(-1, 2)
        score = score + torch.stack([self._apart(x), torch.zeros(len(x))], -1).to(score)
        weight, best = score.softmax(-1).topk(1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            rows = (best[:, 0] == k).nonzero().flatten()
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows])
        return out
