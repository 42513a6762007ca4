"""A kernel gets what its own signature takes: of the op's arguments, of what is made of the offsets, and no more."""

from pathlib import Path
from typing import Any

import pytest

from packproof.base.errors import UsageError
from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest
from packproof.harness.check.targets.target import open_target
from packproof.harness.report.events import RunFinished, RunStarted, Verdict
from tests.sweeps import sweep

KERNELS = """
import packproof, torch
from torch import Tensor
from packproof import adapters, refs


def with_a_catch_all(x, weight, **options):
    return _convolved(x, weight, **options)


def _convolved(x, weight, *, cu_seqlens):
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


def reading(x, weight, **options):
    assert options["max_seqlen"] == max([0, *options["cu_seqlens"].diff().tolist()])
    activation = options["activation"] if "activation" in options else None
    return refs.causal_conv1d(x, weight, options.get("bias"), cu_seqlens=options["cu_seqlens"], activation=activation)


def reading_ids(x, weight, **options):
    return by_index(x, weight, options.pop("segment_ids"))


def by_position_alone(x, weight, bias=None, cu_seqlens=None, /, activation=None):
    return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, activation=activation)


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, cu_seqlens):
        ctx.save_for_backward(x, weight, cu_seqlens)
        return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)

    @staticmethod
    def backward(ctx, dy):
        x, weight, cu_seqlens = ctx.saved_tensors
        with torch.enable_grad():
            x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
            y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)
        return *torch.autograd.grad(y, (x, weight), dy, allow_unused=True, materialize_grads=True), None


class SeparateFunction(Function):
    @staticmethod
    def forward(x, weight, cu_seqlens):
        return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)


apply, separate_apply = Function.apply, SeparateFunction.apply


def naming_one(x, weight, bias=None, *, cu_seqlens, **options):
    assert not options, options
    return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens)


@torch.library.custom_op("packproof_tests::conv", mutates_args=())
def operator(x: Tensor, weight: Tensor, cu_seqlens: Tensor, bias: Tensor | None = None) -> Tensor:
    return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens).clone()


@operator.register_fake
def _(x, weight, cu_seqlens, bias=None):
    return torch.empty_like(x)


def _formula(ctx, dy):
    x, weight, cu_seqlens, bias = ctx.saved_tensors
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (x, weight, bias) if t is not None]
        y = refs.causal_conv1d(*leaves, cu_seqlens=cu_seqlens)
        dx, dw, *db = torch.autograd.grad(y, leaves, dy, allow_unused=True, materialize_grads=True)
    return dx, dw, None, db[0] if db else None


operator.register_autograd(_formula, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
packet = torch.ops.packproof_tests.conv
overload = packet.default
adapted_operator = adapters.adapt(operator, op="causal_conv1d")


class Conv(torch.nn.Module):
    def forward(self, x, weight, bias=None, *, cu_seqlens):
        return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens)


module = Conv()
adapted_module = adapters.adapt(module, op="causal_conv1d")


def longest(x, weight, cu_seqlens, max_seqlen):
    assert type(max_seqlen) is int
    assert max_seqlen == max([0, *cu_seqlens.diff().tolist()])
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


def by_index(x, weight, seq_idx):
    assert seq_idx.dtype == torch.int32 and len(seq_idx) == len(x)
    lengths = torch.bincount(seq_idx[seq_idx >= 0].long())
    return refs.causal_conv1d(x, weight, cu_seqlens=torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int())


def by_position(x, weight, *, position_ids):
    starts = (position_ids == 0).nonzero()[:, 0]
    return refs.causal_conv1d(x, weight, cu_seqlens=torch.cat([starts, starts.new_tensor([len(x)])]).int())


def flash(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False):
    assert max_seqlen_q == max([0, *cu_seqlens_q.diff().tolist()])
    assert max_seqlen_k == max([0, *cu_seqlens_k.diff().tolist()])
    return refs.attention(q, k, v, cu_seqlens=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, causal=causal)


def either(x, weight, *, cu_seqlens, seq_idx=None):
    assert seq_idx is None
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


def in_other_words(hidden, filters, offsets):
    return refs.causal_conv1d(hidden, filters, cu_seqlens=offsets)


def in_chunks(x, weight, cu_seqlens, chunk_size):
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


def causal_only(q, k, v, *, cu_seqlens):
    return refs.attention(q, k, v, cu_seqlens=cu_seqlens, causal=True)


declared = packproof.kernel(op="attention", fixed={"causal": True})(causal_only)


def undeclared(q, k, v, *, cu_seqlens):
    return refs.attention(q, k, v, cu_seqlens=cu_seqlens, causal=True)


def told(q, k, v, *, cu_seqlens, causal):
    assert causal is True
    return refs.attention(q, k, v, cu_seqlens=cu_seqlens, causal=causal)


adapted = adapters.adapt(told, op="attention", given={"causal": True}, fixed={"causal": True})


def deaf(x, weight, *, cu_seqlens, activation=None):
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens, activation="silu")


unknown = packproof.kernel(op="attention", fixed={"masked": True})(lambda q, k, v, *, cu_seqlens: q)
taken = packproof.kernel(op="attention", fixed={"causal": True})(lambda q, k, v, *, cu_seqlens, causal: q)


def always_states(x, weight, *, cu_seqlens):
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens, return_final_states=True)


stateful = packproof.kernel(op="causal_conv1d", fixed={"return_final_states": True})(always_states)
"""


