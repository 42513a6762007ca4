"""A kernel that is called or judged otherwise than its author means is answered by the lines to paste, which work."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packproof.base.errors import UsageError
from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest
from packproof.harness.check.targets.target import open_target, pasted_lines
from packproof.harness.report.events import CellFinished, Verdict
from packproof.properties.declarations import Declaration
from packproof.properties.ops import OPS
from packproof.properties.snippets.argument_names import is_of_keys, meaning_of
from packproof.properties.snippets.pasted_lines import PastedLines
from packproof.properties.snippets.suggested_adapter import suggested_adapter
from tests.sweeps import sweep

KERNELS = """
import torch
from packproof.museum.gates import simple_gla as gated_sums
from packproof.refs import attention, causal_conv1d, join_sequences, split_sequences


def of_ids(x, weight, ids):
    lengths = torch.bincount(ids[ids >= 0].long())
    return causal_conv1d(x, weight, cu_seqlens=torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int())


def segments(x, weight, segment_ids): return of_ids(x, weight, segment_ids)
def documents(x, weight, document_ids=None): return of_ids(x, weight, document_ids)
def reading(x, weight, **kwargs): return of_ids(x, weight, kwargs["segment_ids"])


def per_sequence(x, weight, seq_lens):
    return causal_conv1d(x, weight, cu_seqlens=torch.nn.functional.pad(seq_lens.cumsum(0), (1, 0)).int())


def integers(hidden_states, filters, query_start_loc, max_query_len, batch_size, total_tokens):
    assert max_query_len == max([0, *query_start_loc.diff().tolist()]) and total_tokens == len(hidden_states)
    assert batch_size == len(query_start_loc) - 1
    return causal_conv1d(hidden_states, filters, cu_seqlens=query_start_loc)


def keys(q, k, v, cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k, causal=False):
    assert max_length_k == max([0, *cu_seq_lens_k.diff().tolist()])
    return attention(q, k, v, cu_seqlens=cu_seq_lens_q, cu_seqlens_k=cu_seq_lens_k, causal=causal)


def always_causal(q, k, v, *, cu_seqlens):
    y = attention(q, k, v, cu_seqlens=cu_seqlens, causal=True)
    return torch.cat([y[: cu_seqlens[-1]], torch.ones_like(y[cu_seqlens[-1] :])])


class Conv(torch.nn.Module):
    def __init__(self, activation=None):
        super().__init__()
        self.activation = activation

    def forward(self, x, weight, bias=None, *, cu_seqlens, max_seqlen):
        return causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, activation=self.activation)


with_silu = Conv("silu")


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(3, 3, 4, groups=3)
        self.conv.weight = torch.nn.Parameter(self.conv.weight[:, 0].detach())

    def forward(self, x, cu_seqlens):
        return causal_conv1d(x, self.conv.weight, self.conv.bias, cu_seqlens=cu_seqlens)


layer = Layer()


@torch.library.custom_op("packproof_tests::shifted", mutates_args=())
def operator(x: torch.Tensor, weight: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
    return per_sequence(x, weight, seq_lens).clone()


def longest(x, weight, cu_seqlens, max_seqlen):
    assert max_seqlen >= int(cu_seqlens.diff().max())
    return causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cu_seqlens):
        rows = split_sequences(x.float(), cu_seqlens)
        y = join_sequences([torch.softmax(row, 0) for row in rows], x.float()).to(x.dtype)
        ctx.save_for_backward(y, cu_seqlens)
        return y

    @staticmethod
    def backward(ctx, dy):
        y, cu_seqlens = ctx.saved_tensors
        pairs = zip(split_sequences(y.float(), cu_seqlens), split_sequences(dy.float(), cu_seqlens))
        dx = [row * (g - (row * g).sum(0, keepdim=True)) for row, g in pairs]
        return join_sequences(dx, y.float()).to(y.dtype), None


def softmax(x, *, cu_seqlens):
    return Softmax.apply(x, cu_seqlens)
"""

OPS_SOURCE = """
import packproof, torch
from packproof.refs import join_sequences, split_sequences


def softmax(x, *, cu_seqlens):
    return join_sequences([torch.softmax(row, 0) for row in split_sequences(x, cu_seqlens)], x)


