"""Floating-point operations of an op's mathematics, forward and backward, from sizes and lengths.

A multiplication, an addition and an exponential count one each, a multiply-add of a matrix product counts two. A causal
mask counts only the unmasked pairs. Recomputation in the backward pass counts. Gates, skips, biases and softplus are
left out: they are of the order of the tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

SSD_CHUNK = 256  # Mamba-2's usual one: a count depends on the chunk, and must be the same for all kernels


class Flops(NamedTuple):
    """Operations of the forward and of the backward pass."""

    forward: int
    backward: int


CountFlops = Callable[[Mapping[str, int], Sequence[int], Mapping[str, Any]], Flops]


def causal_conv1d(sizes: Mapping[str, int], lengths: Sequence[int], _options: Mapping[str, Any]) -> Flops:
    """A multiply-add per token, channel and tap. Backward has the same for the gradients of x and of the weight."""
    forward = 2 * sum(lengths) * sizes["d"] * sizes["w"]
    return Flops(forward, 2 * forward)


def selective_scan(sizes: Mapping[str, int], lengths: Sequence[int], _options: Mapping[str, Any]) -> Flops:
    """Per token, channel and state: Δ A, exp, · h, Δu · B, +, · C, Σ.

    Backward: the states again (5), the gradient of the state (3), and a multiply-add for each gradient of u, Δ, the
    decay, A, B and C (12).
    """
    states = sum(lengths) * sizes["d"] * sizes["n"]
    return Flops(7 * states, 20 * states)


def ssd(sizes: Mapping[str, int], lengths: Sequence[int], _options: Mapping[str, Any]) -> Flops:
    """The chunked form (Dao & Gu 2024, section 6). Backward: two products for each one, then C B and states again."""
    h, p, n, g = (sizes[axis] for axis in ("h", "p", "n", "g"))
    pairs = sum(_causal_pairs(chunk) for length in lengths for chunk in _chunks(length))
    score_flops, chunk_output_flops = 2 * pairs * g * n, 2 * pairs * h * p
    state_flops = state_output_flops = 2 * sum(lengths) * h * p * n
    forward = score_flops + chunk_output_flops + state_flops + state_output_flops
    return Flops(forward, 2 * forward + score_flops + state_flops)


def linear_attention(sizes: Mapping[str, int], lengths: Sequence[int], options: Mapping[str, Any]) -> Flops:
    """As in SSD, with the value heads as its heads and the key heads as its groups."""
    return ssd({"h": sizes["hv"], "g": sizes["hk"], "p": sizes["p"], "n": sizes["k"]}, lengths, options)


def rope(sizes: Mapping[str, int], lengths: Sequence[int], _options: Mapping[str, Any]) -> Flops:
    """Four multiplications and two additions per rotated pair, both ways."""
    rotation = 6 * sum(lengths) * sizes["h"] * sizes["r"]
    return Flops(rotation, rotation)


def rope_qk(sizes: Mapping[str, int], lengths: Sequence[int], options: Mapping[str, Any]) -> Flops:
    """As in rope, for the heads of queries and keys."""
    return rope({**sizes, "h": sizes["hq"] + sizes["hk"]}, lengths, options)


def grouped_mm(sizes: Mapping[str, int], lengths: Sequence[int], _options: Mapping[str, Any]) -> Flops:
    """A product of each row; backward one for the gradient of the row, and one for that of the matrix."""
    product = 2 * sum(lengths) * sizes["d"] * sizes["f"]
    return Flops(product, 2 * product)


def mixture_of_experts(sizes: Mapping[str, int], lengths: Sequence[int], options: Mapping[str, Any]) -> Flops:
    """Three products of a row for each of its experts; backward each has two."""
    products = 6 * sum(lengths) * options.get("top", 2) * sizes["d"] * sizes["f"]
    return Flops(products, 2 * products)


def hadamard(sizes: Mapping[str, int], lengths: Sequence[int], _options: Mapping[str, Any]) -> Flops:
    """Butterflies: an addition per channel and each of log2(k) stages, a sign and the scale; both ways."""
    k = sizes["k"]
    transform = sum(lengths) * sizes["h"] * k * (k.bit_length() + 1)
    return Flops(transform, transform)


def rope_hadamard(sizes: Mapping[str, int], lengths: Sequence[int], options: Mapping[str, Any]) -> Flops:
    """The sum of rope and hadamard."""
    rotation, transform = rope(sizes, lengths, options), hadamard(sizes, lengths, options)
    return Flops(rotation.forward + transform.forward, rotation.backward + transform.backward)


def attention(sizes: Mapping[str, int], lengths: Sequence[int], options: Mapping[str, Any]) -> Flops:
    """Two matrix products forward. Backward: the scores again, and two for each one. A window reduces nothing."""
    pairs = sum(_causal_pairs(n) if options.get("causal") else n * n for n in lengths)
    scores, values = 2 * pairs * sizes["hq"] * sizes["k"], 2 * pairs * sizes["hq"] * sizes["v"]
    return Flops(scores + values, 3 * scores + 2 * values)


def _causal_pairs(n: int) -> int:
    return n * (n + 1) // 2


def _chunks(length: int) -> list[int]:
    full_chunks, remainder = divmod(length, SSD_CHUNK)
    return [SSD_CHUNK] * full_chunks + [remainder]
