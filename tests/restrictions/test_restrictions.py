"""Restricted kernels are judged in their domain, declared or found, and leaks are detected there.

One restriction in three runs with one op in one way, and an op with several at once; `make proof` has every
restriction with every op that it suits.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch

from packproof import refs
from packproof.base.errors import LayoutError
from packproof.cli import ending, main
from packproof.harness.check.cell import Evaluator
from packproof.harness.check.failure import ReplayInfo
from packproof.harness.check.rounds import CaseSelection
from packproof.harness.check.shrink import Allowance
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.process.naming.location import Location
from packproof.harness.report.events import Cell, CellFinished, Verdict
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.space import Space
from packproof.properties.declarations.declaration import Declaration, describe_kernel
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.catalogue import PROPERTIES as LAWS
from packproof.properties.ops.catalogue import OPS
from tests.restrictions.restricted import RESTRICTIONS, SEVERAL, WAYS, declared, restricted, values_only

pytestmark = pytest.mark.usefixtures("working_folder")
PROPERTIES = ("reference", "strides")
CHEAPEST = ("rope", "causal_conv1d")  # the budgets of the others take ten times as long, conditions are the same
OPS_TAKEN = [pytest.param(op, marks=[] if op in CHEAPEST else [pytest.mark.proof]) for op in SEVERAL]


def combinations() -> Iterator[Any]:
    """Restrictions, an op that they suit, and a way to refuse; the ways take turns."""
    ways = cycle(WAYS)
    for number, (name, restriction) in enumerate(RESTRICTIONS.items()):
        first = next((op for op in CHEAPEST if op in restriction.conditions), "")  # none for an input of ssd alone
        for op in sorted(restriction.conditions, key=lambda op: op != first):
            marks = [] if op == first and number % 3 == 0 else [pytest.mark.proof]
            yield pytest.param((name,), op, next(ways), marks=marks, id=f"{name}-{op}")
    for op, names in SEVERAL.items():
        marks = [] if op in CHEAPEST else [pytest.mark.proof]
        yield pytest.param(names, op, next(ways), marks=marks, id=f"{'+'.join(names)}-{op}")


def judged(
    kernel: Any, op: str, domain: Sequence[str] = (), *, properties: Sequence[str] = PROPERTIES, dtype: str = "bfloat16"
) -> dict[str, Verdict]:
    """The verdicts of a kernel, in this process."""
    names = describe_kernel(kernel)["parameters"]
    stated = Declaration(parameters=names).restricted_to(Domain.of(domain))
    space = Space(OPS[op], dtype, stated.promises, names, domain=stated.domain)
    subject = KernelUnderTest(
        OPS[op], InProcess(kernel), stated.promises, gradients=stated.gradients, domain=stated.domain
    )
    evaluator = Evaluator(subject, CaseSelection({}), Allowance(20, 5), ReplayInfo(), "eager")
    found = {}
    for name in properties:
        for event in evaluator.run_cell(Cell(op, "restricted", name, dtype, "cpu"), LAWS[name], space):
            if isinstance(event, CellFinished):
                found[name] = event.verdict
    return found


@pytest.mark.parametrize(("names", "op", "way"), [*combinations()])
def test_a_correct_kernel_passes_in_its_domain_and_a_leaking_one_is_detected(
    names: tuple[str, ...], op: str, way: str
) -> None:
    domain = declared(op, names)
    with_declaration = judged(restricted(op, names, way, leaking=False), op, domain)
    by_itself = judged(restricted(op, names, way, leaking=False), op)
    for verdicts in (with_declaration, by_itself):
        for name, verdict in verdicts.items():
            strided = name == "strides" and "contiguous" in names
            assert verdict.status in ("passed", *(["skipped"] if strided else [])), (name, verdict)
            assert verdict.refused == 0
            assert verdict.missing == ()
    if "contiguous" in names:
        assert with_declaration.pop("strides").reason == "no example in the kernel's domain suits it: contiguous"
        assert "contiguous" in by_itself["strides"].limits[0].text
    for name, verdict in with_declaration.items():
        assert verdict.limits == ()
        assert by_itself[name].classes == verdict.classes, "a boundary class that the domain allows was lost"
    assert_sound(op, by_itself["reference"].domain, domain)
    for stated in (domain, ()) if len(names) > 1 else ((),):
        leaking = judged(restricted(op, names, way, leaking=True), op, stated, properties=("packing",))
        assert leaking["packing"].status == "failed"
        assert leaking["packing"].failure is not None
        assert leaking["packing"].failure.tensor, "a leak is a wrong value and not a fault"


def assert_sound(op: str, found: Sequence[str], wanted: Sequence[str]) -> None:
    """Every case that is drawn from the domain found is in the kernel's actual domain."""
    space = Space(OPS[op], "bfloat16", Promises(), domain=Domain.of(found))
    whole = Domain.of([text for text in wanted if text not in ("contiguous", "not gradients")])
    assert all(whole.holds({**dict(sizes), "dtype": "bfloat16"}) for sizes in space.plain_sizes if _of_sizes(whole, op))


