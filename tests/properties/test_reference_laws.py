"""A reference that breaks a law of its own declaration is refused, with the field to change; no kernel is blamed."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from pathlib import Path

import pytest
import torch

import packproof
from packproof.base.errors import UsageError
from packproof.harness.check.targets.reference_trial import try_laws
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import OPS
from packproof.refs import join_sequences, over_time, split_sequences
from tests.in_process import packproof_in
from tests.properties.own_ops import KERNELS

LAWS = tuple(PROPERTIES.values())


def op(reference, **fields):
    return packproof.Op(
        **{"name": "mine", "reference": reference, "inputs": {"x": "t d"}, "outputs": {"y": "t d"}, **fields}
    )


def centred(x, *, cu_seqlens):
    return join_sequences([p - p.mean(0) if len(p) else p for p in split_sequences(x, cu_seqlens)], x)


def scaled_by_block(x, *, cu_seqlens, causal=False):
    """The scale of quantization is that of a whole block, whatever the option says."""
    parts = [p / p.detach().abs().amax(0, keepdim=True) if len(p) else p for p in split_sequences(x, cu_seqlens)]
    return join_sequences([p.cumsum(0) if causal else p - p.mean(0) if len(p) else p for p in parts], x)


def centred_over_the_pack(x, *, cu_seqlens):
    return x - x[: int(cu_seqlens[-1])].sum(0) / max(int(cu_seqlens[-1]), 1)


def numbered(x, *, cu_seqlens):
    """Each sequence by its place in the pack."""
    return join_sequences([p * (j + 1) for j, p in enumerate(split_sequences(x, cu_seqlens))], x)


def averaged(x, *, cu_seqlens, initial=None, return_final=False):
    """The state goes on in half: what it hands on is not what it goes on from."""

    def step(h, row):
        h = 0.5 * h + row
        return h, h

    states = initial if initial is not None else x.new_zeros(len(cu_seqlens) - 1, x.shape[1])
    runs = [over_time(step, 0.5 * h, p) for h, p in zip(states, split_sequences(x, cu_seqlens), strict=True)]
    y = join_sequences([y for y, _ in runs], x)
    return (y, torch.stack([h for _, h in runs]) if runs else states) if return_final else y


AVERAGED = {
    "inputs": {"x": "t d", "initial": "s d?"},
    "outputs": {"y": "t d", "final": "s d?"},
    "options": {"return_final": (False, True)},
    "carry": ("initial", "final", "return_final"),
}


def pooled(x, states, slots, length, *, cu_seqlens):
    """`length` counts for the first piece of a request only: it cannot be cut."""
    new, rows = states.clone(), []
    for p, slot, n in zip(split_sequences(x, cu_seqlens), slots.tolist(), length.tolist(), strict=True):
        if slot < 0 or not len(p):
            rows.append(0 * p)
            continue
        rows.append(p.cumsum(0) + states[slot] + n)
        new[slot] = rows[-1][-1]
    return torch.cat([x[:0], *rows, 0 * x[int(cu_seqlens[-1]) :]]), new


POOLED = {
    "inputs": {"x": "t d", "states": "c d", "slots": "s", "length": "s"},
    "outputs": {"y": "t d", "new_states": "c d"},
    "sizes": ({"d": 3, "c": "slots"},),
    "draws": {"slots": "slot|c", "length": "position|d"},
    "constants": frozenset({"x", "states", "slots", "length"}),
    "pool": ("slots", "states", "new_states"),
}


@pytest.mark.parametrize(
    ("declared", "law", "way_out"),
    [
        (op(centred), "causality", "declare causal=False"),
        (op(scaled_by_block, options={"causal": (False, True)}, causal="causal"), "causality", "declare causal=False"),
        (op(centred_over_the_pack, causal=False), "packing", "The reference has to compute each sequence by itself"),
        (op(numbered), "packing", "The reference has to compute each sequence by itself"),
        (op(averaged, **AVERAGED), "carry", "The op declares `carry`"),
        (op(pooled, **POOLED), "pool", "The op declares `pool`"),
    ],
    ids=["causal by default", "causal by an option", "the pack", "the place in the pack", "carry", "pool"],
)
def test_the_field_to_change_is_named(declared, law: str, way_out: str) -> None:
    with pytest.raises(UsageError, match=f"mine: its own reference breaks {law} at lengths .*{way_out}"):
        try_laws(declared, LAWS)
    try_laws(declared, [PROPERTIES["reference"]])  # a law that is not asked for decides nothing


def test_the_right_declaration_is_taken() -> None:
    try_laws(op(centred, causal=False), LAWS)
    try_laws(op(scaled_by_block, options={"causal": (False, True)}, causal=False), LAWS)
    fields = {name: field for name, field in AVERAGED.items() if name != "carry"}
    try_laws(op(averaged, **fields, on_request={"final": "return_final"}), LAWS)


# each of these is another op of the list with less: without a gate, with one per head, or with one tensor
LIKE_OTHERS = ("linear_attention", "retention", "delta_rule", "gated_delta_rule", "rope", "hadamard")


@pytest.mark.parametrize(
    "declared",
    [
        pytest.param(of, id=of.name, marks=[pytest.mark.proof] if of.name in LIKE_OTHERS else [])
        for of in (*(of for of, _, _ in KERNELS.values()), *OPS.values())
    ],
)
def test_correct_references_keep_every_law(declared: packproof.Op) -> None:
    try_laws(declared, LAWS)


def test_the_command_ends_before_a_kernel_is_judged(tmp_path: Path) -> None:
    """Both kernels compute what their reference does; without the trial each failed, or passed by luck."""
    (tmp_path / "mine.py").write_text(
        "import packproof\n"
        "from tests.properties.test_reference_laws import centred\n"
        "fields = dict(name='centred', reference=centred, inputs={'x': 't d'}, outputs={'y': 't d'})\n"
        "CAUSAL = packproof.Op(**fields)\n"
        "SCALAR = packproof.Op(**{**fields, 'outputs': {'y': 't d', 'loss': '1'}})\n"
    )
    request = ["--dtype", "fp32", "--profile", "quick", "--device", "cpu"]
    kernel = "tests.properties.test_reference_laws:centred"
    causal = packproof_in(tmp_path, "check", kernel, "--op", "mine.py:CAUSAL", *request, "--property", "causality")
    assert causal.returncode == 2
    assert "declare causal=False" in causal.stderr
    scalar = packproof_in(tmp_path, "check", kernel, "--op", "mine.py:SCALAR", *request, "--property", "packing")
    assert scalar.returncode == 2
    assert "outputs['loss'] is '1'" in scalar.stderr
    assert "declare how it follows from them, by reductions={'loss': 'sum'}" in scalar.stderr


LATE = """
import torch
import packproof
from packproof.refs import split_sequences