@pytest.fixture(autouse=True)
def _mine(working_folder: Path) -> None:
    (working_folder / "mine.py").write_text(KERNELS)


def judged(name: str, op: str | None = "causal_conv1d", law: str = "reference") -> tuple[Verdict, str]:
    """The verdict, and the notes before it in one text."""
    (verdict,), notes = verdicts(name, op, (law,))
    return verdict, notes


def verdicts(name: str, op: str | None, laws: tuple[str, ...], **settings: Any) -> tuple[tuple[Verdict, ...], str]:
    """The verdicts in the order of the properties, and the notes before them in one text."""
    fields: dict[str, Any] = {"dtypes": ("float32",), "profile": "quick", "questions": False, **settings}
    started, *_, finished = run_check(CheckRequest(f"mine.py:{name}", op=op, properties=laws, **fields))
    assert isinstance(started, RunStarted)
    assert isinstance(finished, RunFinished)
    by_law = {verdict.cell.property: verdict for verdict in finished.verdicts}
    return tuple(by_law[law] for law in laws), "\n".join(started.notes)


def test_options_of_a_catch_all_are_not_passed_and_are_named() -> None:
    verdict, notes = judged("with_a_catch_all")
    assert verdict.status == "passed"
    assert "(**kwargs), which may ignore them, so they are not passed: bias, initial_states, activation" in notes
    assert (
        "in its signature, or in an adapter's names: from packproof.adapters import adapt; with_a_catch_all = adapt("
        in notes
    )
    verdict, notes = judged("naming_one")
    assert verdict.status == "passed"
    assert "so they are not passed: initial_states, activation, return_final_states;" in notes
    assert "names={'initial_states': 'initial_states', 'activation': 'activation'" in notes


def test_names_read_from_a_catch_all_are_arguments() -> None:
    verdict, notes = judged("reading")
    assert (verdict.status, verdict.judged) == ("passed", verdict.examples)
    assert "takes max_seqlen: made of cu_seqlens" in notes
    assert "mine.py:reading does not take, so it is not tested for: initial_states, return_final_states" in notes
    assert "catch-all" not in notes
    with pytest.raises(UsageError, match=r"reading_ids: takes \(x, weight, segment_ids\)"):
        open_target(CheckRequest("mine.py:reading_ids", op="causal_conv1d"))


@sweep("name", ["by_position_alone", "separate_apply"], ["apply", "Function.apply"])
def test_arguments_by_position_alone_are_passed_so(name: str) -> None:
    verdict, notes = judged(name)
    assert (verdict.status, verdict.judged) == ("passed", verdict.examples)
    features = "initial_states" if name == "by_position_alone" else "bias, initial_states"
    assert f"not tested for: {features}" in notes
    assert "catch-all" not in notes


