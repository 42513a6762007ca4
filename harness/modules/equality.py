"""Packed equals alone: the outputs of each document, and the summed gradients of parameters.

The budget is derived from the module itself. It runs at two precisions. Their difference, over the ratio of their unit
roundoffs, estimates the rounding of this output at the higher precision. The pack and the documents alone may each
differ by as much, and sums may run in another order. A safety factor covers the spread of rounding beyond one sample.

Many models compute norms and rotations in fp32 whatever their dtype. In float64 both runs would share these roundings,
and the budget would miss them. Such models are judged in float32.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from packproof.harness.modules.choices import Chosen, Made, TieBreaker
from packproof.harness.modules.conventions import Convention
from packproof.harness.modules.isolation import largest
from packproof.harness.modules.pack import FIRST, PADDING, Pack
from packproof.harness.modules.subject import ModuleRefused, Subject
from packproof.properties.light_torch import DispatchMode

_SAFETY = 32  # the largest rounding error varies by a few times between samples
_VACUOUS = 0.1


@dataclass(frozen=True)
class Difference:
    """A difference between the pack and its documents alone, for one document's output or one gradient."""

    what: str
    """Its name: "document 2", or "gradient of layers.0.weight"."""
    found: float
    """The largest difference."""
    allowed: float
    """The largest difference that rounding explains."""
    scale: float
    """The largest value."""
    among: float
    """Of a gradient, the largest value of all gradients: a gradient may be nothing but rounding, as softmax cancels
    that of a key's bias. Of an output, the same as `scale`."""
    document: int | None = None
    """The document of the output, None for a gradient."""

    @property
    def unclear(self) -> str:
        """Why the difference says nothing, "" if it does say something.

        Either the document alone has NaN; or rounding explains a tenth of the values, because a choice fell the other
        way.
        """
        if not math.isfinite(self.allowed):
            return f"{self.what} is not finite, of the documents alone either"
        if self.allowed > _VACUOUS * self.among:
            return f"{self.what}: rounding changes it as much as a wrong choice: a tie"
        return ""

    @property
    def fails(self) -> bool:
        return not self.unclear and not self.found <= self.allowed


@dataclass(frozen=True)
class Compared:
    """The comparison of a pack with its documents alone."""

    differences: Sequence[Difference]
    """One for each document, and one for each parameter with a gradient."""
    ties: int = 0
    """Near ties that the pack decided differently from its documents alone, and that were fixed to the same choice."""

    @property
    def failing(self) -> Difference | None:
        return next((each for each in self.differences if each.fails), None)

    @property
    def vacuous(self) -> list[str]:
        return [each.unclear for each in self.differences if each.unclear]


