"""The cases of a cell, in rounds: the small, most telling ones run before the rest of any cell."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from packproof.base.names import SHORT_DTYPES
from packproof.base.stopwatch import span
from packproof.base.tuned import Tuned
from packproof.harness.check.diagnosis.cause import in_dtype
from packproof.harness.report import Tier
from packproof.properties.cases import Case, Domain, Lengths, Space, golden_cases, random_cases
from packproof.properties.laws import PROPERTIES, Property
from packproof.properties.thresholds import Reach, threshold_cases

_SHARED = [law.name for law in PROPERTIES.values() if law.dtype_independent]
_TELLING, _AT_A_TIME = 5, 4  # cases in the first rounds, and in each later round
NO_REACH = Reach()
_CALL = 128  # what a call costs beside its tokens, in tokens


@dataclass
class CaseSelection:
    """The cases of one kernel and dtype, drawn once for each domain and tier; every property selects from them."""

    examples: Mapping[Tier, int]
    """Random cases after the golden ones, by tier."""
    seed: int = 0
    share: tuple[int, int] | None = None
    """(k, n): n dtypes share the cases of dtype-independent properties, one case for each layout. This dtype is the kth
    and judges every nth case, from a start that differs between properties. None: this dtype judges all cases.
    """
    empty_packs: bool = True
    """Whether packs without tokens are drawn for every property, or only for properties whose law names them. A kernel
    that crashes on them is still judged by all other properties.
    """
    reach: Reach = NO_REACH
    """How far cases go past thresholds. One dtype of a kernel has such cases."""
    constants: tuple[int, ...] = ()
    """The integers in the kernel's source."""
    _golden_and_random: dict[tuple[Domain, Tier], tuple[list[Case], list[Case]]] = field(
        default_factory=dict, init=False
    )
    _past_thresholds: dict[tuple[Domain, Tier], list[Case]] = field(default_factory=dict, init=False)
    _configurations: dict[tuple[Domain, Tier], dict[Case, int]] = field(default_factory=dict, init=False)

    def golden(self, space: Space, tier: Tier) -> frozenset[Case]:
        """The golden cases."""
        return frozenset(self._draw(space, tier)[0])

    def rounds(self, law: Property, space: Space, tier: Tier) -> list[list[Case]]:
        """The cases of a property."""
        golden_list, random_list = self._draw(space, tier)
        suited = law.suited(space, [*golden_list, *random_list])
        cases: Sequence[Case] = [case for case in suited if case.n_tokens or self.draws_empty_packs(law)]
        if self.share and law.dtype_independent:
            cases = share_of_dtype(law, cases, *self.share, by_keys=space.frees_keys)
        past_thresholds = self.past_thresholds(space, tier) if law.crosses_thresholds else []
        return [*rounds(cases, frozenset(golden_list), space), *([case] for case in past_thresholds)]

    def past_thresholds(self, space: Space, tier: Tier) -> list[Case]:
        """The cases past thresholds, small ones first."""
        key = space.domain, tier
        if key not in self._past_thresholds:
            drawn_cases = [case for cases in self._draw(space, tier) for case in cases]
            self._past_thresholds[key] = threshold_cases(
                space, self.constants, self.reach, drawn_cases, seed=self.seed, interpreted=tier == "interpret"
            )
        return self._past_thresholds[key]

    def configuration(self, case: Case, space: Space, tier: Tier, default: int) -> int:
        """The configuration number of autotuned kernels in this case."""
        key = space.domain, tier
        if key not in self._configurations:
            self._configurations[key] = configuration_numbers(*self._draw(space, tier), space)
        return self._configurations[key].get(case, default)

    def draws_empty_packs(self, law: Property) -> bool:
        """Whether packs without tokens are cases of a property."""
        return self.empty_packs or law.judges_empty_packs

    def _draw(self, space: Space, tier: Tier) -> tuple[list[Case], list[Case]]:
        """The golden and the random cases."""
        key = space.domain, tier
        if key not in self._golden_and_random:
            with span("draw"):
                golden = list(golden_cases(space, self.seed))
                self._golden_and_random[key] = golden, random_cases(space, self.examples.get(tier, 0), self.seed)
        return self._golden_and_random[key]