@sweep("name", ["packet", "adapted_operator"], ["operator", "overload"])
def test_an_operator_has_the_signature_of_its_schema(name: str) -> None:
    verdict, notes = judged(name, None if name.startswith("adapted") else "causal_conv1d")
    assert (verdict.status, verdict.judged) == ("passed", verdict.examples)
    assert "not tested for: initial_states, activation, return_final_states" in notes


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("module", "reference"),
        ("adapted_module", "reference"),
        pytest.param("module", "torch_compile", marks=pytest.mark.proof),  # torch.compile takes seconds
    ],
)
def test_a_module_has_the_signature_of_its_forward(name: str, law: str) -> None:
    verdict, notes = judged(name, None if name.startswith("adapted") else "causal_conv1d", law)
    assert verdict.status == "passed"
    assert "not tested for: initial_states, activation, return_final_states" in notes


@sweep(
    "name, made, domain",
    sample=[("flash", "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k", ())],
    rest=[
        ("by_position", "position_ids", ("length > 0", "slack == 0")),
        ("longest", "max_seqlen", ()),
        ("by_index", "seq_idx", ("length > 0",)),
    ],
)
def test_metadata_by_the_names_of_the_field_is_made(name: str, made: str, domain: tuple[str, ...]) -> None:
    op = "attention" if name == "flash" else "causal_conv1d"
    (reference, metadata), notes = verdicts(name, op, ("reference", "metadata"), domain=domain)
    assert (reference.status, reference.judged) == ("passed", reference.examples)
    assert f"takes {made}: made of cu_seqlens" in notes
    assert metadata.held


def test_where_names_are_ambiguous_the_adapter_to_paste_is_printed() -> None:
    verdict, notes = judged("either")
    assert verdict.status == "passed"
    line = (
        "from packproof.adapters import adapt, cu_seqlens, seq_idx; "
        "either = adapt(either, op='causal_conv1d', metadata={'cu_seqlens': cu_seqlens, 'seq_idx': seq_idx})"
    )
    assert f"has defaults for seq_idx beside cu_seqlens, which stay; to pass them: {line}" in notes


@pytest.mark.parametrize("name", ["adapted", "stateful", pytest.param("declared", marks=pytest.mark.proof)])
def test_an_option_that_is_fixed_has_its_value_in_every_case(name: str) -> None:
    value = "return_final_states=True" if "stateful" in name else "causal=True"
    verdict, notes = judged(name, None)
    assert (verdict.status, verdict.judged) == ("passed", verdict.examples)
    assert f"has fixed, so it is not tested without: {value}" in notes
    assert value.partition("=")[0] not in notes.partition("not tested for: ")[2].partition("\n")[0].split(", ")


def test_a_fixed_option_is_not_changed_between_two_calls() -> None:
    """The property reuse changes each option; a kernel without an argument for one computes as before."""
    verdict, _ = judged("declared", None, "reuse")
    assert verdict.status == "passed"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("unknown", "fixed has 'masked', expected options of attention: causal"),
        ("taken", "fixed has 'causal', which it takes; for the calls that it supports declare domain='causal == True'"),
    ],
)
def test_what_cannot_be_fixed_is_refused(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        open_target(CheckRequest(f"mine.py:{name}"))


def test_the_option_with_which_a_kernel_equals_the_reference_is_named() -> None:
    verdict, _ = judged("undeclared", "attention")
    assert verdict.failure is not None
    (line,) = (line for line in verdict.failure.lines if "equals the reference" in line)
    assert line.startswith("equals the reference with causal=True, here and in 6 other packs")
    assert line.endswith("if it has that fixed, paste below it:")
    verdict, _ = judged("deaf")
    assert verdict.failure is not None
    assert any(
        "equals the reference with activation='silu'" in line and line.endswith("does it follow the option?")
        for line in verdict.failure.lines
    )
