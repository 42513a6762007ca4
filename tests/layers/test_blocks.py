"""The blocks compute their papers' equations, take mamba-ssm's parameters, and can be called, copied and recomputed."""

import copy
import io
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from packproof import refs
from packproof.layers import AttentionBlock, Mamba2Block, MambaBlock
from tests.layers import published
from tests.layers.blocks import FORMS, LENGTHS, SAFETY, WIDTH, Form, Run, run_block, run_reference

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def excess(found: Run, exact: Run, rough: Run, units: float) -> float:
    """The largest error over its budget: what rounding does at a lower precision, over the ratio of the roundoffs."""
    allowed = {name: SAFETY * units * error for name, error in rough.off_from(exact).items()}
    return max(error / allowed[name] for name, error in found.off_from(exact).items())


def in_dtype(form: Form, dtype: torch.dtype) -> Run:
    return run_block(form.block().to(dtype), dtype)


@pytest.mark.parametrize("name", FORMS)
def test_values_and_gradients_are_those_of_the_equations(name: str) -> None:
    """In fp64 and fp32, each within what rounding does one precision lower."""
    form = FORMS[name]
    exact = run_reference(form, form.block())
    runs = {dtype: in_dtype(form, dtype) for dtype in DTYPES}
    for high, low in ((torch.float64, torch.float32), (torch.float32, torch.bfloat16)):
        units = torch.finfo(high).eps / torch.finfo(low).eps
        assert excess(runs[high], exact, runs[low], units) <= 1, (high, runs[high].off_from(exact))


class GateAfterNorm(Mamba2Block):
    """norm(y) * silu(z), as mamba-ssm has it with norm_before_gate=True."""

    def _mix_tokens(self, projected: Tensor, cu_seqlens: Tensor) -> Tensor:
        d, (h, _), (g, n) = self.norm.channels, self.heads, self.groups
        z, xBC, dt = projected.split((d, d + 2 * g * n, h), dim=1)
        x, B, C = self._convolve(xBC, cu_seqlens).split((d, g * n, g * n), dim=1)
        x, B, C = x.unflatten(1, self.heads), B.unflatten(1, self.groups), C.unflatten(1, self.groups)
        y = refs.ssd(
            *(x, dt, -self.A_log.exp(), B, C, self.D), dt_bias=self.dt_bias, dt_softplus=True, cu_seqlens=cu_seqlens
        )
        return (self.norm(y.flatten(1)) * silu(z)) @ self.out_proj.weight.T


