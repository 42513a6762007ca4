"""For tests/attention and tests/gdn of FlashInfer: a fuzzer of packed layouts, each request judged as if it were alone.

A configuration follows from its seed: wrapper, head counts, page size, cache layout, lengths of the requests. Lengths
are where packed kernels go wrong: 0, 1, one below, at and above a page or a chunk, many short beside a long one.

  * Values are multiples of 1/8, so that inputs are exact in 16 bits, and the reference is in float64.
  * Each request has a tolerance of its own, by its largest magnitude: a norm over the batch hides a wrong short one.
  * Pages of no request, the rest of a last page and outputs of the caller hold NaN: to read or leave them is seen.
  * The same call again has the same result, and a probe after it tells a broken context.
  * Zero requests and zero tokens are configurations too; a refusal is a skip with its reason, a crash is a failure.

Env: FLASHINFER_PACKED_FUZZ_NUM_TESTS (default 200), FLASHINFER_PACKED_FUZZ_SEED (default 0), and, as each failure
prints it, FLASHINFER_PACKED_FUZZ_ONLY_SEED (comma-separated seeds).
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

flashinfer = pytest.importorskip("flashinfer")

NUM_TESTS = int(os.environ.get("FLASHINFER_PACKED_FUZZ_NUM_TESTS", "200"))
BASE_SEED = int(os.environ.get("FLASHINFER_PACKED_FUZZ_SEED", "0"))
ONLY = os.environ.get("FLASHINFER_PACKED_FUZZ_ONLY_SEED", "")
SEEDS = [int(seed) for seed in ONLY.split(",")] if ONLY else range(BASE_SEED, BASE_SEED + NUM_TESTS)
REFUSALS = ("not support", "unsupported", "must be", "requires", "only support", "not implemented", "invalid")
CRASHES = ("cuda error", "illegal memory", "misaligned", "device-side assert")
KNOWN_FAILURES = {  # (target, what of the configuration) -> why; strict, as an xfail that passes fails
    ("prefill_paged", "no requests"): "plan takes the largest of no lengths",
}
DTYPES = (torch.float16, torch.bfloat16)
ROUNDINGS = 4  # of the output's dtype: of q k, of the weights, of the products with v, and of the output
GDN_ROUNDINGS = 32  # chunks of 64 tokens keep operands and states of products in 16 bits

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA not available")


@dataclass(frozen=True)
class Config:
    """What a seed stands for."""

    seed: int
    target: str
    lengths: tuple[int, ...]
    """Tokens of each request."""
    cached: tuple[int, ...]
    """Keys of each request: its tokens and those before them."""
    heads: tuple[int, int]
    page_size: int
    kv_layout: str
    causal: bool
    dtype: torch.dtype
    strided: bool
    """Whether the cache is a view of a larger tensor."""

    @property
    def kind(self) -> str:
        return "requests" if self.lengths else "no requests"

    def __str__(self) -> str:
        command = (
            f"FLASHINFER_PACKED_FUZZ_ONLY_SEED={self.seed} pytest -q {os.path.basename(__file__)} -k {self.target}"
        )
        return f"{command}\n{self!r}"


def draw_lengths(rng: random.Random, edge: int, least: int) -> tuple[int, ...]:
    """Lengths around the edge of a page or a chunk. Few requests are long, since the reference is slow."""
    near = (0, 1, 2, edge - 1, edge, edge + 1, 2 * edge, 2 * edge + 1)
    count = rng.choice((0, 1, 2, 3, 5, 17))
    lengths = [max(least, rng.choice(near)) for _ in range(count)]
    if lengths and rng.random() < 0.3:
        lengths[rng.randrange(count)] = rng.randrange(200, 700)
    return tuple(lengths)


def draw(target: str, seed: int) -> Config:
    rng = random.Random(f"{target} {seed}")
    page_size = rng.choice((1, 5, 16, 64))
    decode = target.endswith("decode")
    lengths = draw_lengths(rng, 64 if target.startswith("gdn") else page_size, 0)
    if decode:
        lengths = (1,) * len(lengths)
    before = [rng.choice((0, 1, page_size - 1, page_size, 3 * page_size + 1)) for _ in lengths]
    kv_heads, groups = rng.choice((1, 2, 4)), rng.choice((1, 2, 8))
    return Config(
        seed=seed,
        target=target,
        lengths=lengths,
        cached=tuple(n + b for n, b in zip(lengths, before, strict=True)),
        heads=(kv_heads * groups, kv_heads),
        page_size=page_size,
        kv_layout=rng.choice(("NHD", "HND")),
        causal=rng.random() < 0.7,
        dtype=rng.choice(DTYPES),
        strided=rng.random() < 0.5,
    )


# --- references, in float64 -----------------------------------------------------------------------


def eighths(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randint(-8, 9, shape, generator=generator, dtype=torch.float64) / 8


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """One request: q (t, hq, d), k and v (s, hk, d); the last token of q is the last key. Without keys it is 0."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    score = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    if causal:
        position = torch.arange(len(q))[:, None] + len(k) - len(q)
        score = score.masked_fill(torch.arange(len(k)) > position, -torch.inf)
    return torch.einsum("hqk,khd->qhd", score.softmax(-1).nan_to_num(0), v)


