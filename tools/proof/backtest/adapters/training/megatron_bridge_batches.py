"""Megatron-Bridge: collators of packs, and what a step makes of the batches."""

import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import torch
from torch import Tensor

from packproof import refs
from packproof.proof.backtest.adapters.training.stand_ins import IGNORED, PAD, labels_of, stand_in

Documents = list[dict[str, list[int]]]
_ROWS = 1024
"""Rows of a pack."""
_MULTIPLE = 4


@dataclass
class PackedParameters:
    """Megatron's parameters of a pack, which number the rows if they know how many there are."""

    qkv_format: str = "thd"
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_kv: Tensor | None = None
    cu_seqlens_q_padded: Tensor | None = None
    cu_seqlens_kv_padded: Tensor | None = None
    max_seqlen_q: Tensor | None = None
    max_seqlen_kv: Tensor | None = None
    total_tokens: int | None = None

    @property
    def seq_idx(self) -> Tensor | None:
        if self.total_tokens is None or self.cu_seqlens_q is None:
            return None
        return refs.seq_idx_from_cu_seqlens(self.cu_seqlens_q, self.total_tokens)[None]


def without_megatron(*others: str) -> None:
    """Megatron's modules, which the questions do not call, but for its parameters of a pack."""
    import_module("megatron")  # a folder without a file of its own
    stand_in("megatron.core.msc_utils", "megatron.core.utils", *others)
    if find_spec("tqdm") is None:
        stand_in("tqdm")
        sys.modules["tqdm"].tqdm = lambda items, **_: items  # type: ignore[attr-defined]
    params = ModuleType("megatron.core.packed_seq_params")
    params.PackedSeqParams = PackedParameters  # type: ignore[attr-defined]
    sys.modules[params.__name__] = params


def _parameters_of() -> Any:
    """The function of a step that reads the parameters of a pack from a batch."""
    return import_module("megatron.bridge.training.utils.packed_seq_utils").get_packed_seq_params


def _batch(tokens: Tensor, params: PackedParameters) -> dict[str, Any]:
    """The tokens, and the offsets that attention takes."""
    offsets = {name: getattr(params, name) for name in ("cu_seqlens_q", "cu_seqlens_q_padded", "max_seqlen_q")}
    return {"input_ids": tokens, **offsets}


class _FineTuning:
    """The collator of packs of a data set. Each document ends with an end of text, which is a label alone."""

    pad_cu_seqlens = False
    multiple = 1

    def __init__(self) -> None:
        without_megatron("datasets")
        kind = import_module("megatron.bridge.data.packing.gpt_sft").GPTSFTPackedDataset
        self._dataset = kind.__new__(kind)  # its constructor reads a file
        vars(self._dataset).update(
            tokenizer=SimpleNamespace(eos_id=PAD),
            answer_only_loss=True,
            ceil_to_power_2=False,
            max_seq_length=_ROWS,
            pad_cu_seqlens=self.pad_cu_seqlens,
            pad_seq_length_to_mult=16,
            pad_to_max_length=self.pad_cu_seqlens,
            return_cu_seqlen=True,
            _pad_seq_to_mult=self.multiple,
        )
        self._parameters = _parameters_of()

    def rows(self, *packs: Documents) -> dict[str, Any]:
        """The batch of several packs, one in each row. Another pack of the data set has a sequence more."""
        lengths = [len(document["input_ids"]) for pack in packs for document in pack]
        longest = max(lengths, default=0)
        metadata = {"max_samples_per_bin": len(lengths) + 1, "dataset_max_seqlen": longest, "min_packed_seqlen": 1}
        self._dataset.pack_metadata = [metadata]
        batch: dict[str, Any] = self._dataset.collate_fn([_item(pack) for pack in packs])
        return batch


class PaddedOffsets(_FineTuning):
    """Offsets of a fixed number, beside those of sequences that are padded to a multiple."""

    pad_cu_seqlens = True
    multiple = _MULTIPLE

    def __call__(self, documents: Documents) -> dict[str, Any]:
        batch = self.rows(documents)
        return _batch(batch["tokens"], self._parameters(batch))


