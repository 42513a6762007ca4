"""Packed equals alone: outputs of each document, and the gradients of parameters, which add.

The budget is derived from the module itself. It runs at two precisions; their difference, over the ratio of their unit
roundoffs, is what rounding does to this output at the higher one. Two runs may differ by as much each, and the sums of
one may be in another order: a factor for what one sample of rounding does not show.

Many models compute norms and rotations in fp32 whatever their dtype: in float64 they would have roundings that their
two runs share, and the budget would miss. They are judged in float32.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from packproof.harness.modules.conventions import Convention
from packproof.harness.modules.isolation import largest
from packproof.harness.modules.pack import Pack
from packproof.harness.modules.subject import ModuleRefused, Subject

_SAFETY = 32  # rounding errors of one sample have a largest element within a few times that of another
_VACUOUS = 0.1


@dataclass(frozen=True)
class Difference:
    """What differs between the pack and its documents alone. what: "document 2", or "gradient of layers.0.weight".
    found, allowed: the largest difference, and what rounding explains; scale: the largest value. among: the largest of
    all gradients, where this is one: that of a key's bias, which no softmax sees, is nothing but rounding."""

    what: str
    found: float
    allowed: float
    scale: float
    among: float

    @property
    def vacuous(self) -> bool:
        """Whether rounding explains a difference as large as a tenth of the values: a choice fell the other way."""
        return self.allowed > _VACUOUS * self.among

    @property
    def fails(self) -> bool:
        return not self.vacuous and not self.found <= self.allowed


def differences(subject: Subject, convention: Convention, pack: Pack, seed: int) -> Iterator[Difference]:
    """One for each document, and one for each parameter that gets a gradient. Raises ModuleRefused."""
    high, low = precisions(subject, convention, pack, seed)
    x = subject.input(pack.tokens, seed)
    packed, gradients = _run(high, convention, high.pack(pack.lengths), x, seed)
    alone, summed = _each_alone(high, convention, high.pack(pack.lengths), x, seed)
    rough, rough_gradients = _each_alone(low, convention, low.pack(pack.lengths), x, seed)
    units = torch.finfo(high.dtype).eps, torch.finfo(low.dtype).eps
    for j in range(len(pack.lengths)):
        rows = pack.rows(j)
        scale = largest(alone[rows])
        yield _difference(f"document {j}", packed[rows], alone[rows], rough[rows], *units, scale)
    names = [name for name in summed if name in gradients and name in rough_gradients]
    among = max((largest(summed[name]) for name in names), default=0.0)
    usual = _median([_rounding(summed[n], rough_gradients[n], *units) / (largest(summed[n]) or 1.0) for n in names])
    for name in names:
        grad = summed[name]
        yield _difference(f"gradient of {name}", gradients[name], grad, rough_gradients[name], *units, among, usual)


class _LessThanFloat64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds out whether anything is computed in a lower precision."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            self.seen |= isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
        return out


def precisions(subject: Subject, convention: Convention, pack: Pack, seed: int) -> tuple[Subject, Subject]:
    """The module in the highest precision that it computes in, and in a lower one. Raises ModuleRefused."""
    pairs = ((torch.float64, torch.float32), (torch.float32, torch.bfloat16))
    for high, low in pairs:
        exact = subject.at(high)
        try:
            with torch.no_grad(), _LessThanFloat64() as less:  # type: ignore[no-untyped-call]
                exact.call(_cast(subject.input(pack.tokens, seed), exact), convention, exact.pack(pack.lengths))
        except ModuleRefused:
            if high is pairs[-1][0]:
                raise
            continue
        if high is pairs[-1][0] or not less.seen:
            return exact, subject.at(low)
    raise AssertionError


def _difference(
    what: str,
    packed: Tensor,
    alone: Tensor,
    rough: Tensor,
    unit: float,
    rough_unit: float,
    among: float,
    usual: float = 0.0,
) -> Difference:
    """usual: rounding of a tensor of its kind, as part of its largest value: that of one number may be 0 by chance."""
    scale = largest(alone)
    allowed = _SAFETY * max(_rounding(alone, rough, unit, rough_unit), usual * scale)
    return Difference(what, largest(packed - alone), allowed, scale, among)


def _rounding(alone: Tensor, rough: Tensor, unit: float, rough_unit: float) -> float:
    return max(largest(rough.double() - alone.double()) * unit / rough_unit, unit * largest(alone))


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def _run(
    subject: Subject, convention: Convention, pack: Pack, x: Tensor, seed: int, weight: Tensor | None = None
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Outputs, and the gradients of a random sum of them by the name of each parameter."""
    given = _cast(x, subject)
    with torch.enable_grad():
        out = subject.call(given, convention, pack)
        weight = _weight(out, seed) if weight is None else weight
        named = {n: p for n, p in subject.module.named_parameters() if p.requires_grad}
        if not (named and out.requires_grad):
            return out.detach(), {}
        grads = torch.autograd.grad((out * weight.to(out)).sum(), list(named.values()), allow_unused=True)
    return out.detach(), {n: g for n, g in zip(named, grads, strict=True) if g is not None}


def _each_alone(
    subject: Subject, convention: Convention, pack: Pack, x: Tensor, seed: int
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The outputs of each document alone, one after another, and the sums of their gradients."""
    outputs: list[Tensor] = []
    total: dict[str, Tensor] = {}
    weight: Tensor | None = None
    for j in range(len(pack.lengths)):
        rows = pack.rows(j)
        if weight is None:
            with torch.no_grad():
                first = subject.call(_cast(x[:, rows], subject), convention, pack.alone(j))
            weight = _weight(first.new_empty(pack.tokens, *first.shape[1:]), seed)
        out, grads = _run(subject, convention, pack.alone(j), x[:, rows], seed, weight[rows])
        outputs.append(out)
        for name, grad in grads.items():
            total[name] = total[name] + grad if name in total else grad
    return torch.cat(outputs), total


def _cast(x: Tensor, subject: Subject) -> Tensor:
    return x.to(subject.dtype) if x.is_floating_point() else x


def _weight(out: Tensor, seed: int) -> Tensor:
    """The same numbers whatever the precision."""
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(out.device)
