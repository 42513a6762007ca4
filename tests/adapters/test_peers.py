"""The adapters of peers, each with a stand-in that has the peer's calling convention and the reference's values."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import packproof
from packproof import refs
from packproof.adapters.peers.registry import PEERS
from packproof.adapters.peers.torch import flex_attention
from packproof.base.errors import UsageError
from packproof.bench.kernels.layouts import BenchLayout
from packproof.bench.kernels.settings import setting
from packproof.bench.kernels.timing import Run, Tensors
from packproof.harness.process.naming.location import Location
from packproof.properties.cases.case import Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.space import Space
from packproof.properties.declarations.declaration import describe_kernel, parse_declaration
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import OPS
from tests.adapters import linear_stand_ins as linear
from tests.adapters import loss_stand_ins as losses
from tests.adapters.stand_ins import (
    apply_rotary_emb,
    causal_conv1d_fn,
    chunk_simple_gla,
    fla_causal_conv1d,
    flash_attn_4,
    flash_attn_varlen_func,
    liger_rotary_pos_emb,
    mamba_chunk_scan_combined,
    rotary_embedding,
    selective_scan_fn,
)
from tests.in_process import installed

GDN = "fla.ops.gated_delta_rule"
LIGER = "liger_kernel.transformers.functional"
FLA_LOSS = "fla.modules.fused_cross_entropy:cross_entropy_loss"
TE = "transformer_engine.pytorch.cross_entropy"
QWEN = "transformers.models.qwen3_next.modeling_qwen3_next"
LAYOUT = BenchLayout("mixed", (3, 0, 5, 1))
# peers, the modules that stand-ins are found in, under another name after the colon, and the stand-ins
STAND_INS: list[tuple[str, str, Callable[..., Any]]] = [
    ("causal_conv1d:causal_conv1d", "causal_conv1d", causal_conv1d_fn),
    ("fla:causal_conv1d", "fla.modules.causal_conv1d.ops:causal_conv1d", fla_causal_conv1d),
    ("fla:rope", "fla.modules.rotary", rotary_embedding),
    ("fla:rope_qk", "fla.modules.rotary", rotary_embedding),
    ("fla:ssd", "fla.ops.simple_gla", chunk_simple_gla),
    ("fla:linear_attention", "fla.ops.linear_attn:chunk_linear_attn", linear.linear_attn),
    ("fla:linear_attention_recurrent", "fla.ops.linear_attn:fused_recurrent_linear_attn", linear.linear_attn),
    ("fla:simple_gla", "fla.ops.simple_gla:chunk_simple_gla", linear.simple_gla),
    ("fla:simple_gla_recurrent", "fla.ops.simple_gla:fused_recurrent_simple_gla", linear.simple_gla),
    ("fla:retention", "fla.ops.simple_gla:chunk_simple_gla", linear.simple_gla),
    ("fla:retention_recurrent", "fla.ops.simple_gla:fused_recurrent_simple_gla", linear.simple_gla),
    ("fla:delta_rule", "fla.ops.delta_rule:chunk_delta_rule", linear.delta_rule),
    ("fla:delta_rule_recurrent", "fla.ops.delta_rule:fused_recurrent_delta_rule", linear.delta_rule),
    ("fla:gated_delta_rule", f"{GDN}:chunk_gated_delta_rule", linear.gated_delta_rule),
    ("fla:gated_delta_rule_recurrent", f"{GDN}:fused_recurrent_gated_delta_rule", linear.gated_delta_rule),
    ("fla:kda", "fla.ops.kda:chunk_kda", linear.gated_delta_rule),
    ("fla:kda_recurrent", "fla.ops.kda:fused_recurrent_kda", linear.gated_delta_rule),
    ("flash_qla:gated_delta_rule", "flash_qla:chunk_gated_delta_rule", linear.flash_qla),
    ("flashinfer:gated_delta_rule", "flashinfer.gdn_prefill:chunk_gated_delta_rule", linear.flashinfer),
    ("transformers:gated_delta_rule", f"{QWEN}:torch_chunk_gated_delta_rule", linear.torch_gated_delta_rule),
    (
        "transformers:gated_delta_rule_recurrent",
        f"{QWEN}:torch_recurrent_gated_delta_rule",
        linear.torch_gated_delta_rule,
    ),
    ("flash_attn:rope", "flash_attn.layers.rotary", apply_rotary_emb),
    ("flash_attn:rope_qk", "flash_attn.layers.rotary", apply_rotary_emb),
    ("flash_attn:attention", "flash_attn", flash_attn_varlen_func),
    ("flash_attn_4:attention", "flash_attn.cute:flash_attn_varlen_func", flash_attn_4),
    ("liger_kernel:rope_qk", "liger_kernel.transformers.rope", liger_rotary_pos_emb),
    ("mamba_ssm:selective_scan", "mamba_ssm.ops.selective_scan_interface", selective_scan_fn),
    ("mamba_ssm:selective_scan_unpacked", "mamba_ssm.ops.selective_scan_interface", selective_scan_fn),
    ("mamba_ssm:ssd", "mamba_ssm.ops.triton.ssd_combined", mamba_chunk_scan_combined),
    ("liger_kernel:cross_entropy", LIGER, losses.liger_cross_entropy),
    ("liger_kernel:token_logprobs", LIGER, losses.liger_cross_entropy),
    ("liger_kernel:linear_cross_entropy", LIGER, losses.liger_fused_linear_cross_entropy),
    ("fla:cross_entropy", FLA_LOSS, losses.fla_cross_entropy_loss),
    ("fla:token_logprobs", FLA_LOSS, losses.fla_cross_entropy_loss),
    (
        "fla:linear_cross_entropy",
        "fla.modules.fused_linear_cross_entropy:fused_linear_cross_entropy_loss",
        losses.fla_fused_linear_cross_entropy_loss,
    ),
    (
        "cut_cross_entropy:linear_cross_entropy",
        "cut_cross_entropy:linear_cross_entropy",
        losses.cut_linear_cross_entropy,
    ),
    ("quack:cross_entropy", "quack.cross_entropy:cross_entropy", losses.quack_cross_entropy),
    ("quack:token_logprobs", "quack.cross_entropy:cross_entropy", losses.quack_cross_entropy),
    (
        "quack:linear_cross_entropy",
        "quack.linear_cross_entropy:chunked_linear_cross_entropy",
        losses.quack_chunked_linear_cross_entropy,
    ),
    ("transformer_engine:cross_entropy", TE, losses.parallel_cross_entropy),
    ("transformer_engine:token_logprobs", TE, losses.parallel_cross_entropy),
]


@pytest.fixture
def adapter() -> Iterator[Callable[[str], Any]]:
    """The adapter of a peer, imported again with a stand-in for the peer's function."""
    with contextlib.ExitStack() as stack:

        def find(name: str) -> Any:
            for peer, module, function in STAND_INS:
                if peer == name:
                    stack.enter_context(installed(stand_ins(module, function), "packproof.adapters.peers."))
            return Location(PEERS[name].module, "", PEERS[name].function).load()

        yield find