def delta_rule(q, k, v, alpha, beta, state):
    """One sequence: q and k (t, hk, d), v (t, hv, d), alpha and beta (t, hv), state (hv, d_v, d_k). S k predicts v."""
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q * q.shape[-1] ** -0.5, k))
    rows = []
    for t in range(len(v)):
        state = alpha[t, :, None, None] * state
        error = v[t] - torch.einsum("hvk,hk->hv", state, k[t])
        state = state + torch.einsum("h,hv,hk->hvk", beta[t], error, k[t])
        rows.append(torch.einsum("hvk,hk->hv", state, q[t]))
    return (torch.stack(rows) if rows else torch.zeros_like(v)), state


# --- judgement ------------------------------------------------------------------------------------


def require_close(name: str, actual: torch.Tensor, expected: torch.Tensor, largest: float, roundings: int) -> None:
    """largest: the largest magnitude that was summed for the request."""
    bound = roundings * torch.finfo(actual.dtype).eps * max(largest, 1e-6)
    actual = actual.double().cpu()
    assert actual.shape == expected.shape, f"{name}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    error = (actual - expected).abs()
    wrong = ~(error <= bound)  # NaN is wrong
    if wrong.any():
        first = tuple(wrong.nonzero()[0].tolist())
        pytest.fail(f"{name}: {int(wrong.sum())} wrong, first at {first}: {actual[first]} is not {expected[first]}")


def run(config: Config, call):
    """Calls it twice. A refusal is a skip, and nothing else is."""
    known = KNOWN_FAILURES.get((config.target, config.kind))
    try:
        first, again = call(), call()
        torch.cuda.synchronize()
        assert float(torch.ones(8, device="cuda").sum()) == 8
    except (ValueError, RuntimeError, AssertionError, NotImplementedError) as error:
        text = str(error).lower()
        if not any(word in text for word in CRASHES):
            if known:
                pytest.xfail(known)
            if any(word in text for word in REFUSALS):
                pytest.skip(f"refused: {text.splitlines()[0]}")
        raise
    assert not known, f"KNOWN_FAILURES has {config.target}, {config.kind}, and it passes"
    for one, two in zip(first, again, strict=True):
        same = torch.equal(*(x.nan_to_num(nan=123.0) for x in (one, two)))  # NaN is for the reference to judge
        assert same, f"the same call differs\n{config}"
    return first


