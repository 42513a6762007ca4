"""The tensors of a packed call, where the rows of each sequence lie in them, and the call itself."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from packproof.base.axes import KEYS, Axes, has_key_rows, is_in_pool, role, shape
from packproof.properties.calling.call import Call, Placement
from packproof.properties.ops.op import Op
from packproof.properties.ops.reductions import count_tokens


@dataclass(frozen=True)
class PackedTensors:
    """The inputs and incoming gradients of one call of an op, on the CPU."""

    op: Op
    """The op."""
    lengths: tuple[int, ...]
    """Tokens of each sequence."""
    slack: int
    """Rows after the last sequence of each packing."""
    inputs: Mapping[str, Tensor]
    """Tensors by input name."""
    cotangents: Mapping[str, Tensor]
    """Incoming gradients by output name."""
    options: Mapping[str, Any]
    """Keyword options."""
    axes: Mapping[str, Axes]
    """Axes of every input and output by name."""
    sizes: Mapping[str, int]
    """Axis sizes by name."""
    index_dtype: torch.dtype = torch.int32
    """Dtype of cu_seqlens."""
    key_lengths: tuple[int, ...] | None = None
    """Lengths of the second packing; None where it is the first."""
    configuration: int = 0
    """As in a case."""
    period: int = 0
    """As in a case, as a hint: a rearranged pack may no longer repeat itself."""
    omitted: tuple[str, ...] = ()
    """As in a case; they are in `inputs`, at their neutral values."""

    @property
    def token_dtype(self) -> torch.dtype:
        """The dtype of the tokens, in which a kernel computes."""
        return self.inputs[next(iter(self.op.inputs))].dtype

    @property
    def token_dtype_name(self) -> str:
        return str(self.token_dtype).removeprefix("torch.")

    @cached_property
    def offsets(self) -> list[int]:
        return [0, *accumulate(self.lengths)]

    @cached_property
    def key_offsets(self) -> list[int]:
        return self.offsets if self.key_lengths is None else [0, *accumulate(self.key_lengths)]

    def offsets_of(self, axes: Axes) -> list[int]:
        """The offsets of the packing of a tensor with these axes."""
        return self.key_offsets if has_key_rows(axes) else self.offsets

    @property
    def cu_seqlens(self) -> Tensor:
        return torch.tensor(self.offsets, dtype=self.index_dtype)

    @property
    def metadata(self) -> dict[str, Tensor]:
        """The offsets as arguments of a call, by name."""
        if self.key_lengths is None:
            return {"cu_seqlens": self.cu_seqlens}
        return {"cu_seqlens": self.cu_seqlens, "cu_seqlens_k": torch.tensor(self.key_offsets, dtype=self.index_dtype)}

    @cached_property
    def digest(self) -> str:
        """Digest of the layout, the options and the bits of every tensor. Equal calls have equal digests."""
        layout = (
            self.lengths,
            self.key_lengths,
            self.slack,
            sorted(self.options.items()),
            self.index_dtype,
            self.omitted,
        )
        h = hashlib.blake2b(repr(layout).encode())
        for kind in (self.inputs, self.cotangents):
            for name, x in kind.items():
                h.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
                h.update(x.reshape(-1).view(torch.uint8).numpy().data if x.numel() else b"")
        return h.hexdigest()

    @property
    def wrt(self) -> tuple[str, ...]:
        return tuple(name for name in self.passed_inputs if name not in self.op.constants)

    @property
    def passed_inputs(self) -> dict[str, Tensor]:
        """The inputs of the call, by name."""
        return {name: x for name, x in self.inputs.items() if name not in self.omitted}

    def differentiated(self, gradients: bool | Collection[str]) -> tuple[str, ...]:
        """The inputs to differentiate by: all of `wrt`, none, or these."""
        return tuple(n for n in self.wrt if gradients is True or (gradients and n in gradients))

    def in_float64(self, *, gradients: bool = True) -> dict[str, Tensor]:
        """Copies of the inputs in float64; integers stay integers. With `gradients`, those of `wrt` require grad."""
        exact = {n: x.detach().double() if x.is_floating_point() else x for n, x in self.inputs.items()}
        return {n: x.requires_grad_(gradients) if n in self.wrt else x for n, x in exact.items()}

    @cached_property
    def slots(self) -> list[int]:
        """The slot of each sequence, or of each row, in the op's pool, -1 where it has none."""
        assert self.op.pool is not None
        return [int(slot) for slot in self.inputs[self.op.pool[0]]]

    def rows(self, j: int, axes: Axes) -> slice:
        """The rows of sequence j in a tensor with these axes; in a pool its slot, if any; all of a shared tensor."""
        if is_in_pool(axes):
            slot = self.slots[j]
            return slice(max(slot, 0), slot + 1)
        if role(axes) == "token":
            return slice(*self.offsets_of(axes)[j : j + 2])
        return slice(j, j + 1) if role(axes) == "sequence" else slice(None)

    def spans(self, j: int, axes: Axes) -> list[slice]:
        """The rows of sequence j as above; in a pool with a slot for each token, a row for each of its slots."""
        if is_in_pool(axes) and self.op.slots_of_tokens:
            slots = self.slots[self.offsets[j] : self.offsets[j + 1]]
            return [slice(slot, slot + 1) for slot in slots if slot >= 0]
        return [self.rows(j, axes)]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an input or output."""
        counts = {"t": self.offsets[-1] + self.slack, KEYS: self.key_offsets[-1] + self.slack, "s": len(self.lengths)}
        return shape(self.axes[name], {**self.sizes, **counts})

    def call(
        self,
        *,
        gradients: bool | Collection[str] = True,
        placement: Placement | Mapping[str, Placement] = "contiguous",
        **flags: Any,
    ) -> Call:
        """The call of this sample.

        gradients: whether it is differentiated, or the inputs by which it is.
        placement: strides by tensor name. A single one applies to all tensors along tokens and their incoming
            gradients; "expanded" applies to the incoming gradients only.
        flags: further fields of the `Call`.
        """
        wrt = self.differentiated(gradients)
        cotangents = self.cotangents if wrt else {}
        tokens = [n for n in self.passed_inputs if role(self.axes[n]) == "token" and placement != "expanded"]
        placed_tensors = tokens + [f"cotangent:{n}" for n in cotangents if role(self.axes[n]) == "token"]
        placements = dict.fromkeys(placed_tensors, placement) if isinstance(placement, str) else placement
        return Call(
            inputs=self.passed_inputs,
            cu_seqlens=self.cu_seqlens,
            cu_seqlens_k=self.metadata.get("cu_seqlens_k"),
            configuration=self.configuration,
            options=self.options,
            outputs=tuple(self.outputs),
            wrt=wrt,
            cotangents=cotangents,
            placement={} if placement == "contiguous" else placements,
            shared=tuple(
                [n for n in (*self.passed_inputs, *self.outputs) if role(self.axes[n]) == "shared"]
                + [f"cotangent:{n}" for n in cotangents if role(self.axes[n]) == "shared"]
            ),
            token_rows=tuple(
                [n for n, axes in self.axes.items() if role(axes) == "token"]
                + [f"cotangent:{n}" for n in self.cotangents if role(self.axes[n]) == "token"]
            ),
            **flags,
        )

    @property
    def causal(self) -> bool:
        """Whether no output may follow later tokens."""
        causal = self.op.causal
        return bool(self.options.get(causal)) if isinstance(causal, str) else causal

    @property
    def outputs(self) -> list[str]:
        """Names of the returned tensors, in order."""
        return self.op.output_names(self.options)

    @cached_property
    def counts(self) -> list[float]:
        """How many tokens of each sequence count in a reduction."""
        labels = self.op.integers_drawn("label")
        return count_tokens(self.op.counted, labels, self.offsets, self.inputs, self.metadata, self.options)