def stand_ins(module: str, function: Callable[..., Any]) -> dict[str, ModuleType]:
    """Modules from which the function can be imported, by the name after the colon if there is one."""
    module, _, name = module.partition(":")
    parts = module.split(".")
    modules = {".".join(parts[:n]): ModuleType(parts[n - 1]) for n in range(1, len(parts) + 1)}
    setattr(modules[module], name or function.__name__, function)
    return modules


@pytest.mark.parametrize("name", [name for name, *_ in STAND_INS])
def test_an_adapter_converts_values_and_gradients_between_conventions(name: str, adapter: Callable[[str], Any]) -> None:
    peer, function = PEERS[name], adapter(name)
    op = OPS[peer.op]
    layout = LAYOUT if peer.packed else BenchLayout("one", (9,))
    sample = setting(op, "cpu", {}, None).sample(op, layout, "float32", 0)
    mine = Run(function, Tensors.from_sample(sample, "cpu"), gradients=True)
    other = Run(
        op.reference, Tensors.from_sample(replace(sample, cotangents=clones(sample.cotangents)), "cpu"), gradients=True
    )
    before = clones(sample.inputs | sample.cotangents)
    got, want = mine.forward(), other.forward()
    compared = [*zip(got, want, strict=True), *zip(mine.backward(got), other.backward(want), strict=True)]
    for x, y in compared:
        assert x is not None
        assert y is not None
        torch.testing.assert_close(x, y)
    for tensor, x in (sample.inputs | sample.cotangents).items():
        assert x.equal(before[tensor]), tensor


