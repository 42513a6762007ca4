"""Megatron-LM: the metadata of packed batches, by its functions for data loaders and by its class of parameters."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

_ROWS = 64
"""Rows of a bin."""
_SLOT = 4
"""A document has room for a whole multiple of these rows."""
_Documents = Sequence[Mapping[str, Any]]


def bin_of_documents(documents: _Documents) -> dict[str, Any]:
    """One bin, with the offsets that the trainer's packer makes."""
    from megatron.rl import sequence_packing_utils as packing  # noqa: PLC0415

    lengths = _lengths(documents)
    if sum(lengths) > _ROWS:
        raise ValueError(f"{sum(lengths)} tokens; a bin has {_ROWS} rows")
    numbers = list(range(len(lengths)))
    info = packing.PackingInfo(
        bin_seq_indices=[numbers],
        seq_starts={0: [0, *accumulate(lengths)]},
        seq_lengths=lengths,
        seq_to_bin_idx=[0] * len(numbers),
        packing_algo="fifo",
    )
    make = packing.create_packed_seq_params_for_bin
    limit = {"max_sequences_per_bin": _ROWS} if "max_sequences_per_bin" in inspect.signature(make).parameters else {}
    params = make(packing_info=info, bin_idx=0, bin_size=_ROWS, device=torch.device("cpu"), **limit)
    batch = {"input_ids": _tokens(documents, _ROWS)}
    return batch if params is None else {**batch, "cu_seqlens": params.cu_seqlens_q}


def bins_of_documents(documents: _Documents, capacity: int) -> Iterator[dict[str, Any]]:
    """All bins of the trainer's packer, with at most 16 documents each."""
    from megatron.rl import sequence_packing_utils as packing  # noqa: PLC0415

    if min(_lengths(documents), default=0) < 1:
        raise ValueError("a bin has no empty documents")
    rows = [torch.tensor(document["input_ids"]) for document in documents]
    packer = packing.SequencePacker(capacity, pad_token=0)
    tokens, positions, _, _, info = packer.pack_sequences(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True))
    for number in range(len(tokens)):
        params = packing.create_packed_seq_params_for_bin(
            packing_info=info,
            bin_idx=number,
            bin_size=capacity,
            max_sequences_per_bin=packer.max_sequences_per_bin,
            device=tokens.device,
        )
        batch = {"input_ids": tokens[number : number + 1], "cu_seqlens": params.cu_seqlens_q}
        yield {**batch, "position_ids": positions[number : number + 1]}


def batch_of_one_rank(documents: _Documents) -> dict[str, Any]:
    """The batch of the only rank."""
    from megatron.core import utils  # noqa: PLC0415

    longest = torch.tensor([max(_lengths(documents), default=0)])
    offsets = _offsets(documents)
    batch, params = utils.get_thd_batch_on_this_cp_rank(
        {"tokens": _tokens(documents)}, offsets, offsets, longest, cp_size=1, cp_rank=0
    )
    return {"input_ids": batch["tokens"], "cu_seqlens": params.cu_seqlens_q, "max_seqlen": params.max_seqlen_q}


def batch_of_slots(documents: _Documents) -> dict[str, Any]:
    """The tokens without padding, beside offsets with room for each document up to a multiple, as a kernel wants it."""
    from megatron.core.packed_seq_params import PackedSeqParams  # noqa: PLC0415

    offsets = _offsets(documents)
    rooms = [-(-n // _SLOT) * _SLOT for n in _lengths(documents)]
    slots = torch.tensor([0, *accumulate(rooms)], dtype=torch.int32)
    params = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=offsets,
        cu_seqlens_kv=offsets,
        cu_seqlens_q_padded=slots,
        cu_seqlens_kv_padded=slots,
        total_tokens=int(offsets[-1]),
    )
    batch = {"input_ids": _tokens(documents), "cu_seqlens_q": params.cu_seqlens_q, "seq_idx": params.seq_idx}
    return {**batch, "cu_seqlens_q_padded": params.cu_seqlens_q_padded}


def _lengths(documents: _Documents) -> list[int]:
    return [len(document["input_ids"]) for document in documents]


def _offsets(documents: _Documents) -> Tensor:
    return torch.tensor([0, *accumulate(_lengths(documents))], dtype=torch.int32)


def _tokens(documents: _Documents, rows: int = 0) -> Tensor:
    """(1, rows): the documents, and 0 for padding."""
    tokens = [token for document in documents for token in document["input_ids"]]
    return torch.tensor([tokens + [0] * (rows - len(tokens))])
