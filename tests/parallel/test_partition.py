"""The property `partition`: what it detects, at which cut, and what it passes."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from packproof import refs
from packproof.base.errors import KernelFault, UsageError, copy_signature_of
from packproof.bench.ranks import ours
from packproof.harness.check.request import Allowance
from packproof.harness.check.shrink import shrink
from packproof.harness.process.execution.execute import InProcess
from packproof.parallel import ContiguousShares, simulated
from packproof.parallel.ranks import Ranks
from packproof.properties.calling.call import Refusal
from packproof.properties.cases.case import Case
from packproof.properties.cases.random_cases import random_cases
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.declaration import describe_kernel
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.comparison import record_comparisons
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.partition import PARTITION, spans_of_ranks, with_cuts
from packproof.properties.ops.catalogue import OPS
from tests.parallel.own import BUGS, own
from tests.sweeps import sweep

MINIMAL: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "halo from the wrong side": ((2,), (1,)),
    "halo across a boundary on the cut": ((1, 1), (1,)),
    "weight gradients not reduced": ((1,), (0,)),
    "integer division of cu_seqlens": ((1,), (0,)),
    "state not reset": ((1, 1), (1,)),
    "state reset on every rank": ((2,), (1,)),
    "decay of the rank missing": ((3,), (1, 2)),
    "gradient from later ranks on the last rank only": ((2,), (1,)),
    "empty rank skipped": ((2,), (1, 1)),
    "final state from the wrong rank": ((1,), (0,)),
    "positions that restart": ((2,), (1,)),
    "keys of another rank": ((1, 1), (1,)),
    "keys of the rank before only": ((2,), (1, 1)),
    "queries that restart": ((2,), (1,)),
    "gradients of keys not summed": ((2,), (1,)),
    "gradients of keys to the wrong rank": ((1,), (0,)),
}


OWN = ("causal_conv1d", "selective_scan", "rope", "attention")


class Subject:
    """A kernel of an op, and the cases that it is judged at."""

    def __init__(self, op: str, function: Callable[..., Any], promises: Promises, dtype: str = "float32") -> None:
        names = describe_kernel(function)["parameters"]
        declared = OPS[ours.ZIGZAG.get(op, op)]
        self.space = Space(declared, dtype, promises, None if names is None else frozenset(names))
        self.kernel = KernelUnderTest(declared, InProcess(function), promises, takes_cuts=self.space.takes_cuts)
        self.golden = PARTITION.suited(self.space, list(golden_cases(self.space)))

    def found(self, case: Case) -> list[str]:
        """What a report says of the first violation."""
        violation = first_violation(self.kernel, PARTITION, case)
        return [] if violation is None else violation.lines()

    def fails(self, case: Case) -> bool:
        return bool(self.found(case))

    def failing(self) -> list[Case]:
        return list(filter(self.fails, self.golden))


@sweep("bug", [*BUGS][::2], [*BUGS])
def test_a_planted_bug_is_detected_at_its_minimal_cut(bug: str) -> None:
    subject = Subject(BUGS[bug], own(BUGS[bug], bug), Promises())
    first = next(filter(subject.fails, subject.golden))
    found, _ = shrink(first, subject.space, subject.fails, Allowance(300, 20))
    assert (found.lengths, found.cuts) == MINIMAL[bug]


@pytest.mark.parametrize("op", OWN)
def test_the_same_implementations_without_a_bug_pass(op: str) -> None:
    assert Subject(op, own(op), Promises()).failing() == []


@sweep("op", [*ours.OPS][::3], [*ours.OPS])
def test_the_ops_of_packproof_pass_and_keep_the_bits_of_whole_documents(op: str) -> None:
    assert Subject(op, ours.parallel_kernel(op), Promises()).failing() == []
    if op == "attention, zig-zag":
        return  # it cuts documents that the law takes for whole
    subject = Subject(op, ours.parallel_kernel(op), Promises(grid="sequence", chunk=16))
    if op == "attention":  # how many keys a product has, and so its bits, changes at every cut
        subject.kernel = replace(subject.kernel, promises=Promises(grid="sequence", chunk=1 << 20))
    with record_comparisons() as made:
        assert not any(map(subject.fails, map(ours.without_activations, subject.golden)))
    assert any(compared.allowed is None for compared in made)


@pytest.mark.proof
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("which", [*(f"own {op}" for op in OWN), *ours.OPS])
def test_fifty_random_layouts_and_cuts_pass(which: str, dtype: str) -> None:
    op = which.removeprefix("own ")
    subject = Subject(op, own(op) if which != op else ours.parallel_kernel(op), Promises(), dtype)
    drawn = with_cuts(subject.space, random_cases(subject.space, 100, seed=1))
    cases = list({(case.lengths, case.cuts): case for case in drawn}.values())[-50:]
    assert len(cases) == 50
    assert list(filter(subject.fails, cases)) == []


def _restarting(x: Any, cos: Any, sin: Any, *, offsets: Any = None, **call: Any) -> Any:
    return refs.rope(x, cos, sin, **call)


@copy_signature_of(refs.ssd)
def _forgets(initial_states: Any, **others: Any) -> Any:
    return refs.ssd(initial_states=None if initial_states is None else 0 * initial_states, **others)


@pytest.mark.parametrize(("op", "function"), [("rope", _restarting), ("ssd", _forgets)])
def test_the_law_itself_cuts_what_has_states_or_positions(op: str, function: Any) -> None:
    assert Subject(op, getattr(refs, op), Promises()).failing() == []
    assert any(map((leaking := Subject(op, function, Promises())).fails, leaking.golden))


def test_a_document_that_no_cut_meets_is_compared_bit_for_bit() -> None:
    subject = Subject("selective_scan", refs.selective_scan, Promises(grid="sequence", state_entry="carry"))
    [case] = [c for c in subject.golden if c.lengths == (5, 3)]
    with record_comparisons() as made:
        assert not subject.fails(case.replace(cuts=(4,)))
    bitwise = {(c.key.name, c.key.kind, c.start) for c in made if c.allowed is None}
    assert ("u", "gradient", 5) in bitwise
    assert ("u", "gradient", 0) not in bitwise
    assert ("y", "output", 0) in bitwise  # a carry, and a segment of one token
    folded = Subject("selective_scan", refs.selective_scan, Promises(grid="sequence", chunk=4))
    with record_comparisons() as made:
        assert not folded.fails(case.replace(cuts=(3,)))
    assert {(c.start, c.allowed is None) for c in made if c.key.name == "y"} == {(0, False), (5, True)}


def _lengths_of_all(x: Tensor, group: Any) -> list[int]:
    counts = [torch.empty(1, dtype=torch.long) for _ in range(group.size())]
    dist.all_gather(counts, torch.tensor([len(x)]), group=group)
    return torch.cat(counts).tolist()


def _checks_late(group: Any, *, x: Tensor, weight: Tensor, cu_seqlens: Tensor, cuts: Any) -> Tensor:
    if len(set(_lengths_of_all(x, group))) > 1:
        raise ValueError("the ranks have lengths that are not supported")
    return x


def _computes_first(group: Any, *, x: Tensor, weight: Tensor, cu_seqlens: Tensor, cuts: Any) -> Tensor:
    y = x + weight.sum()
    if group.rank():
        raise ValueError("lengths are not supported")
    return y


def _of_contradictory_arguments(group: Any, *, x: Tensor, weight: Tensor, cu_seqlens: Tensor, cuts: Any) -> Tensor:
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens[:1] + torch.tensor([int(group.rank() > 0), len(x)]))


def _declines_at_once(group: Any, *, x: Tensor, weight: Tensor, cu_seqlens: Tensor, cuts: Any) -> Tensor:
    if group.rank() == 1:  # the rank before has computed then, this one has not
        raise ValueError("a second rank is not supported")
    return x * weight.sum()


@pytest.mark.parametrize(
    ("run", "refuses"),
    [
        (_checks_late, False),
        (_computes_first, False),
        (_of_contradictory_arguments, False),
        (_declines_at_once, True),
    ],
)
def test_a_rank_declines_a_call_only_before_it_has_computed_or_talked_to_another(run: Any, refuses: bool) -> None:
    def conv(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        raise AssertionError("what the kernel is called with")

    subject = Subject("causal_conv1d", simulated(ContiguousShares("causal_conv1d", run), conv), Promises())
    case = Case((2, 3), "float32", (("d", 3), ("w", 4)), cuts=(3,))
    with pytest.raises(Refusal if refuses else KernelFault):
        list(PARTITION.check(subject.kernel.values_only, case))
    assert Ranks.watch is None


def test_an_op_without_states_or_positions_is_not_judged() -> None:
    space = Space(OPS["attention"], "float32", Promises())
    assert PARTITION.suited(space, list(golden_cases(space))) == []
    assert "no state" in PARTITION.skip_reason(space)
    only = replace(space, op=OPS["rope"], parameters=frozenset({"x", "cos", "sin", "cu_seqlens"}))
    assert PARTITION.skip_reason(only) == "the kernel does not take offsets"


def test_golden_cuts_are_of_every_kind() -> None:
    kinds = set()
    for case in Subject("selective_scan", refs.selective_scan, Promises(chunk=16)).golden:
        assert case.cuts is not None
        ends = torch.tensor(case.lengths).cumsum(0).tolist()
        ranks = [b - a for a, b in zip((0, *case.cuts), (*case.cuts, case.n_tokens), strict=True)]
        kinds |= {"no token" if n == 0 else "one token" if n == 1 else "more" for n in ranks}
        kinds |= {"boundary on it" for c in case.cuts if c in ends}
        kinds |= {"boundary before it" for c in case.cuts if c - 1 in ends}
        kinds |= {"boundary after it" for c in case.cuts if c + 1 in ends}
        kinds |= {"odd" for c in case.cuts if c % 2}
        spans = spans_of_ranks(case.lengths, case.cuts)
        seen = [j for rank in spans for j, a, b in rank if b > a]
        kinds |= {"more than two ranks" for j in seen if seen.count(j) > 2}
    assert kinds == {
        *("no token", "one token", "more", "odd", "more than two ranks"),
        *("boundary on it", "boundary before it", "boundary after it"),
    }


def test_the_spans_of_ranks_hold_every_token_and_every_sequence_once() -> None:
    assert spans_of_ranks((3, 0, 2), (1, 1, 4)) == [[(0, 0, 1)], [(0, 1, 3), (1, 0, 0), (2, 0, 1)], [(2, 1, 2)]]
    assert spans_of_ranks((0, 2, 0), (2,)) == [[(0, 0, 0), (1, 0, 2), (2, 0, 0)]]


def test_cuts_are_data() -> None:
    case = Case(lengths=(3, 2), dtype="float32", sizes=(("d", 3),), cuts=(0, 4))
    data = json.loads(json.dumps(case.to_json()))
    assert Case.from_json(data) == case
    assert "cut at [0, 4]" in str(case)
    assert "cuts" not in case.replace(cuts=None).to_json()
    for wrong in ([4, 0], [6], [-1], "4", [1.0]):
        with pytest.raises(UsageError, match="case: cuts"):
            Case.from_json({**data, "cuts": wrong})