class RowsOfSeveralPacks(_FineTuning):
    """The first row of a batch whose second row is a pack of one document."""

    def __call__(self, documents: Documents) -> dict[str, Any]:
        batch = self.rows(documents, documents[:1])
        first = {name: x[:1] for name, x in batch.items() if isinstance(x, Tensor)}
        labels = first["labels"].masked_fill(first["loss_mask"] == 0, IGNORED)
        positions = first["position_ids"]
        return _batch(first["tokens"], self._parameters(first)) | {"position_ids": positions, "shift_labels": labels}


def _item(documents: Documents) -> dict[str, Any]:
    """A pack of the data set; its mask says of each token whether the one after it is a target."""
    ids = [token for document in documents for token in (*document["input_ids"], PAD)]
    targets = [
        is_target
        for document in documents
        for is_target in [*(label != IGNORED for label in labels_of(document)[1:]), False, False][-_rows(document) :]
    ]
    boundaries = [0, *accumulate(map(_rows, documents))]
    return {"input_ids": ids, "seq_boundaries": boundaries, "loss_mask": targets}


def _rows(document: dict[str, list[int]]) -> int:
    return len(document["input_ids"]) + 1


class NumbersForStates:
    """The numbers of sequences, which layers with a state take: they get no offsets."""

    def __init__(self) -> None:
        without_megatron()
        self._parameters = _parameters_of()

    def __call__(self, documents: Documents) -> dict[str, Any]:
        lengths = [len(document["input_ids"]) for document in documents]
        tokens = torch.tensor([[token for document in documents for token in document["input_ids"]]])
        offsets = torch.tensor([[0, *accumulate(lengths), -1]], dtype=torch.int32)
        batch = {"cu_seqlens": offsets, "max_seqlen": torch.tensor(max(lengths)), "total_tokens": tokens.shape[1]}
        return {"input_ids": tokens, "seq_idx": self._parameters(batch).seq_idx}


class _EnergonClass:
    """A class of Energon, which is generic."""

    @classmethod
    def __class_getitem__(cls, _: Any) -> type[Self]:
        return cls


class Omni:
    """The batch of Nemotron Omni's samples in one pack, without media."""

    def __init__(self) -> None:
        energon = "megatron.energon"
        names = [f"{energon}.epathlib.epath", f"{energon}.flavors.base_dataset", f"{energon}.flavors.webdataset"]
        without_megatron(*names, "webdataset.autodecode")
        for name in ("Batch", "Sample", "DefaultTaskEncoder", "DefaultDecoderWebdatasetFactory"):
            for module in (energon, *names):
                setattr(sys.modules[module], name, type(name, (_EnergonClass,), {}))
        self._module: Any = import_module("megatron.bridge.data.energon.nemotron_omni_task_encoder")
        words = SimpleNamespace(pad_token_id=PAD, eos_token_id=1)
        self._encoder = self._module.NemotronOmniTaskEncoder(SimpleNamespace(tokenizer=words), pack_sequences=True)
        self._parameters = _parameters_of()

    def __call__(self, documents: Documents) -> dict[str, Any]:
        batch = self._encoder.encode_batch(self._encoder.batch([self._sample(document) for document in documents]))
        params = self._parameters({name: x for name, x in batch.items() if x is not None})
        return _batch(batch["tokens"], params) | {"position_ids": batch["position_ids"]}

    def _sample(self, document: dict[str, list[int]]) -> Any:
        ids = torch.tensor(document["input_ids"])
        return self._module.NemotronOmniTaskSample(
            __key__="", __subflavors__={}, input_ids=ids, labels=ids, loss_mask=torch.ones(len(ids))
        )


class PositionsOfThreeAxes:
    """Positions of Qwen3-VL for a row of documents without images."""

    def __init__(self) -> None:
        core = "megatron.core"
        without_megatron(
            f"{core}.inference.contexts",
            f"{core}.models.common.embeddings.rope_utils",
            f"{core}.transformer.transformer_block",
            f"{core}.transformer.transformer_config",
        )
        self._positions = import_module("megatron.bridge.models.qwen_vl.modelling_qwen3_vl.rope").get_rope_index

    def __call__(self, documents: Documents) -> dict[str, Any]:
        offsets = [0, *accumulate(len(document["input_ids"]) for document in documents)]
        tokens = torch.tensor([[token for document in documents for token in document["input_ids"]]])
        params = PackedParameters(cu_seqlens_q=torch.tensor(offsets, dtype=torch.int32))
        positions, _ = self._positions(2, 1, 2, 3, input_ids=tokens, packed_seq_params=params)
        return {"input_ids": tokens, "position_ids": positions}
