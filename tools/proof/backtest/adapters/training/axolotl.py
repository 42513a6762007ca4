"""axolotl: its collators, its packing of pretraining data, and the attention of packed rows."""

import sys
from collections.abc import Iterator
from functools import partial
from itertools import count, pairwise
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from packproof import refs
from packproof.packs import PackCollator, PackStream
from packproof.proof.backtest.adapters.training.stand_ins import by_column, labels_of, stand_in, tokenizer
from packproof.properties.declarations import kernel
from packproof.properties.ops import Op
from packproof.refs import pack_in_order

Documents = list[dict[str, list[int]]]
_MULTIPLE = 64  # to which axolotl pads its packs
_RANKS = 2
_CHUNK = 8


def _without_numba() -> None:
    """Functions that numba would compile run as Python."""
    sys.modules.setdefault("numba", ModuleType("numba"))
    sys.modules["numba"].njit = lambda function: function  # type: ignore[attr-defined]


def _datasets() -> Any:
    """datasets' table. Its name is a count: the hash of its contents fails where pyarrow's types cannot be pickled."""
    from datasets import arrow_dataset, disable_progress_bars  # type: ignore[import-not-found]  # noqa: PLC0415

    disable_progress_bars()
    number = count()
    arrow_dataset.generate_fingerprint = lambda _: f"{next(number):016x}"
    return arrow_dataset.Dataset


def _features(document: dict[str, list[int]]) -> dict[str, list[int]]:
    """A document as a data set of axolotl has it."""
    n = len(document["input_ids"])
    return {
        "input_ids": list(document["input_ids"]),
        "attention_mask": [1] * n,
        "labels": labels_of(document),
        "position_ids": list(range(n)),
    }


class Multipack:
    """The collator of packs whose mask numbers the documents."""

    def __init__(self) -> None:
        from axolotl.utils.collators import batching  # type: ignore[import-not-found]  # noqa: PLC0415

        self._collate = batching.V2BatchSamplerDataCollatorForSeq2Seq(tokenizer(), pad_to_multiple_of=_MULTIPLE)

    def __call__(self, documents: Documents) -> Any:
        return self._collate([_features(document) for document in documents])


class Distillation:
    """The collator of packs with the teacher's tokens and log-probabilities."""

    def __init__(self) -> None:
        from axolotl.integrations.kd import collator  # type: ignore[import-not-found]  # noqa: PLC0415

        words = tokenizer()
        words.deprecation_warnings = {}
        self._collate = collator.KDBatchSamplerDataCollatorForSeq2Seq(words, pad_to_multiple_of=_MULTIPLE)

    def __call__(self, documents: Documents) -> Any:
        return self._collate([[self._with_teacher(document) for document in documents]])

    def _with_teacher(self, document: dict[str, list[int]]) -> dict[str, Any]:
        ids = document["input_ids"]
        teacher = {
            "target_token_ids": [[token, token + 1] for token in ids],
            "target_logprobs": [[-0.5, -1.0] for _ in ids],
            "target_mask": [[1, 1] for _ in ids],
        }
        return _features(document) | teacher


class Pretraining:
    """Rows of pretraining data: filtered, packed and collated."""

    def __init__(self) -> None:
        _without_numba()
        from axolotl.utils.data import pretraining  # type: ignore[import-not-found]  # noqa: PLC0415

        self._module, self._dataset, self._tokenizer = pretraining, _datasets(), tokenizer()

    def __call__(self, documents: Documents, capacity: int) -> Iterator[dict[str, Any]]:
        torch.manual_seed(0)  # of the order of documents
        rows = [{name: x for name, x in _features(d).items() if name != "position_ids"} for d in documents]
        dataset = self._dataset.from_dict(by_column(rows))
        collate = self._module.PretrainingBatchSamplerDataCollatorForSeq2Seq(
            self._tokenizer, return_tensors="pt", padding=True, pad_to_multiple_of=capacity, multipack_attn=True
        )
        columns = self._module.encode_packed_pretraining(
            collate, lambda _: (dataset, None), {}, max_seq_length=capacity, batch_size=1, multipack_attn=True
        )
        for values in zip(*columns.values(), strict=True):
            yield {name: torch.as_tensor(value)[None] for name, value in zip(columns, values, strict=True)}


