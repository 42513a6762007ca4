"""The window of a convolution after drafts that were rejected (vllm-project/vllm#50272).

The incorrect kernel does not roll it back: rejected drafts stay in the window.
"""

from itertools import pairwise

import torch

import packproof
from packproof.adapters import adapt, cu_seqlens_int32
from packproof.refs import split_sequences


def conv_step(x, weight, state, slots, rejected, *, cu_seqlens):
    """x: (t, d). state: (c, d, m), the last inputs of each slot, oldest first. rejected: (s,), how many of the last
    ones were not accepted: it counts once for a step. Returns y (t, d) and the new state."""
    new, ys = state.clone(), []
    _, w = weight.shape
    for rows, slot, count in zip(split_sequences(x, cu_seqlens), slots.tolist(), rejected.tolist(), strict=True):
        if slot < 0 or not len(rows):
            ys.append(0 * rows)
            continue
        undone = min(count, state.shape[2] - w + 1)
        inputs = torch.cat([state[slot][:, : state.shape[2] - undone].to(rows.dtype), rows.T], 1)
        taps = inputs[:, inputs.shape[1] - len(rows) - w + 1 :].unfold(1, w, 1)
        ys.append((taps * weight[:, None]).sum(-1).T)
        inputs = torch.cat([inputs.new_zeros(len(weight), undone), inputs], 1)
        new[slot] = inputs[:, inputs.shape[1] - state.shape[2] :].to(new.dtype)
    return torch.cat([x[:0], *ys, 0 * x[int(cu_seqlens[-1]) :]]), new


OP = packproof.Op(
    name="conv_spec_step",
    reference=conv_step,
    inputs={"x": "t d", "weight": "d w", "state": "c d m", "slots": "s", "rejected": "s"},
    outputs={"y": "t d", "new_state": "c d m"},
    sizes=({"d": 3, "w": 3, "m": 5, "c": "slots"},),
    draws={"slots": "slot|c", "rejected": "once|m"},
    constants=frozenset({"x", "weight", "state", "slots", "rejected"}),
    pool=("slots", "state", "new_state"),
)


def _step(x, weight, state, slots, rejected, query_start_loc, *, rolls_back):
    d, w = weight.shape
    y, wide = torch.zeros_like(x), torch.promote_types(x.dtype, torch.float32)
    for j, (start, end) in enumerate(pairwise(query_start_loc.tolist())):
        slot = int(slots[j])
        if slot < 0 or start == end:
            continue
        count = min(int(rejected[j]), state.shape[2] - w + 1) if rolls_back else 0
        accepted = state[slot, :, : state.shape[2] - count].clone()
        inputs = torch.cat([accepted, x[start:end].T.to(accepted.dtype)], 1)
        windows = inputs.to(wide).unfold(1, w, 1)[:, start - end :]
        y[start:end] = (windows * weight.to(wide)[:, None]).sum(-1).T
        inputs = torch.cat([inputs.new_zeros(d, count), inputs], 1)
        state[slot] = inputs[:, inputs.shape[1] - state.shape[2] :]
    return y


def _rolled_back(x, weight, state, slots, rejected, query_start_loc):
    return _step(x, weight, state, slots, rejected, query_start_loc, rolls_back=True)


def _left_as_it_is(x, weight, state, slots, rejected, query_start_loc):
    return _step(x, weight, state, slots, rejected, query_start_loc, rolls_back=False)


def _adapted(function):
    return adapt(function, op=OP, metadata={"query_start_loc": cu_seqlens_int32}, in_place=("state",))


correct = _adapted(_rolled_back)
incorrect = _adapted(_left_as_it_is)