def _of_sizes(domain: Domain, op: str) -> bool:
    return all(c.names <= set(OPS[op].sizes[0]) for c in domain.conditions)


@pytest.mark.parametrize("op", OPS_TAKEN)
def test_values_are_judged_where_gradients_are_refused(op: str) -> None:
    verdicts = judged(values_only(op, leaking=False), op)
    assert {v.status for v in verdicts.values()} == {"passed"}
    assert all(
        "gradients: refused (in the backward pass: RuntimeError: backward is not supported" in v.reason
        for v in verdicts.values()
    )
    leaking = judged(values_only(op, leaking=True), op, properties=("packing",))["packing"]
    assert leaking.status == "failed"
    assert leaking.failure is not None
    assert leaking.failure.tensor == "y"


def test_where_gradients_are_refused_what_has_nothing_to_compare_is_no_refusal() -> None:
    """A kernel that is no operator, or has no second derivative: there the values were asked for, and given."""
    verdicts = judged(
        values_only("causal_conv1d", leaking=False),
        "causal_conv1d",
        properties=("isolation", "opcheck", "double_backward"),
        dtype="float32",
    )
    isolation, opcheck, twice = verdicts.values()
    assert (isolation.status, isolation.missing, isolation.refused) == ("passed", (), 0)
    assert isolation.judged == isolation.examples
    assert (opcheck.status, opcheck.reason) == ("skipped", LAWS["opcheck"].nothing_to_compare)
    assert (twice.status, twice.reason) == ("skipped", LAWS["double_backward"].nothing_to_compare)


def test_a_kernel_in_a_folder_called_like_a_library_declines_calls_too(tmp_path: Path) -> None:
    """Such as mamba_ssm/ops/triton: its assertions are its own."""
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "mine.py").write_text(
        "from packproof.refs import rope\n"
        "def even(x, cos, sin, *, cu_seqlens, interleaved=False):\n"
        "    assert x.shape[1] % 2 == 0\n"
        "    return rope(x, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved)\n"
    )
    verdict = judged(Location.parse("triton/mine.py:even").load(), "rope", properties=("reference",))["reference"]
    assert (verdict.status, verdict.domain) == ("passed", ("h % 2 == 0",))
    assert "(mine.py:3)" in verdict.limits[0].text