class ShuffledDataset:
    """Packs of a shuffled data set. Documents longer than a pack never come here: axolotl leaves them out before."""

    def __init__(self) -> None:
        _without_numba()
        from axolotl.utils import samplers  # type: ignore[import-not-found]  # noqa: PLC0415

        self._samplers, self._dataset = samplers, _datasets()

    def __call__(self, documents: Documents, capacity: int) -> Iterator[list[dict[str, list[int]]]]:
        longest = max((len(d["input_ids"]) for d in documents), default=0)
        if longest > capacity:
            raise ValueError(f"a document of {longest} tokens; a pack has {capacity}")
        dataset = self._dataset.from_dict(by_column([{"input_ids": d["input_ids"]} for d in documents]))
        dataset = dataset.shuffle(seed=42)
        sampler = self._samplers.MultipackBatchSampler(
            range(len(dataset)),
            batch_size=1,
            batch_max_len=capacity,
            lengths=np.asarray(self._samplers.get_dataset_lengths(dataset)),
            group_size=100_000,
            bin_size=200,
        )
        for batch in sampler:
            for pack in batch:
                yield [dataset[int(row)] for row in pack]


class Slices:
    """Rows cut over the ranks of sequence parallelism; the rank is given in place of a process group."""

    def __init__(self) -> None:
        ring = ModuleType("axolotl.monkeypatch.attention.ring_attn")
        ring.get_ring_attn_group = lambda: None  # type: ignore[attr-defined]
        ring.update_ring_attn_params = lambda batch: None  # type: ignore[attr-defined]
        sys.modules[ring.__name__] = ring
        from axolotl.utils.collators import batching  # noqa: PLC0415

        world = SimpleNamespace(get_rank=lambda group: 0, get_world_size=lambda group: _RANKS)
        with mock.patch.object(batching, "dist", world):
            self._collate = batching.BatchSamplerDataCollatorForSeq2Seq(
                tokenizer(), pad_to_multiple_of=_RANKS, sequence_parallel_degree=_RANKS
            )

    def __call__(self, documents: Documents, capacity: int) -> Iterator[dict[str, Any]]:
        for pack in pack_in_order([len(d["input_ids"]) for d in documents], capacity * _RANKS):
            for rank in range(_RANKS):
                self._collate.local_rank = rank
                features = [_features(documents[piece.sequence]) for piece in pack]
                yield dict(self._collate([{k: x for k, x in f.items() if k != "attention_mask"} for f in features]))


class Numbers:
    """The numbers of documents from positions, in rows into which documents go on."""

    def __init__(self) -> None:
        from axolotl.monkeypatch.models.nemotron_h import (  # type: ignore[import-not-found]  # noqa: PLC0415
            modeling,
        )

        self._get_seq_idx = modeling.get_seq_idx

    def __call__(self, documents: Documents, capacity: int) -> Iterator[dict[str, Any]]:
        collate = PackCollator()  # a row without padding, as a rank of context parallelism has it
        for batch in map(collate, PackStream(documents, capacity, packer="split")):
            yield {"input_ids": batch["input_ids"], "seq_idx": self._get_seq_idx(batch["position_ids"])}


def _position_ids(cu_seqlens: Tensor, rows: int) -> Tensor:
    return refs.position_ids_from_cu_seqlens(cu_seqlens, rows).long()[None]


def _varlen_attn(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, *_: Any, window_size: Any) -> Tensor:
    """In place of torch's kernel, which needs a GPU: the reference."""
    assert tuple(window_size) == (-1, 0)
    return refs.attention(q, k, v, cu_seqlens=cu_seqlens, causal=True)