SOFTMAX = packproof.Op(
    name="softmax", reference=softmax, inputs={"x": "t d"}, outputs={"y": "t d"}, sizes=({"d": 3},), causal=False
)
"""

OWN_OP = replace(OPS["rope"], name="own")


@pytest.fixture(autouse=True)
def _elsewhere(working_folder: Path) -> None:
    (working_folder / "mine.py").write_text(KERNELS)
    (working_folder / "ops.py").write_text(OPS_SOURCE)


def verdict_of(name: str, op: str, **settings: Any) -> Verdict:
    fields = {"dtypes": ("float32",), "profile": "quick", "questions": False, "properties": ("reference",), **settings}
    events = run_check(CheckRequest(f"mine.py:{name}", op=op, **fields))
    [verdict] = [event.verdict for event in events if isinstance(event, CellFinished)]
    return verdict


def lines_to_paste(text: str) -> str:
    """What follows "paste below it:", in that line of an error or in the indented ones of a report."""
    lines = text.partition("paste below it:")[2].splitlines()
    indented = itertools.takewhile(lambda line: line.startswith("    "), lines[1:])
    return "\n".join([lines[0].strip(), *(line.strip() for line in indented)]).strip() + "\n"


def paste(lines: str) -> None:
    assert lines.strip()
    with Path("mine.py").open("a") as file:
        file.write(lines)


@sweep("name", ["reading", "operator"], ["keys", "segments", "documents", "per_sequence", "integers"])
def test_the_adapter_for_arguments_of_other_names_works(name: str) -> None:
    op = "attention" if name == "keys" else "causal_conv1d"
    with pytest.raises(UsageError) as refused:
        open_target(CheckRequest(f"mine.py:{name}", op=op))
    paste(lines_to_paste(str(refused.value)))
    verdict = verdict_of(name, op, domain=("length > 0",), forward_only=name == "operator")
    assert (verdict.status, verdict.judged) == ("passed", verdict.examples)


def test_a_module_that_owns_its_parameters_becomes_a_function_of_them() -> None:
    with pytest.raises(UsageError, match="layer: owns weight, bias, which causal_conv1d is called with") as refused:
        open_target(CheckRequest("mine.py:layer", op="causal_conv1d"))
    paste(lines_to_paste(str(refused.value)))
    verdict = verdict_of("layer_of", "causal_conv1d")
    assert (verdict.status, verdict.judged) == ("passed", verdict.examples)


@pytest.mark.parametrize(
    ("name", "op", "dtype", "argument"),
    [
        pytest.param("always_causal", "attention", "float32", "fixed={'causal': True}", marks=pytest.mark.proof),
        ("with_silu", "causal_conv1d", "float32", "fixed={'activation': 'silu'}"),
        ("softmax", "ops.py:SOFTMAX", "bfloat16", "promises=packproof.Promises(saved_outputs=True)"),
        pytest.param(
            *("gated_sums", "simple_gla", "float32", "promises=packproof.Promises(cumsum=True)"),
            marks=pytest.mark.proof,
        ),
    ],
)
def test_the_declaration_that_explains_a_failure_works(name: str, op: str, dtype: str, argument: str) -> None:
    settings: dict[str, Any] = {"dtypes": (dtype,), "domain": ("slack == 0",)}
    verdict = verdict_of(name, op, **settings)
    assert verdict.failure is not None
    lines = lines_to_paste("\n".join(verdict.failure.lines))
    assert argument in lines
    paste(lines)
    verdict = verdict_of(name, op, **settings)
    assert (verdict.status, verdict.judged) == ("passed", verdict.examples)


def test_the_domain_without_empty_packs_works() -> None:
    verdict = verdict_of("longest", "causal_conv1d", properties=("metadata",))
    assert verdict.failure is not None
    lines = lines_to_paste("\n".join(verdict.failure.lines))
    assert "domain='sequences > 0'" in lines
    paste(lines)
    verdict = verdict_of("longest", "causal_conv1d", properties=("metadata",))
    assert (verdict.status, verdict.judged) == ("passed", verdict.examples)


def test_slack_does_not_hide_that_an_option_is_fixed() -> None:
    """A kernel may fail in slack too: that is reported apart."""
    verdict = verdict_of("always_causal", "attention")
    assert verdict.failure is not None
    assert any("equals the reference with causal=True" in line for line in verdict.failure.lines) or any(
        "slack" in line for line in verdict.failure.lines
    )


@pytest.mark.proof
def test_a_small_fault_in_few_packs_is_not_taken_for_a_rounding() -> None:
    with Path("mine.py").open("a") as file:
        file.write(
            "def rarely_wrong(x, *, cu_seqlens):\n"
            "    y = softmax(x, cu_seqlens=cu_seqlens)\n"
            "    return y * (1 + 2e-4 * (len(x) >= 64))\n"
        )
    verdict = verdict_of("rarely_wrong", "ops.py:SOFTMAX", domain=("slack == 0",))
    assert verdict.failure is not None
    assert not any("paste" in line for line in verdict.failure.lines)


@pytest.mark.parametrize(
    ("meaning", "names"),
    [
        ("cu_seqlens", "cu_seqlens cu_seqlens_kv cu_seq_lens_q cu_seqlen cum_seq_lens offsets seq_offsets kv_indptr"),
        ("cu_seqlens", "query_start_loc seqstart_q seq_starts cu_doc_lens cumulative_seqlens cu_seqlens_padded"),
        ("seq_idx", "seq_idx seq_ids segment_ids seg_ids q_segment_ids document_ids doc_ids document_id sequence_ids"),
        ("position_ids", "position_ids positions pos_ids token_positions position_idx"),
        ("max_seqlen", "max_seqlen max_seqlen_q max_seq_len max_length_k max_len max_s max_kv_len"),
        ("lengths", "lengths seqlens seq_lens seqlens_k context_lens doc_lens seq_lengths tokens_per_seq"),
        ("num_sequences", "num_seqs num_sequences n_docs batch_size bsz num_segments"),
        ("num_tokens", "num_tokens total_tokens n_tokens total_seqlen total_q seq_len seqlen"),
        ("mask", "mask attention_mask padding_mask"),
        ("", "x weight bias chunk_size documentation scale dt_bias hidden_states document valence g masked T"),
    ],
)
def test_arguments_are_known_by_the_names_of_the_field(meaning: str, names: str) -> None:
    assert {name: meaning_of(name) for name in names.split()} == dict.fromkeys(names.split(), meaning)


def test_arguments_of_keys_are_known_by_their_side() -> None:
    assert all(map(is_of_keys, ("cu_seqlens_k", "kv_indptr", "max_seqlen_kv", "max_k_len")))
    assert not any(map(is_of_keys, ("cu_seqlens", "q_indptr", "max_seqlen_q", "seq_idx")))


def test_a_kernel_of_a_module_is_declared_in_a_file_of_ones_own() -> None:
    pasted = PastedLines("kernels.conv:Conv.run", "my_ops:CONV")
    assert pasted.insertion_point == "in a file of your own"
    assert suggested_adapter(pasted, ["weight"], ["chunk"]) == (
        "from packproof.adapters import adapt",
        "from my_ops import CONV",
        "Conv_run = adapt('kernels.conv:Conv.run', op=CONV, names={'weight': 'chunk'})",
    )
    assert pasted.declaration({"fixed": "{'causal': True}"}) == (
        "import packproof",
        "from kernels.conv import Conv",
        "from my_ops import CONV",
        "Conv_run = packproof.kernel(op=CONV, fixed={'causal': True})(Conv.run)",
    )


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("my_kernels:conv", "conv = adapt('my_kernels:conv')"),
        ("my_kernels:make.<locals>.conv", "conv = adapt(conv)"),
        ("__main__:conv", "conv = adapt(conv)"),
        ("my_kernels:make.<locals>.<lambda>", "kernel = adapt(...)"),
        ("my_kernels:partial(conv)", "kernel = adapt(...)"),
        ("my_kernels:Conv()", "kernel = adapt(...)"),
    ],
)
def test_an_object_that_no_file_can_import_gets_lines_for_the_place_where_it_is(target: str, line: str) -> None:
    pasted = PastedLines(target)
    assert pasted.adapter({})[-1] == line
    is_imported = repr(target) in line
    assert pasted.insertion_point == ("in a file of your own" if is_imported else "below it")
    imports = [text for text in pasted.declaration({}) if text.startswith("from ")]
    assert imports == (["from my_kernels import conv"] if is_imported else [])


def test_an_op_object_is_imported_where_it_has_a_name() -> None:
    lines = pasted_lines("mine.py:conv", OWN_OP, Declaration()).adapter({})
    assert lines[1:] == (f"from {__name__} import OWN_OP", "conv = adapt(conv, op=OWN_OP)")
    assert pasted_lines("mine.py:conv", OPS["rope"], Declaration()).op == "rope"
    assert pasted_lines("mine.py:conv", replace(OWN_OP, name="other"), Declaration()).op == "..."


def test_what_only_the_author_knows_is_left_open() -> None:
    lines = suggested_adapter(PastedLines("mine.py:conv", "conv"), ["weight", "cu_seqlens"], [])
    assert lines[-1] == "conv = adapt(conv, op='conv', names={'weight': ...}, metadata={...: cu_seqlens})"