@pytest.mark.parametrize("name", [name for name, _, stand_in in STAND_INS if stand_in in vars(losses).values()])
def test_an_adapter_of_a_loss_hands_on_labels_and_options(name: str, adapter: Callable[[str], Any]) -> None:
    function = adapter(name)
    op, taken = OPS[PEERS[name].op], set(describe_kernel(function)["parameters"])
    options = {option: values[-1] for option, values in op.options.items() if option in taken}
    assert "ignore_index" in options
    sizes = tuple(op.sizes[0].items())
    for seed in (1, 3):  # prompts that do not count; labels of int32 and int64
        sample = draw(op, Case((3, 0, 5), "bfloat16", sizes, options=tuple(options.items()), seed=seed))
        inputs = {n: x.float() if x.is_floating_point() else x for n, x in sample.inputs.items()}
        want = op.reference(**inputs, **options, cu_seqlens=sample.cu_seqlens)
        torch.testing.assert_close(function(**inputs, **options, cu_seqlens=sample.cu_seqlens), want)


def test_a_divergence_is_that_of_each_row(adapter: Callable[[str], Any]) -> None:
    p, q = torch.randn(2, 5, 7)
    function = stand_ins("fla.modules.fused_kl_div:fused_kl_div_loss", losses.fla_fused_kl_div_loss)
    with installed(function, "packproof.adapters.peers."):
        y = Location(PEERS["fla:kl_divergence"].module, "", "kl_divergence").load()(
            p, q, cu_seqlens=torch.tensor([0, 5])
        )
    torch.testing.assert_close(y, refs.kl_divergence(p, q, cu_seqlens=torch.tensor([0, 5])))


def test_an_adapter_hands_on_keys_of_their_own_lengths(adapter: Callable[[str], Any]) -> None:
    q, k = torch.randn(5, 2, 4), torch.randn(7, 2, 4)
    offsets = {"cu_seqlens": torch.tensor([0, 2, 5]), "cu_seqlens_k": torch.tensor([0, 6, 7])}
    want = refs.attention(q, k, k, **offsets, causal=True)
    assert adapter("flash_attn:attention")(q, k, k, **offsets, causal=True).equal(want)


RULES = [name for name, _, stand_in in STAND_INS if stand_in in vars(linear).values()]


