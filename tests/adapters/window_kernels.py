"""A stand-in with SGLang's signature of a convolution of drafts, in a chain or in a tree; correct and with bugs."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from packproof.adapters import Padded, Tree, WindowBuffer, adapt
from packproof.adapters.adapter import Adapter

BUGS = (
    "the pool is updated",
    "the window before a draft is stored",
    "slots of the pool in the buffer",
    "the last input of each window alone",
)
BUGS_OF_CHAINS = ("older inputs of later windows",)  # of a tree they are those of its siblings
BUGS_OF_TREES = ("nodes are a chain", "windows are those of a chain", "the parent of the parent")


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    conv_state_indices: Tensor | None = None,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_parent_token: Tensor | None = None,
    bug: str = "",
) -> Tensor:
    """x: (s, d, nodes). conv_state: (slots, d, w-1), stays. intermediate_conv_window: (rows, nodes, d, w-1), in place.

    conv_state_indices, intermediate_state_indices: (s,), -1 for padding. retrieve_parent_token: (s, nodes).
    """
    assert conv_state_indices is not None
    assert intermediate_conv_window is not None
    assert intermediate_state_indices is not None
    y, wide = torch.zeros_like(x), torch.promote_types(x.dtype, torch.float32)
    for j, (slot, row) in enumerate(zip(conv_state_indices.tolist(), intermediate_state_indices.tolist(), strict=True)):
        if slot < 0:
            continue
        stored = intermediate_conv_window[slot if bug == "slots of the pool in the buffer" else row]
        windows: list[Tensor] = []
        for node in range(x.shape[2]):
            parent = _parent(node, j, retrieve_parent_token, bug)
            before = conv_state[slot] if parent < 0 else windows[parent]
            inputs = torch.cat([before, x[j, :, node : node + 1]], 1)
            out = (inputs.to(wide) * weight.to(wide)).sum(1)
            out = out if bias is None else out + bias.to(wide)
            y[j, :, node] = silu(out) if activation else out
            windows.append(inputs[:, :-1] if bug == "the window before a draft is stored" else inputs[:, 1:])
            _store(stored, node, windows, bug)
        if bug == "the pool is updated":
            conv_state[slot] = windows[-1]
    return y


def _parent(node: int, request: int, parents: Tensor | None, bug: str) -> int:
    if parents is None or bug == "nodes are a chain":
        return node - 1
    parent = int(parents[request, node])
    return int(parents[request, parent]) if parent >= 0 and bug == "the parent of the parent" else parent


def _store(row: Tensor, node: int, windows: list[Tensor], bug: str) -> None:
    if bug == "the last input of each window alone":
        row[node, :, -1] = windows[node][:, -1]
        return
    row[node] = windows[node]
    if bug == "older inputs of later windows" and node > 0:
        row[node, :, 0] = windows[node - 1][:, 0]
    if bug == "windows are those of a chain" and node > 0:
        row[node, :, :-1] = windows[node - 1][:, 1:]


def chain(bug: str = "") -> Adapter:
    return _adapt(bug, tokens=Padded(axis=2), metadata={}, slots=_buffer(nodes=1))


def tree(bug: str = "") -> Adapter:
    nodes = Tree(axis=2)
    return _adapt(bug, tokens=nodes, metadata={"retrieve_parent_token": nodes.parents}, slots=_buffer(nodes=2))


def _buffer(nodes: int) -> WindowBuffer:
    return WindowBuffer(pool="conv_state", slots="conv_state_indices", width=4, nodes=nodes)


def _adapt(bug: str, **convention: Any) -> Adapter:
    return adapt(
        causal_conv1d_update,
        op="causal_conv1d_verify",
        names={"states": "intermediate_conv_window", "state_indices": "intermediate_state_indices"},
        in_place=("states",),
        given={"bug": bug},
        domain=["w == 4", "length == a"],  # each request has as many drafts
        slack=False,
        **convention,
    )