@pytest.mark.parametrize("way", WAYS)
def test_a_kernel_that_refuses_everything_is_inconclusive(way: str) -> None:
    def nothing(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
        errors: dict[str, Exception] = {
            "NotImplementedError": NotImplementedError("not here"),
            "ValueError": ValueError("shape not supported"),
            "RuntimeError": RuntimeError("head_dim must be divisible by 8"),
        }
        assert way in errors, f"{x.shape[0]} tokens"
        raise errors[way]

    for verdict in judged(nothing, "causal_conv1d").values():
        assert (verdict.status, verdict.judged) == ("inconclusive", 0)
        assert verdict.reason.startswith("the kernel refused every call: ")


def test_one_token_alone_is_inconclusive_for_packs() -> None:
    calls: list[str] = []
    inner = restricted("causal_conv1d", (), "assert", leaking=True, calls=calls)

    def decode(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
        if len(x) != 1:
            raise ValueError("decodes one token")
        return inner(x=x, weight=weight, cu_seqlens=cu_seqlens)

    for verdict in judged(decode, "causal_conv1d", properties=("reference", "packing")).values():
        assert verdict.status == "inconclusive"
        assert verdict.missing == ("a boundary between two sequences",)
    assert calls


def test_judged_counts_calls_and_comparisons() -> None:
    """One call for each case that is judged, and none is counted without a call."""
    calls: list[str] = []
    names = ("channels",)
    kernel = restricted("rope", names, "ValueError", leaking=False, calls=calls)
    [verdict] = judged(kernel, "rope", declared("rope", names), properties=("reference",)).values()
    assert len(calls) - 1 == verdict.judged == verdict.examples  # one more call shows who computed
    calls.clear()
    [verdict] = judged(kernel, "rope", declared("rope", names), properties=("permutation",)).values()
    assert verdict.judged < verdict.examples  # a single sequence cannot be reordered
    assert len(calls) >= 2 * verdict.judged


def late(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
    y = x * weight[:, 0]
    raise ValueError(f"head_dim {y.shape[1]} is not supported")


def inconsistent(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
    inconsistent.calls += 1
    raise ValueError(f"shape refused for the {'abcdefgh'[inconsistent.calls % 8]}th time")


inconsistent.calls = 0


def mismatched(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
    return x @ weight


def offsets_from_one(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens + (cu_seqlens.shape[0] > 2))


def states_of_all_but_one(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
    states = x.new_zeros(max(len(cu_seqlens) - 2, 1), x.shape[1], weight.shape[1] - 1)
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens, initial_states=states)


class WrongOffsetsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, cu_seqlens: Any) -> Any:
        ctx.save_for_backward(weight, cu_seqlens)
        return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        weight, cu_seqlens = ctx.saved_tensors
        refs.causal_conv1d(dy, weight, cu_seqlens=cu_seqlens + 1)
        return dy, weight, None


def wrong_offsets_in_backward(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
    return WrongOffsetsInBackward.apply(x, weight, cu_seqlens)


@pytest.mark.parametrize("kernel", [offsets_from_one, states_of_all_but_one, wrong_offsets_in_backward])
def test_a_call_that_the_kernel_itself_makes_of_contradictory_arguments_is_no_refusal(kernel: Any) -> None:
    verdict = judged(kernel, "causal_conv1d", properties=("packing",))["packing"]
    assert verdict.status == "failed"
    assert verdict.failure is not None
    shown = "\n".join(verdict.failure.lines)
    assert "(test_restrictions.py:" in shown
    assert "the kernel's own code made this call, of arguments that contradict each other" in shown


@pytest.mark.proof
def test_what_a_function_of_packproof_does_not_support_is_a_refusal() -> None:
    """Arguments that agree, of which one is of no form that the function takes."""

    def silu_alone(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
        refs.hadamard(x[:, None], cu_seqlens=cu_seqlens)  # takes powers of two
        return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)

    def own_words(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
        if cu_seqlens.shape[0] > 2:
            raise LayoutError("one sequence at a time is supported")
        return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)

    for kernel in (silu_alone, own_words):
        verdict = judged(kernel, "causal_conv1d", properties=("packing",))["packing"]
        assert verdict.status != "failed"
        assert verdict.limits


@pytest.mark.parametrize("kernel", [late, inconsistent, mismatched])
def test_an_error_that_is_not_a_refusal_fails(kernel: Any) -> None:
    verdict = judged(kernel, "causal_conv1d", properties=("packing",))["packing"]
    assert verdict.status == "failed"
    assert verdict.failure is not None
    assert verdict.failure.tensor == ""


@pytest.mark.proof
def test_the_command_line_reports_what_a_kernel_does_not_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(
        "from tests.restrictions.restricted import restricted\n"
        "conv = restricted('causal_conv1d', ('no empty', 'channels'), 'ValueError', leaking=False)\n"
        "def nothing(x, weight, *, cu_seqlens):\n"
        "    raise NotImplementedError\n"
    )
    request = [
        "--op",
        "causal_conv1d",
        "--dtype",
        "fp32",
        "--property",
        "packing",
        "--profile",
        "quick",
        "--device",
        "cpu",
    ]
    assert main.run(["check", "mine.py:conv", *request]) == ending.SUCCESS
    shown = capsys.readouterr().out
    assert "checked within domain=['d % 8 == 0', 'length > 0'], inferred from the calls that it refuses" in shown
    assert "it does not take inputs that any data loader produces: an empty sequence" in shown
    assert "a sequence has the same bits alone and in a pack: " in shown
    assert main.run(["check", "mine.py:conv", *request, "--domain", "d % 8 == 0; length > 0"]) == ending.SUCCESS
    assert "limits found" not in capsys.readouterr().out
    assert main.run(["check", "mine.py:nothing", *request]) == ending.INCONCLUSIVE
    assert main.run(["check", "mine.py:conv", *request, "--domain", "dd % 8 == 0"]) == ending.WRONG_CALL
    assert "domain has 'dd' in 'dd % 8 == 0', which a call of causal_conv1d does not have" in capsys.readouterr().err