@dataclass(frozen=True)
class PackedAndAlone:
    """Compares packs of a module with their documents alone."""

    subject: Subject
    high: Subject
    """The module in the highest precision of all its computations."""
    low: Subject
    """The module in a lower precision."""
    convention: Convention
    seed: int

    @classmethod
    def of(cls, subject: Subject, convention: Convention, seed: int) -> "PackedAndAlone":
        """Find the two precisions. Raises ModuleRefused."""
        return cls(subject, *_precisions(subject, convention, seed), convention, seed)

    def __call__(self, pack: Pack) -> Compared:
        """Compare the pack with its documents alone. Raises ModuleRefused.

        Near ties are aligned only in a second comparison, if the first one fails or is inconclusive: it costs time, and
        few modules choose.
        """
        found = self._compared(pack, alike=False)
        if (found.failing or found.vacuous) and not self.high.mode.compiled:
            again = self._compared(pack, alike=True)
            return again if again.ties or not again.failing else found
        return found

    def _compared(self, pack: Pack, *, alike: bool) -> Compared:
        high, low = self.high, self.low
        units = torch.finfo(high.dtype).eps, torch.finfo(low.dtype).eps
        alone = self._each_alone(high, pack, alike=alike)
        rough = self._each_alone(low, pack, earlier=alone, alike=alike)

        def allowed(number: int, choice: Chosen) -> float:
            mine = rough.choices[number] if number < len(rough.choices) else None
            return _SAFETY * _rounding(choice.scores, mine.scores, *units) if mine and mine.like(choice) else 0.0

        rows = (pack.document != PADDING).nonzero().flatten().cpu()
        choices = TieBreaker(pack.tokens, alone.choices, allowed, rows) if alike else None
        packed = self._run(high, high.pack(pack.lengths, pack.gaps), pack, slice(None), choices)
        outputs = packed.output[rows]
        found, start = [], 0
        for j, length in enumerate(pack.lengths):
            part = slice(start, start := start + length)
            one = alone.output[part]
            apart = _difference(f"document {j}", outputs[part], one, rough.output[part], *units, largest(one))
            found.append(replace(apart, document=j))
        names = [name for name in alone.gradients if name in packed.gradients and name in rough.gradients]
        grads = [(alone.gradients[n], rough.gradients[n]) for n in names]
        among = max((largest(grad) for grad, _ in grads), default=0.0)
        usual = _median([_rounding(grad, other, *units) / (largest(grad) or 1.0) for grad, other in grads])
        for name, (grad, other) in zip(names, grads, strict=True):
            what = f"gradient of {name}"
            found.append(_difference(what, packed.gradients[name], grad, other, *units, among, usual))
        return Compared(found, choices.ties + rough.ties if choices else 0)

    def _run(self, subject: Subject, given: Pack, pack: Pack, rows: slice, choices: TieBreaker | None) -> "_Pass":
        """Outputs, and by parameter the gradients of a random sum of the documents' outputs.

        called_pack: the layout of the call: the whole pack, or one document alone.
        rows: its tokens in the whole pack.
        """
        x = _cast(self.subject.input(pack.tokens, self.seed)[:, rows], subject)
        with torch.enable_grad(), choices or nullcontext():
            out = subject.call(x, self.convention, given)
            if choices:
                choices.forward = False
            weight = _weight((pack.tokens, *out.shape[1:]), self.seed)[rows].to(out)
            mine = given.document != PADDING
            named = {n: p for n, p in subject.module.named_parameters() if p.requires_grad}
            grads: Sequence[Tensor | None] = ()
            if named and out.requires_grad:
                loss = (out[mine] * weight[mine]).sum()
                grads = subject.differentiate(loss, list(named.values()))
        gradients = {n: g for n, g in zip(named, grads, strict=False) if g is not None}
        return _Pass(out.detach(), gradients, choices.made if choices else (), choices.ties if choices else 0)

    def _each_alone(self, subject: Subject, pack: Pack, *, earlier: "_Pass | None" = None, alike: bool) -> "_Pass":
        """The outputs of each document alone, concatenated, and the sums of their gradients.

        reference_pass: the same in another precision; its choices are repeated.
        """
        runs, total, start = list[_Pass](), dict[str, Tensor](), 0
        for j, length in enumerate(pack.lengths):
            mine = slice(start, start := start + length)
            before = [choice and choice.of(mine) for choice in earlier.choices] if earlier else []
            choices = TieBreaker(length, before, lambda *_: float("inf")) if alike else None
            runs.append(self._run(subject, subject.pack((length,)), pack, pack.rows(j), choices))
            for name, grad in runs[-1].gradients.items():
                total[name] = total[name] + grad if name in total else grad
        each = [run.choices for run in runs]
        joined = [Chosen.joined(parts) for parts in zip(*each, strict=False)]
        return _Pass(torch.cat([run.output for run in runs]), total, joined, sum(run.ties for run in runs))


@dataclass(frozen=True)
class _Pass:
    output: Tensor
    gradients: Mapping[str, Tensor]
    choices: Made = ()
    ties: int = 0


class _LessThanFloat64(DispatchMode):
    """Detects any computation in a lower precision than float64."""

    supports_higher_order_operators = True  # such as flex attention
    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            self.seen |= isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
        return out


def _precisions(subject: Subject, convention: Convention, seed: int) -> tuple[Subject, Subject]:
    """The module in the highest precision of all its computations, and in a lower one. Raises ModuleRefused."""
    pairs = ((torch.float64, torch.float32), (torch.float32, torch.bfloat16))
    for high, low in pairs:
        exact = subject.at(high)
        plain, pack = exact.uncompiled(), exact.pack(FIRST)
        try:
            with torch.no_grad(), _LessThanFloat64() as less:  # type: ignore[no-untyped-call]
                plain.call(_cast(subject.input(pack.tokens, seed), plain), convention, pack)
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
    """Compare one tensor of the pack with the same tensor of the documents alone.

    A gradient may be zero because its terms cancel, such as that of a router of one expert whose weights add up to 1.
    The result is then the rounding of terms as large as the largest of all gradients.

    usual_rounding: rounding of tensors of this kind, relative to their largest value; the rounding of a single number
        may be 0 by chance.
    """
    scale = largest(alone)
    allowed = _SAFETY * max(_rounding(alone, rough, unit, rough_unit), usual * scale, unit * among)
    apart = torch.where(packed == alone, 0.0, packed - alone)  # inf - inf is NaN
    return Difference(what, largest(apart), allowed, scale, among)


def _rounding(alone: Tensor, rough: Tensor, unit: float, rough_unit: float) -> float:
    apart = torch.where(alone == rough, 0.0, rough.double() - alone.double())  # inf - inf is NaN
    return max(largest(apart) * unit / rough_unit, unit * largest(alone[alone.isfinite()]))


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def _cast(x: Tensor, subject: Subject) -> Tensor:
    return x.to(subject.dtype) if x.is_floating_point() else x


def _weight(shape: tuple[int, ...], seed: int) -> Tensor:
    """The same numbers in every precision."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