@kernel(op="attention", slack=False)
def sdpa_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,
    causal: bool = False,
    softmax_scale: float | None = None,
) -> Tensor:
    from axolotl.monkeypatch.attention import sdpa_varlen as module  # type: ignore[import-not-found]  # noqa: PLC0415
    from torch.nn.attention import varlen  # noqa: PLC0415
    from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: PLC0415

    with mock.patch.object(varlen, "varlen_attn", _varlen_attn):
        attend = module._build_varlen_forward(sdpa_attention_forward)
    layer = SimpleNamespace(is_causal=causal, training=True, num_key_value_groups=q.shape[1] // k.shape[1])
    tokens = (x.transpose(0, 1)[None] for x in (q, k, v))
    positions = _position_ids(cu_seqlens, len(q))
    y, _ = attend(layer, *tokens, None, scaling=softmax_scale, position_ids=positions)
    assert isinstance(y, Tensor)
    return y[0]


def _chunked(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Causal attention inside chunks of each sequence."""
    pieces = zip(*(refs.split_sequences(x, cu_seqlens) for x in (q, k, v)), strict=True)
    return refs.join_sequences([_chunked_alone(*rows) for rows in pieces], v)


def _chunked_alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows = torch.arange(len(q))
    allowed = (rows[:, None] >= rows) & (rows[:, None] // _CHUNK == rows // _CHUNK)
    return _masked(q, k, v, allowed)


def _masked(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


CHUNKED = Op(
    name="chunked_attention",
    reference=_chunked,
    inputs={"q": "t h k", "k": "t h k", "v": "t h v"},
    outputs={"y": "t h v"},
    matmul=True,
    sizes=({"h": 2, "k": 8, "v": 8},),
)


@kernel(op=CHUNKED, slack=False)
def flex_mask(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Attention through the mask that axolotl puts in place of that of transformers."""
    make_mask = _patched_mask()
    numbers = refs.seq_idx_from_cu_seqlens(cu_seqlens, len(q)) + 1
    if not len(q):
        return torch.zeros_like(v)
    mask = make_mask(numbers[None], attention_chunk_size=_CHUNK).mask_mod
    rows = torch.arange(len(q))
    allowed = mask(torch.tensor(0), torch.tensor(0), rows[:, None], rows[None])
    return _masked(q, k, v, allowed)


def _patched_mask() -> Any:
    """The mask's function, which is put in place only with versions of its time, and compiled there."""
    import transformers  # noqa: PLC0415
    from axolotl.monkeypatch.attention import flex_attn  # noqa: PLC0415
    from torch.nn.attention import flex_attention  # noqa: PLC0415
    from transformers.integrations import flex_attention as integration  # noqa: PLC0415

    def uncompiled(*arguments: Any, _compile: bool = False, **options: Any) -> Any:
        return create(*arguments, **options)

    create = flex_attention.create_block_mask
    with (
        mock.patch.object(torch, "__version__", "2.6.0"),
        mock.patch.object(transformers, "__version__", "4.51.0"),
        mock.patch.object(flex_attention, "create_block_mask", uncompiled),
    ):
        flex_attn.patch_flex_make_mask()
    return integration.make_flex_block_causal_mask


def qwen3_next() -> torch.nn.Module:
    """The mixer of Qwen3-Next as axolotl patches it, with the convolution and the delta rule of fla in plain torch."""
    convolution = ModuleType("fla.modules.convolution")
    convolution.causal_conv1d = _convolve  # type: ignore[attr-defined]
    stand_in("fla.modules")
    sys.modules[convolution.__name__] = convolution
    from axolotl.monkeypatch.models.qwen3_next import (  # type: ignore[import-not-found]  # noqa: PLC0415
        modeling,
    )
    from transformers import Qwen3NextConfig  # noqa: PLC0415
    from transformers.models.qwen3_next import modeling_qwen3_next  # noqa: PLC0415

    modeling.patch_qwen3_next_gateddelta_layer()
    config = Qwen3NextConfig(
        hidden_size=64,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_conv_kernel_dim=4,
    )
    layer = modeling_qwen3_next.Qwen3NextGatedDeltaNet(config, 0)
    layer.chunk_gated_delta_rule = partial(_delta_rule, modeling_qwen3_next.torch_chunk_gated_delta_rule)
    return _Mixer(layer)


class _Mixer(torch.nn.Module):
    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden_states: Tensor, position_ids: Tensor | None = None, **_: Any) -> Tensor:
        positions = torch.arange(hidden_states.shape[1])[None] if position_ids is None else position_ids
        y = self.layer(hidden_states, position_ids=positions)
        assert isinstance(y, Tensor)
        return y


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Any, cu_seqlens: Tensor | None
) -> tuple[Tensor, None]:
    offsets = torch.tensor([0, x.shape[1]]) if cu_seqlens is None else cu_seqlens
    return refs.causal_conv1d(x[0], weight, bias, cu_seqlens=offsets, activation=activation)[None], None


def _delta_rule(
    rule: Any, *qkv: Tensor, g: Tensor, beta: Tensor, cu_seqlens: Tensor, **options: Any
) -> tuple[Tensor, None]:
    pieces = [slice(*ends) for ends in pairwise(cu_seqlens.tolist())]
    outputs = [rule(*(x[:, p] for x in qkv), g=g[:, p], beta=beta[:, p], **options)[0] for p in pieces]
    return torch.cat(outputs, 1), None