def pooled(x, states, slots, length, *, cu_seqlens):
    new, rows = states.clone(), []
    for p, slot, n in zip(split_sequences(x, cu_seqlens), slots.tolist(), length.tolist(), strict=True):
        if slot < 0 or not len(p):
            rows.append(0 * p)
            continue
        rows.append(p.cumsum(0) + states[slot].to(p.dtype) + (n if len(p) > 6 else 0))
        new[slot] = rows[-1][-1].to(new.dtype)
    return torch.cat([x[:0], *rows, 0 * x[int(cu_seqlens[-1]) :]]), new


OP = packproof.Op(
    name="pooled", reference=pooled, inputs={"x": "t d", "states": "c d", "slots": "s", "length": "s"},
    outputs={"y": "t d", "new_states": "c d"}, sizes=({"d": 3, "c": "slots"},),
    draws={"slots": "slot|c", "length": "DRAW|d"}, pool=("slots", "states", "new_states"),
    constants=frozenset({"x", "states", "slots", "length"}),
)
kernel = packproof.kernel(op=OP, dtypes=["float32"])(pooled)
"""


@pytest.mark.proof
def test_what_the_reference_breaks_at_longer_sequences_is_no_fault_of_the_kernel(tmp_path: Path) -> None:
    """It counts `length` in each piece of more than six tokens: small packs show nothing."""
    (tmp_path / "late.py").write_text(LATE.replace("DRAW", "position"))
    done = packproof_in(tmp_path, "check", "late.py:kernel", "--property", "pool", "--device", "cpu")
    assert done.returncode == 4, done.stdout
    assert "no fault of the kernel in " in done.stdout
    assert "pooled: its own reference breaks pool at lengths " in done.stdout


NAN_GRADIENT = """
import torch
import packproof
from packproof.refs import join_sequences, split_sequences


def bounded(p, squares):
    late = torch.arange(len(p))[:, None] > 12
    return torch.where(late, p, squares(late, p).sqrt())


def reference(x, *, cu_seqlens):  # the gradient of sqrt at 0 is infinite, and 0 times it is NaN
    masked = lambda late, p: torch.where(late, 0 * p, p * p + 1)
    return join_sequences([bounded(p, masked) for p in split_sequences(x, cu_seqlens)], x)


OP = packproof.Op(name="bounded", reference=reference, inputs={"x": "t d"}, outputs={"y": "t d"})


@packproof.kernel(op=OP, dtypes=["float32"])
def right(x, *, cu_seqlens):
    return join_sequences([bounded(p, lambda late, p: p * p + 1) for p in split_sequences(x, cu_seqlens)], x)


@packproof.kernel(op=OP, dtypes=["float32"])
def wrong(x, *, cu_seqlens):
    y = right(x, cu_seqlens=cu_seqlens)
    return y * (1 + (torch.arange(len(y)) > 20))[:, None]
"""


def test_a_nan_of_the_reference_is_no_fault_of_the_kernel(tmp_path: Path) -> None:
    """Its gradient is NaN from the 14th token of a sequence on: small packs show nothing."""
    (tmp_path / "bounded.py").write_text(NAN_GRADIENT)
    request = ["--property", "reference", "--device", "cpu", "--profile", "quick"]
    right = packproof_in(tmp_path, "check", "bounded.py:right", *request)
    assert right.returncode == 4, right.stdout
    assert "bounded: its own reference returns NaN at lengths " in right.stdout
    assert "gradient of x" in right.stdout
    wrong = packproof_in(tmp_path, "check", "bounded.py:wrong", *request)
    assert wrong.returncode == 1, wrong.stdout


def test_a_count_of_the_first_piece_may_be_declared() -> None:
    def counted(x, states, slots, rejected, *, cu_seqlens):
        return pooled(x, states, slots, rejected, cu_seqlens=cu_seqlens)

    fields = {**POOLED, "inputs": {"x": "t d", "states": "c d", "slots": "s", "rejected": "s"}}
    fields |= {"draws": {"slots": "slot|c", "rejected": "once|d"}}
    fields |= {"constants": frozenset({"x", "states", "slots", "rejected"})}
    try_laws(op(counted, **fields), LAWS)