def offsets(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


# --- attention ------------------------------------------------------------------------------------


def fill_pages(config: Config, tensors: list[tuple[torch.Tensor, torch.Tensor]], generator: torch.Generator):
    """A cache whose pages are shuffled, its page indices, and how many pages each request has. All else is NaN."""
    size, (_, heads) = config.page_size, config.heads
    counts = tuple(-(-n // size) for n in config.cached)
    pages = torch.randperm(sum(counts) + 2, generator=generator)[: sum(counts)]
    width = tensors[0][0].shape[-1] if tensors else 64
    cache = torch.full((sum(counts) + 2, 2, size, heads, width), torch.nan, dtype=torch.float64)
    for own, keys_and_values in zip(pages.split(counts), tensors, strict=True):
        for kind, x in enumerate(keys_and_values):
            flat = cache[own, kind].flatten(0, 1)
            flat[: len(x)] = x
            cache[own, kind] = flat.view(len(own), size, heads, width)
    cache = cache.to(config.dtype).cuda()
    if config.strided:
        cache = torch.stack([cache, torch.full_like(cache, torch.nan)], 1)[:, 0]
    return (cache if config.kv_layout == "NHD" else cache.transpose(2, 3)), pages.int(), counts


def attention_wrapper(
    config: Config, workspace: torch.Tensor, pages: torch.Tensor, counts: tuple[int, ...], width: int
):
    """A planned wrapper."""
    last = torch.tensor([(n - 1) % config.page_size + 1 if n else 0 for n in config.cached], dtype=torch.int32).cuda()
    table = [x.cuda() for x in (offsets(counts), pages)] + [last]
    sizes, dtypes = (*config.heads, width), {"q_data_type": config.dtype, "kv_data_type": config.dtype}
    if config.target == "attention_decode":
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, config.kv_layout)
        wrapper.plan(*table, *sizes, config.page_size, **dtypes)
    elif config.target == "prefill_paged":
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, config.kv_layout)
        indptr = offsets(config.lengths).cuda()
        wrapper.plan(indptr, *table, *sizes, config.page_size, causal=config.causal, **dtypes)
    else:
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
        indptr = [offsets(lengths).cuda() for lengths in (config.lengths, config.cached)]
        wrapper.plan(*indptr, *sizes, causal=config.causal, **dtypes)
    return wrapper


@on_gpu
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("target", ["attention_decode", "prefill_paged", "prefill_ragged"])
def test_attention_of_a_batch_is_that_of_its_requests(target: str, seed: int):
    config, generator, width = draw(target, seed), torch.Generator().manual_seed(seed), 64
    print(config)
    queries = [eighths(generator, n, config.heads[0], width) for n in config.lengths]
    tensors = [tuple(eighths(generator, n, config.heads[1], width) for _ in "kv") for n in config.cached]
    cache, pages, counts = fill_pages(config, tensors, generator)
    q = torch.cat([torch.empty(0, config.heads[0], width), *queries]).to(config.dtype).cuda()
    ragged = [
        torch.cat([torch.empty(0, config.heads[1], width), *x])
        for x in (zip(*tensors, strict=True) if tensors else ([], []))
    ]
    arguments = [x.to(config.dtype).cuda() for x in ragged] if target == "prefill_ragged" else [cache]
    workspace = torch.empty(128 * 2**20, dtype=torch.uint8, device="cuda")

    def call():
        wrapper = attention_wrapper(config, workspace, pages, counts, width)
        return (wrapper.run(q, *arguments, out=torch.full_like(q, torch.nan)),)

    (y,) = run(config, call)
    for number, (rows, one, (k, v)) in enumerate(zip(y.split(config.lengths), queries, tensors, strict=True)):
        largest = float(v.abs().max()) if len(v) else 0.0
        causal = config.causal and target != "attention_decode"
        require_close(f"request {number}", rows, attend(one, k, v, causal), largest, ROUNDINGS)


# --- gated delta rule -----------------------------------------------------------------------------


@on_gpu
@pytest.mark.parametrize("seed", SEEDS)
def test_gdn_prefill_of_a_batch_is_that_of_its_sequences(seed: int):
    config, generator, width = draw("gdn_prefill", seed), torch.Generator().manual_seed(seed), 128
    print(config)
    (hv, hk), total = config.heads, sum(config.lengths)
    q, k = (F.normalize(eighths(generator, total, hk, width), dim=-1).to(config.dtype) for _ in range(2))
    v = eighths(generator, total, hv, width).to(config.dtype)
    alpha = torch.exp(-torch.rand(total, hv, generator=generator) / 8)
    beta = torch.rand(total, hv, generator=generator)
    before = eighths(generator, len(config.lengths), hv, width, width).float() / 8
    q_, k_, v_, alpha_, beta_, before_ = (x.cuda() for x in (q, k, v, alpha, beta, before))
    boundaries = offsets(config.lengths).long().cuda()

    def call():
        return flashinfer.gdn_prefill.chunk_gated_delta_rule(
            q_, k_, v_, alpha_, beta_, None, before_.clone(), True, boundaries,
            output=torch.full_like(v_, torch.nan), output_state=torch.full_like(before_, torch.nan),
        )  # fmt: skip

    y, states = run(config, call)
    parts = [x.double().split(config.lengths) for x in (q, k, v, alpha, beta)]
    for number, (rows, *one) in enumerate(zip(y.split(config.lengths), *parts, before.double(), strict=True)):
        expected, state = delta_rule(*one)
        largest = max((float(x.abs().max()) for x in (expected, state, one[2]) if x.numel()), default=0.0)
        require_close(f"sequence {number}", rows, expected, largest, GDN_ROUNDINGS)
        require_close(f"state {number}", states[number].to(config.dtype), state, largest, GDN_ROUNDINGS)


@on_gpu
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("pool", [False, True])
def test_gdn_decode_touches_the_states_of_its_requests_alone(seed: int, pool: bool):
    config, generator, width = draw("gdn_decode", seed), torch.Generator().manual_seed(seed), 128
    print(config)
    (hv, hk), batch = config.heads, len(config.lengths)
    q, k = (eighths(generator, batch, 1, hk, width).to(config.dtype) for _ in range(2))
    v, a, b = (eighths(generator, batch, 1, hv, *rest).to(config.dtype) for rest in ((width,), (), ()))
    A_log, dt_bias = torch.rand(hv, generator=generator), torch.rand(hv, generator=generator) - 4
    dtype = torch.bfloat16 if pool else torch.float32
    slots = torch.randperm(batch + 3, generator=generator)[:batch]
    before = (eighths(generator, batch + 3, hv, width, width) / 8).to(dtype)
    tensors = [x.cuda() for x in (q, k, v)]
    given = {"A_log": A_log.cuda(), "a": a.cuda(), "dt_bias": dt_bias.cuda(), "b": b.cuda()}

    def call():
        states = before.clone().cuda() if pool else before[slots].cuda()
        place = {"initial_state": states, "initial_state_indices": slots.int().cuda()} if pool else {}
        y, _ = flashinfer.gdn_decode.gated_delta_rule_decode_pretranspose(
            *tensors, None if pool else states, **given, use_qk_l2norm=True, **place
        )
        return y, states

    y, states = run(config, call)
    g = -A_log.double().exp() * F.softplus(a.double() + dt_bias.double())
    after = states[slots.cuda()] if pool else states
    for number, slot in enumerate(slots):
        unit = [F.normalize(x[number].double(), dim=-1) for x in (q, k)]
        step = (*unit, v[number].double(), g[number].exp(), b[number].double().sigmoid(), before[slot].double())
        expected, state = delta_rule(*step)
        largest = max(float(x.abs().max()) for x in (expected, state, v[number]))
        require_close(f"request {number}", y[number], expected, largest, GDN_ROUNDINGS)
        require_close(f"state {number}", after[number].to(config.dtype), state, largest, GDN_ROUNDINGS)
    if pool:
        others = torch.tensor([slot for slot in range(batch + 3) if slot not in slots.tolist()])
        assert torch.equal(states.cpu()[others], before[others]), f"a slot of no request was written\n{config}"


# --- the fuzzer itself, on any machine ------------------------------------------------------------


def test_configurations_follow_from_their_seeds_and_reach_the_edges():
    configs = [draw("prefill_paged", seed) for seed in range(200)]
    assert configs == [draw("prefill_paged", seed) for seed in range(200)]
    lengths = [n - config.page_size for config in configs for n in config.lengths]
    assert {-1, 0, 1} <= set(lengths)
    assert any(not config.lengths for config in configs)
    assert any(0 in config.lengths and sum(config.lengths) for config in configs)


def test_the_reference_of_attention_is_that_of_torch():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (eighths(generator, 5, heads, 16) for heads in (4, 2, 2))
    heads_first = [x.transpose(0, 1)[None] for x in (q, k, v)]
    expected = F.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
    torch.testing.assert_close(attend(q, k, v, True), expected)
    last = F.scaled_dot_product_attention(heads_first[0][:, :, -1:], *heads_first[1:], enable_gqa=True)[0, :, 0]
    torch.testing.assert_close(attend(q[-1:], k, v, True)[0], last)


def test_the_reference_of_the_delta_rule_stores_values():
    """Of orthogonal keys with beta 1 and no decay, each query finds its value."""
    k, v = torch.eye(4, dtype=torch.float64)[:, None], eighths(torch.Generator().manual_seed(0), 4, 2, 3)
    one = torch.ones(4, 2, dtype=torch.float64)
    y, state = delta_rule(2.0 * k, k, v, one, one, torch.zeros(2, 3, 4, dtype=torch.float64))
    torch.testing.assert_close(y, v)
    torch.testing.assert_close(state, v.permute(1, 2, 0))


def test_a_wrong_short_request_is_not_hidden_by_a_long_one():
    with pytest.raises(pytest.fail.Exception, match="request 1: 1 wrong"):
        require_close("request 1", torch.tensor([0.5]).half(), torch.tensor([0.25]).double(), 0.25, ROUNDINGS)
    with pytest.raises(pytest.fail.Exception, match="1 wrong"):
        require_close("request 1", torch.tensor([torch.nan]).half(), torch.zeros(1).double(), 1.0, ROUNDINGS)
