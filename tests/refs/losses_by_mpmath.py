"""The losses a second time: token by token in 40 digits, with gradients derived by hand. Nothing is shared with refs.

A function takes the inputs of a call as tensors, the offsets, the incoming gradient and the options. It returns the
output and the gradients by name, as lists of numbers of mpmath.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import mpmath
from torch import Tensor

mpmath.mp.dps = 40
mpf = mpmath.mpf
Row = list[Any]
Answer = tuple[Any, dict[str, Any]]


def numbers(x: Tensor | Sequence[Any]) -> Any:
    """A tensor as nested lists of numbers of mpmath, exactly."""
    values = x.tolist() if isinstance(x, Tensor) else x
    return [numbers(v) for v in values] if isinstance(values, list) else mpf(values)


def softmax(x: Row) -> tuple[Row, Any]:
    """p and log Σ exp(x)."""
    terms = [mpmath.exp(v) for v in x]
    total = mpmath.fsum(terms)
    return [t / total for t in terms], mpmath.log(total)


def zeros(x: Any) -> Any:
    return [zeros(v) for v in x] if isinstance(x, list) else mpf(0)


def dot(x: Row, y: Row) -> Any:
    return mpmath.fsum(a * b for a, b in zip(x, y, strict=True))


def token_loss(x: Row, y: int, smoothing: float = 0.0, z_loss: float = 0.0) -> tuple[Any, Row]:
    """The cross entropy of a token, and its gradient by the logits."""
    (p, lse), n = softmax(x), len(x)
    e, z = mpf(smoothing), mpf(z_loss)
    target = [(1 - e) * (i == y) + e / n for i in range(n)]
    loss = lse - dot(target, x) + z * lse**2
    return loss, [p[i] - target[i] + 2 * z * lse * p[i] for i in range(n)]


def targets(labels: Tensor, offsets: Sequence[int], shift: int, ignored: int) -> list[int | None]:
    """The label of each token, `shift` places later in its sequence; None where it does not count."""
    y = labels.tolist()
    found: list[int | None] = []
    for a, b in pairwise(offsets):
        found += [y[i + shift] if i + shift < b and y[i + shift] != ignored else None for i in range(a, b)]
    return found


def of_tokens(
    x: list[Row], labels: Tensor, offsets: Sequence[int], options: dict[str, Any]
) -> tuple[list[Any], list[Row], list[bool]]:
    """The loss of each token, its gradient, and whether it counts."""
    y = targets(labels, offsets, int(options.get("shift", False)), options["ignore_index"])
    terms = {"smoothing": options.get("label_smoothing", 0.0), "z_loss": options.get("z_loss", 0.0)}
    pairs = [(mpf(0), zeros(row)) if k is None else token_loss(row, k, **terms) for row, k in zip(x, y, strict=False)]
    return [loss for loss, _ in pairs], [gradient for _, gradient in pairs], [k is not None for k in y]


def weigh(rows: list[Row], weights: Sequence[Any], like: Tensor) -> list[Row]:
    """The rows times their weights; zeros past the last one."""
    weighed = [[w * v for v in row] for w, row in zip(weights, rows, strict=False)]
    return weighed + [zeros(numbers(row)) for row in like[len(weighed) :]]


def mean_weights(counts: Sequence[bool], offsets: Sequence[int], reduction: str) -> list[Any]:
    """The weight of each token in the loss of the pack."""
    if reduction == "sum":
        return [mpf(int(count)) for count in counts]
    if reduction == "mean over tokens":
        return [mpf(int(count)) / max(sum(counts), 1) for count in counts]
    lengths = [sum(counts[a:b]) for a, b in pairwise(offsets)]
    n = {"of sequences": 1, "mean over sequences": max(sum(k > 0 for k in lengths), 1)}[reduction]
    weights: list[Any] = []
    for (a, b), k in zip(pairwise(offsets), lengths, strict=True):
        weights += [mpf(int(count)) / max(k, 1) / n for count in counts[a:b]]
    return weights


def cross_entropy_by(reduction: str) -> Callable[..., Answer]:
    def loss(logits: Tensor, labels: Tensor, offsets: Sequence[int], dy: Any, **options: Any) -> Answer:
        losses, gradients, counts = of_tokens(numbers(logits), labels, offsets, options)
        weights = mean_weights(counts, offsets, reduction)
        terms = [w * v for w, v in zip(weights, losses, strict=True)]
        if reduction != "of sequences":
            return mpmath.fsum(terms), {"logits": weigh(gradients, [dy * w for w in weights], logits)}
        spans = [*pairwise(offsets)]
        incoming = [dy[j] for j, (a, b) in enumerate(spans) for _ in range(a, b)]
        weights = [d * w for d, w in zip(incoming, weights, strict=True)]
        return [mpmath.fsum(terms[a:b]) for a, b in spans], {"logits": weigh(gradients, weights, logits)}

    return loss


def linear_cross_entropy(
    x: Tensor, weight: Tensor, labels: Tensor, offsets: Sequence[int], dy: Any, **options: Any
) -> Answer:
    rows, w = numbers(x)[: offsets[-1]], numbers(weight)
    logits = [[dot(row, column) for column in w] for row in rows]
    losses, gradients, counts = of_tokens(logits, labels, offsets, options)
    weights = mean_weights(counts, offsets, "mean over tokens")
    d = [[dy * k * v for v in row] for k, row in zip(weights, gradients, strict=True)]
    dx = [[dot(row, [column[i] for column in w]) for i in range(x.shape[1])] for row in d]
    dw = [[dot([row[v] for row in d], [row[i] for row in rows]) for i in range(x.shape[1])] for v in range(len(w))]
    return dot(weights, losses), {"x": dx + zeros(numbers(x))[len(dx) :], "weight": dw}


def token_logprobs(logits: Tensor, labels: Tensor, offsets: Sequence[int], dy: Any, **options: Any) -> Answer:
    losses, gradients, _ = of_tokens(numbers(logits), labels, offsets, options)
    values = [-loss for loss in losses]
    return values + zeros(dy)[len(values) :], {"logits": weigh(gradients, [-d for d in dy], logits)}


def token_entropy(logits: Tensor, offsets: Sequence[int], dy: Any) -> Answer:
    values, gradients = [], []
    for row in numbers(logits)[: offsets[-1]]:
        p, lse = softmax(row)
        entropy = lse - dot(p, row)
        values.append(entropy)
        gradients.append([-a * (v - lse + entropy) for a, v in zip(p, row, strict=True)])
    return values + zeros(dy)[len(values) :], {"logits": weigh(gradients, dy, logits)}


def kl_divergence(logits: Tensor, other_logits: Tensor, offsets: Sequence[int], dy: Any) -> Answer:
    values, dx, dz = [], [], []
    for x, z in zip(numbers(logits)[: offsets[-1]], numbers(other_logits), strict=False):
        (p, lse_x), (q, lse_z) = softmax(x), softmax(z)
        distances = [(a - lse_x) - (b - lse_z) for a, b in zip(x, z, strict=True)]
        kl = dot(p, distances)
        values.append(kl)
        dx.append([a * (d - kl) for a, d in zip(p, distances, strict=True)])
        dz.append([b - a for a, b in zip(p, q, strict=True)])
    gradients = {"logits": weigh(dx, dy, logits), "other_logits": weigh(dz, dy, other_logits)}
    return values + zeros(dy)[len(values) :], gradients


def multi_token_cross_entropy(
    logits: Tensor, labels: Tensor, offsets: Sequence[int], dy: Any, ignore_index: int
) -> Answer:
    values, gradient = zeros(dy), zeros(numbers(logits))
    for k in range(logits.shape[1]):
        for i, y in enumerate(targets(labels, offsets, k + 1, ignore_index)):
            if y is not None:
                loss, slope = token_loss(numbers(logits[i, k]), y)
                values[k] += loss
                gradient[i][k] = [dy[k] * v for v in slope]
    return values, {"logits": gradient}


def policy_by(reduction: str) -> Callable[..., Answer]:
    def loss(
        logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, offsets: Sequence[int], dy: Any,
        ref_logprobs: Tensor | None = None, length_norm: bool = True, **options: Any,
    ) -> Answer:  # fmt: skip
        counts = [v == 1 for v in mask.tolist()[: offsets[-1]]]
        weights = mean_weights(counts, offsets, reduction)
        value, gradient = mpf(0), zeros(numbers(logprobs))
        for j, (a, b) in enumerate(pairwise(offsets)):
            tokens = [i for i in range(a, b) if counts[i]]
            scale = 1 if length_norm else len(tokens)
            gains = [mpf(float(logprobs[i])) - mpf(float(old_logprobs[i])) for i in tokens]
            of_response = mpmath.fsum(gains) / max(len(tokens), 1)
            for i, gain in zip(tokens, gains, strict=True):
                log_ratio = of_response if options["sequence_ratio"] else gain
                surrogate, slope = clipped(log_ratio, mpf(float(advantages[j])), options)
                for k in tokens if options["sequence_ratio"] else [i]:
                    share = mpf(1) / len(tokens) if options["sequence_ratio"] else 1
                    gradient[k] += dy * scale * weights[i] * slope * share
                value += scale * weights[i] * surrogate
                if ref_logprobs is not None:
                    d, beta = mpf(float(ref_logprobs[i])) - mpf(float(logprobs[i])), mpf(options["beta"])
                    value += scale * weights[i] * beta * (mpmath.exp(d) - d - 1)
                    gradient[i] += dy * scale * weights[i] * beta * (1 - mpmath.exp(d))
        return value, {"logprobs": gradient}

    return loss


def clipped(log_ratio: Any, advantage: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """-min(r A, clip(r) A), and its slope by log r."""
    ratio = mpmath.exp(log_ratio)
    if advantage >= 0 and ratio > 1 + mpf(options["clip_high"]):
        return -(1 + mpf(options["clip_high"])) * advantage, mpf(0)
    if advantage < 0 and ratio < 1 - mpf(options["clip_low"]):
        return -(1 - mpf(options["clip_low"])) * advantage, mpf(0)
    return -ratio * advantage, -ratio * advantage


def dpo_loss(
    logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, chosen_lengths: Tensor, offsets: Sequence[int], dy: Any,
    beta: float, label_smoothing: float,
) -> Answer:  # fmt: skip
    values, gradient = [], zeros(numbers(logprobs))
    e = mpf(label_smoothing)
    for j, (a, b) in enumerate(pairwise(offsets)):
        signs = {i: 1 if i < a + int(chosen_lengths[j]) else -1 for i in range(a, b) if int(mask[i])}
        gains = [s * (mpf(float(logprobs[i])) - mpf(float(ref_logprobs[i]))) for i, s in signs.items()]
        h = mpf(beta) * mpmath.fsum(gains)
        wins = 1 / (1 + mpmath.exp(-h))
        values.append(-(1 - e) * mpmath.log(wins) - e * mpmath.log(1 - wins))
        for i, s in signs.items():
            gradient[i] = dy[j] * mpf(beta) * s * (e * wins - (1 - e) * (1 - wins))
    return values, {"logprobs": gradient}


def chosen(x: Row, top: int) -> set[int]:
    return set(sorted(range(len(x)), key=lambda i: -x[i])[:top])


def in_mask(mask: Tensor | None, rows: Sequence[int]) -> list[int]:
    return [i for i in rows if mask is None or int(mask[i])]


def router_load(logits: Tensor, offsets: Sequence[int], dy: Any, top: int, mask: Tensor | None = None) -> Answer:
    rows = [chosen(numbers(logits[i]), top) for i in in_mask(mask, range(offsets[-1]))]
    return [mpf(sum(e in row for row in rows)) for e in range(logits.shape[1])], {}


def balance(x: list[Row], load: Row, scores: str) -> tuple[Any, list[Row]]:
    """E Σ f_i P_i over these tokens, and its gradient by their logits."""
    e, n = len(load), max(len(x), 1)
    total, gradients = mpf(0), []
    for row in x:
        s = [1 / (1 + mpmath.exp(-v)) for v in row]
        p = softmax(row)[0] if scores == "softmax" else [v / mpmath.fsum(s) for v in s]
        gain = dot(load, p)
        slopes = p if scores == "softmax" else [a * (1 - b) for a, b in zip(p, s, strict=True)]
        total += gain
        gradients.append([e * d * (f - gain) / n for d, f in zip(slopes, load, strict=True)])
    return e * total / n, gradients


def router_balance_loss_pack(
    logits: Tensor, load: Tensor, offsets: Sequence[int], dy: Any, scores: str, mask: Tensor | None = None
) -> Answer:
    tokens, gradient = in_mask(mask, range(offsets[-1])), zeros(numbers(logits))
    value, gradients = balance([numbers(logits[i]) for i in tokens], numbers(load), scores)
    for i, row in zip(tokens, gradients, strict=True):
        gradient[i] = [dy * v for v in row]
    return value, {"logits": gradient}


def router_balance_loss_sequences(
    logits: Tensor, offsets: Sequence[int], dy: Any, top: int, scores: str, mask: Tensor | None = None
) -> Answer:
    values, gradient = [], zeros(numbers(logits))
    for j, (a, b) in enumerate(pairwise(offsets)):
        tokens = in_mask(mask, range(a, b))
        x = [numbers(logits[i]) for i in tokens]
        choices = [chosen(row, top) for row in x]
        load = [mpf(sum(e in c for c in choices)) / max(top * len(x), 1) for e in range(logits.shape[1])]
        value, gradients = balance(x, load, scores)
        values.append(value)
        for i, row in zip(tokens, gradients, strict=True):
            gradient[i] = [dy[j] * v for v in row]
    return values, {"logits": gradient}


def router_z_loss(logits: Tensor, offsets: Sequence[int], dy: Any, mask: Tensor | None = None) -> Answer:
    tokens, gradient, value = in_mask(mask, range(offsets[-1])), zeros(numbers(logits)), mpf(0)
    n = max(len(tokens), 1)
    for i in tokens:
        p, lse = softmax(numbers(logits[i]))
        value += lse**2 / n
        gradient[i] = [dy * 2 * lse * v / n for v in p]
    return value, {"logits": gradient}


SECOND_WAYS: dict[str, Callable[..., Answer]] = {
    "cross_entropy": cross_entropy_by("mean over tokens"),
    "cross_entropy_sum": cross_entropy_by("sum"),
    "cross_entropy_sequences": cross_entropy_by("of sequences"),
    "policy_loss": policy_by("mean over tokens"),
    "policy_loss_sequences": policy_by("mean over sequences"),
    **{
        f.__name__: f
        for f in (
            *(linear_cross_entropy, token_logprobs, token_entropy, kl_divergence, multi_token_cross_entropy, dpo_loss),
            *(router_load, router_balance_loss_pack, router_balance_loss_sequences, router_z_loss),
        )
    },
}