class NormOverAllGroups(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels, self.weight = channels, nn.Parameter(torch.ones(channels))

    def forward(self, y: Tensor) -> Tensor:
        return rms_norm(y, y.shape[-1:], self.weight, 1e-5)


def other_order() -> nn.Module:
    return GateAfterNorm(WIDTH, d_state=3, d_conv=3, headdim=3, ngroups=2, ops=refs)


def one_norm() -> nn.Module:
    block = FORMS["mamba2"].block()
    block.norm = NormOverAllGroups(2 * WIDTH)
    return block


def attention_on(**changed: Callable[..., Tensor]) -> nn.Module:
    ops = {op: getattr(refs, op) for op in AttentionBlock.OPS}
    return FORMS["attention"].block(SimpleNamespace(**{**ops, **changed}))


def heads_in_turns() -> nn.Module:
    """Query heads 0 and 2 share keys, not 0 and 1."""
    turns = [0, 2, 1, 3]
    return attention_on(attention=lambda q, k, v, **options: refs.attention(q[:, turns], k, v, **options)[:, turns])


def silu_past_the_convolution() -> nn.Module:
    return attention_on(causal_conv1d=lambda *given, **options: silu(refs.causal_conv1d(*given, **options)))


def wider_window() -> nn.Module:
    block = FORMS["attention"].block()
    block.sliding_window = 4  # type: ignore[assignment]
    return block


@pytest.mark.parametrize("make", [other_order, one_norm, heads_in_turns, silu_past_the_convolution, wider_window])
def test_another_block_is_detected(make: Callable[[], nn.Module]) -> None:
    form = FORMS["mamba2" if make in (other_order, one_norm) else "attention"]
    block = make()
    block.load_state_dict(published.state_dict(form.shapes))
    found = run_block(block.double(), torch.float64)
    exact, rough = run_reference(form, form.block()), in_dtype(form, torch.float32)
    assert excess(found, exact, rough, torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps) > 1e6


@pytest.mark.parametrize("name", FORMS)
def test_parameters_in_fp32_beside_tokens_in_bf16(name: str) -> None:
    form = FORMS[name]
    block = form.block()
    found, exact = run_block(block, torch.bfloat16), run_reference(form, block)
    assert found.values["output"].dtype == torch.bfloat16
    assert excess(found, exact, in_dtype(form, torch.bfloat16), 1) <= 1


@pytest.mark.parametrize(
    ("block", "shapes"),
    [
        (lambda: MambaBlock(384, ops=refs), published.mamba(384)),
        (lambda: MambaBlock(40, 8, 2, 3, 5, ops=refs), published.mamba(40, 8, 2, 3, 5)),
        (lambda: Mamba2Block(384, ops=refs), published.mamba2(384)),
        (lambda: Mamba2Block(48, 8, 3, 2, 8, 4, ops=refs), published.mamba2(48, 8, 3, 2, 8, 4)),
        (lambda: AttentionBlock(384, 6, ops=refs), published.attention(384, 6)),
        (lambda: AttentionBlock(2560, 30, 6, 128, 4, ops=refs), published.attention(2560, 30, 6, 128, 4)),
    ],
    ids=[f"{block}, {sizes}" for block in ("mamba", "mamba2", "attention") for sizes in ("defaults", "all sizes")],
)
def test_a_state_dict_of_mamba_ssm_loads(block: type[nn.Module], shapes: published.Shapes) -> None:
    with torch.device("meta"):
        made = block()
    assert {name: tuple(p.shape) for name, p in made.state_dict().items()} == shapes
    given = published.state_dict(shapes)
    made.load_state_dict(given, strict=True, assign=True)
    assert all(torch.equal(p, given[name]) for name, p in made.named_parameters())


def test_initial_steps_and_decays_are_those_of_the_papers() -> None:
    mamba, mamba2 = MambaBlock(64, ops=refs), Mamba2Block(64, headdim=2, ops=refs)
    for bias in (mamba.dt_proj.bias, mamba2.dt_bias):
        step = torch.nn.functional.softplus(bias.detach().double())
        assert 1e-3 <= float(step.min()) < 2e-3
        assert 5e-2 < float(step.max()) <= 0.1 * (1 + 1e-6)
    assert mamba.A_log[3].exp().tolist() == pytest.approx(range(1, 17))
    decays = mamba2.A_log.detach().exp()
    assert 1 <= float(decays.min()) < float(decays.max()) <= 16


@pytest.mark.parametrize("name", ["mamba", "mamba2", "attention"])
def test_recomputed_gradients_are_the_same_and_less_is_kept(name: str) -> None:
    kept, runs = [], []
    for recompute in (False, True):
        sizes: dict[int, int] = {}

        def keep(x: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            runs.append(run_block(FORMS[name].block(recompute=recompute), torch.float32))
        kept.append(sum(sizes.values()))
    assert all(torch.equal(value, runs[1].values[key]) for key, value in runs[0].values.items())
    assert kept[1] < kept[0] / 2


@pytest.mark.parametrize("name", ["mamba", "mamba2", "attention"])
def test_with_an_axis_of_batches_and_without_tokens(name: str) -> None:
    block, u = FORMS[name].block(), torch.randn(sum(LENGTHS), WIDTH)
    offsets = torch.tensor([0, 4, len(u)])
    assert torch.equal(block(u[None], cu_seqlens=offsets)[0], block(u, cu_seqlens=offsets))
    assert block(u[:0], cu_seqlens=torch.tensor([0, 0])).shape == (0, WIDTH)


def test_a_block_is_copied_and_saved_with_its_ops() -> None:
    block = FORMS["mamba2"].block()
    assert vars(copy.deepcopy(block))["ops"] is refs
    file = io.BytesIO()
    torch.save(block, file)
    file.seek(0)
    assert vars(torch.load(file, weights_only=False))["ops"] is refs


def test_autocast() -> None:
    form = FORMS["mamba2"]
    block = form.block()
    with torch.autocast("cpu", torch.bfloat16):
        y = block(torch.randn(4, WIDTH), cu_seqlens=torch.tensor([0, 4]))
    assert y.dtype == torch.bfloat16