@dataclass
class CellProgress:
    """The cases of one cell: judged ones and the rounds to come."""

    restrictions: Domain
    """The conditions of the cases, beside the declared domain."""
    tier: Tier
    """The tier they were drawn for."""
    space: Space
    """The supported part of the case space."""
    golden: frozenset[Case]
    """The golden cases in it."""
    rounds: list[list[Case]]
    """Rounds to come. Those of cases past thresholds are the last, in order of size."""
    started_cases: list[Case]
    """Cases of earlier rounds."""
    planned: int
    """Number of cases in all."""
    configured: frozenset[Case] = frozenset()
    """The cases that have a configuration of autotuned kernels already."""
    reported: float = -math.inf
    """Time of the last progress event."""

    @property
    def remaining(self) -> Iterator[Case]:
        return chain.from_iterable(self.rounds)

    def add_configurations(self, tuned: Sequence[Tuned]) -> None:
        """A round for each configuration of these kernels: the most telling cases once more."""
        numbers = range(max((kernel.declared for kernel in tuned), default=0))
        telling = self.started_cases[:_TELLING]
        self.rounds = [[case.replace(configuration=number) for case in telling] for number in numbers]
        self.configured = frozenset(self.remaining)
        self.planned += len(self.configured)


def suited_case(law: Property, case: Case, space: Space) -> Case | None:
    """A failing case of another property or dtype, as one of this property in this space.

    None where it is none of its cases, or if each case costs a compilation.
    """
    same_call = None if law.shares == "nothing" else in_dtype(case, space)
    suited = [] if same_call is None else law.suited(space, [same_call])
    return next((candidate for candidate in suited if candidate.lengths == case.lengths), None)


def rounds(cases: Sequence[Case], golden: Collection[Case], space: Space) -> list[list[Case]]:
    """Order the cases in rounds: (1) one sequence alone; (2) the golden cases that cover the most boundary classes per
    cost; (3) the rest, four at a time.

    One sequence comes first because code compiled for it may be reused for packs. If no case is golden, the first cases
    take their place. If there are only a few cases, each costs seconds (as with torch.compile), and they wait for the
    golden cases of other properties.
    """
    layouts: dict[Lengths, Case] = {}  # each with its first case; the others keep their order, to meet stale caches
    for case in cases:
        if case.n_tokens and case in golden:
            layouts.setdefault(case.lengths, case)
    telling = _telling_cases([*layouts.values()] or cases[:_TELLING], space)
    first_cases, later_cases = telling[:_TELLING], [*telling[_TELLING:], *_without(telling, cases)]
    n_idle = _TELLING + len(golden) // _AT_A_TIME if len(cases) <= _TELLING else 0
    later_rounds = (later_cases[k : k + _AT_A_TIME] for k in range(0, len(later_cases), _AT_A_TIME))
    return [*([] for _ in range(n_idle)), first_cases[:2], *([case] for case in first_cases[2:]), *later_rounds]


def configuration_numbers(golden: Sequence[Case], random: Sequence[Case], space: Space) -> dict[Case, int]:
    """The configuration number of autotuned kernels in each case: its index in judging order plus that of its dtype.

    So the cells of a kernel share runs, and together take every configuration.
    """
    ordered = chain.from_iterable(rounds([*golden, *random], golden, space))
    return {case: index + list(SHORT_DTYPES).index(case.dtype) for index, case in enumerate(ordered)}


def _telling_cases(cases: Sequence[Case], space: Space) -> list[Case]:
    """A few cases that cover every class of all the cases: one sequence alone, then the most new classes per cost."""
    candidates = {case: space.boundary_classes(case) for case in cases}
    telling = [case for case in cases if len(case.lengths) == 1][:1]
    covered = frozenset[str]().union(*map(candidates.pop, telling))
    while candidates:
        best = max(candidates, key=lambda case: len(candidates[case] - covered) / _cost(case))
        if len(telling) >= _TELLING and candidates[best] <= covered:
            break
        telling.append(best)
        covered |= candidates.pop(best)
    return telling


def _without(removed: Sequence[Case], cases: Sequence[Case]) -> list[Case]:
    remaining = list(cases)
    for case in removed:
        remaining.remove(case)
    return remaining


def _cost(case: Case) -> int:
    return _CALL + case.n_tokens + sum(case.key_lengths or ()) + case.slack + len(case.lengths)


def share_of_dtype(
    law: Property, cases: Sequence[Case], dtype: int, dtypes: int, *, by_keys: bool = False
) -> list[Case]:
    """The share of one of several dtypes: one case of each of its layouts, selected by the index of the property.

    If fewer layouts have a boundary than there are dtypes, several dtypes get the same one.

    by_keys: a layout is that of the keys; the tokens of a decode kernel have few.
    """
    law_index = _SHARED.index(law.name) if law.name in _SHARED else len(_SHARED)
    layouts: dict[Lengths, list[Case]] = {}
    for case in cases:
        lengths = case.key_lengths if by_keys else None
        layouts.setdefault(lengths or case.lengths, []).append(case)
    representatives = [of_layout[law_index % len(of_layout)] for of_layout in layouts.values()]
    share = representatives[(dtype + law_index) % dtypes :: dtypes]
    if not any(case.has_boundary for case in share):
        share += [case for case in representatives if case.has_boundary][:1]
    return share