@pytest.mark.parametrize("present", [("A_log", "dt_bias", "initial_states"), ("dt_bias",)], ids=["all", "bias"])
@pytest.mark.parametrize("name", RULES)
def test_an_adapter_of_a_rule_hands_on_gates_states_and_options(
    name: str, present: tuple[str, ...], adapter: Callable[[str], Any]
) -> None:
    function = adapter(name)
    op, taken = OPS[PEERS[name].op], set(describe_kernel(function)["parameters"])
    options = {option: values[-1] for option, values in op.options.items() if option in taken}
    optional = tuple(tensor for tensor in present if tensor in taken and tensor in op.inputs)
    case = Case((3, 0, 5), "float32", tuple(op.sizes[0].items()), present=optional, options=tuple(options.items()))
    sample = draw(op, case)
    want = op.reference(**sample.inputs, **options, cu_seqlens=sample.cu_seqlens)
    for x, y in zip(function(**sample.inputs, **options, cu_seqlens=sample.cu_seqlens), want, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("name", ["transformers:gated_delta_rule", "transformers:gated_delta_rule_recurrent"])
def test_a_model_repeats_its_key_heads_before_it_calls_transformers(name: str, adapter: Callable[[str], Any]) -> None:
    domain = parse_declaration(describe_kernel(adapter(name)), name).domain
    cases = {hk: Case((3,), "float32", (("hk", hk), ("hv", 2), ("k", 4), ("p", 3))) for hk in (1, 2)}
    assert [hk for hk, case in cases.items() if domain.allows(OPS["gated_delta_rule"], case)] == [2]


def clones(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in tensors.items()}


@pytest.mark.parametrize(
    ("name", "offered", "absent"),
    [
        ("mamba_ssm:ssd", {"D", "z", "dt_bias", "dt_softplus"}, {"initial_states", "return_final_states"}),
        ("causal_conv1d:causal_conv1d", {"bias", "activation"}, {"initial_states", "return_final_states"}),
        ("fla:causal_conv1d", {"bias", "activation", "initial_states", "return_final_states"}, set()),
        ("fla:ssd", {"initial_states", "return_final_states"}, set()),
        ("fla:retention", {"decay", "scale", "initial_states", "return_final_states"}, set()),
        ("fla:delta_rule", {"qk_l2norm", "scale", "initial_states"}, {"beta_sigmoid"}),
        ("fla:kda", {"A_log", "dt_bias", "qk_l2norm", "beta_sigmoid", "scale"}, set()),
        ("transformers:gated_delta_rule", {"qk_l2norm", "initial_states"}, {"scale", "A_log", "beta_sigmoid"}),
        ("fla:rope", {"offsets"}, set()),
        ("liger_kernel:rope_qk", {"offsets"}, {"interleaved"}),
        ("flash_attn_4:attention", {"sinks", "softcap", "return_lse", "window_size", "cu_seqlens_k"}, set()),
        ("mamba_ssm:selective_scan", {"delta_bias", "delta_softplus"}, {"initial_states", "return_final_states"}),
        (
            "flash_attn:attention",
            {"causal", "window_size", "softmax_scale", "softcap", "cu_seqlens_k"},
            {"sinks", "return_lse"},
        ),
    ],
)
def test_what_a_peer_offers_is_read_from_its_signature(
    name: str, offered: set[str], absent: set[str], adapter: Callable[[str], Any]
) -> None:
    parameters = set(describe_kernel(adapter(name))["parameters"])
    assert offered <= parameters
    assert not absent & parameters


@pytest.mark.parametrize("name", ["torch:compiled_rope", "torch:compiled_conv1d"])
def test_what_is_compiled_on_a_gpu_is_correct_uncompiled(name: str) -> None:
    packproof.check(name, device="cpu", dtypes=["float32"], properties=["reference"], profile="quick")


@pytest.mark.proof
def test_a_document_mask_is_correct_without_gradients() -> None:
    properties = ["reference", "packing"]
    packproof.check(
        "torch:flex_attention",
        device="cpu",
        dtypes=["float32"],
        properties=properties,
        profile="quick",
        forward_only=True,
    )


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_has_an_adapter_of_its_op(name: str) -> None:
    peer = PEERS[name]
    assert Location(peer.module, "", peer.function).load().__packproof__["op"] == peer.op


@pytest.mark.parametrize("name", [name for name, peer in PEERS.items() if peer.sizes])
def test_the_quick_scoreboard_asks_a_peer_for_sizes_of_its_op(name: str) -> None:
    op, domain = OPS[PEERS[name].op], Domain.of(PEERS[name].sizes)
    domain.check(op, name)
    assert Space(op, "float32", Promises(), domain=domain).plain_sizes


def test_a_peer_that_is_not_installed_is_one_line() -> None:
    [name, *_] = [name for name, peer in PEERS.items() if not peer.installed]
    with pytest.raises(UsageError, match=r"module \w+ is not installed; pip install ") as caught:
        packproof.check(name)
    assert "\n" not in str(caught.value)


def test_flex_attention_declines_a_pack_whose_mask_would_fill_the_memory() -> None:
    many = torch.zeros(1, 1, 16).expand(2**14 * 128 + 1, 1, 16)
    with pytest.raises(NotImplementedError, match=r"^a block mask of 268,468,225 pairs of blocks; at most 268,435,456"):
        flex_attention(many, many, many, cu_seqlens=torch.tensor([0, len(many)]))
