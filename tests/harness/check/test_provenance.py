"""Who computed: traced, repeated with the kernel's own launches idle, and restricted to them."""

from pathlib import Path

import pytest

from packproof.base.names import PROVENANCE
from packproof.base.provenance.computed import Computed, computed_text
from packproof.harness.check.check import run_check
from packproof.harness.check.replay import replay
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.events import RunFinished, Verdict
from tests.harness.check.traced_checks import KERNELS, computed_of, traced
from tests.sweeps import sweep

pytest.importorskip("triton")


def verdicts(kernel: str, *, only_own_kernels: bool = False) -> tuple[Verdict, ...]:
    return traced(f"{KERNELS}:{kernel}", only_own_kernels=only_own_kernels)


def finding(kernel: str, *, only_own_kernels: bool = False) -> str:
    """The text of the finding; "" if there is none. The property itself always passes."""
    *findings, reference = verdicts(kernel, only_own_kernels=only_own_kernels)
    assert (reference.cell.property, reference.status) == ("reference", "passed")
    assert all(v.cell.property == PROVENANCE and v.status == "failed" for v in findings)
    return "\n".join(line for v in findings if v.failure for line in v.failure.lines)


def computed(kernel: str) -> set[tuple[str, str, str, bool]]:
    return computed_of(verdicts(kernel))


@sweep(
    "kernel",
    ["own_kernels", "torch_backward", "tuned", "reused_workspace", "launch_for_slack_alone"],
    ["in_torch", "in_numpy", "in_a_registered_operator", "calls_a_library", "calls_the_reference"],
)
def test_what_computes_is_no_failure_by_itself(kernel: str) -> None:
    assert finding(kernel) == ""


def test_a_launch_that_does_nothing_is_a_failure() -> None:
    text = finding("idle_launch")
    assert f"its own launches do not make its output: without {KERNELS}._idle_kernel it is the same" in text
    assert "computed by torch aten::mul" in text
    assert {v.tier for v in verdicts("idle_launch")} == {"eager"}


def test_the_tier_is_that_of_what_made_the_output() -> None:
    assert {v.tier for v in verdicts("in_torch")} == {"eager"}
    assert {v.tier for v in verdicts("own_kernels")} == {"interpret"}


def test_launches_are_named_by_pass() -> None:
    assert computed("own_kernels") == {
        ("triton", "_product_kernel", "forward", True),
        ("triton", "_product_kernel", "backward", True),
        ("triton", "_sum_kernel", "backward", True),
    }
    assert computed("torch_backward") == {
        ("triton", "_product_kernel", "forward", True),
        ("torch", "aten::mul", "backward", False),
        ("torch", "aten::sum", "backward", False),
    }


def test_an_operator_is_named_with_its_line() -> None:
    lines = Path(__file__).with_name("provenance_kernels.py").read_text().splitlines()
    [number] = [n for n, line in enumerate(lines, start=1) if "return dy * weight, (dy * x).sum(0)" in line]
    [item] = [c for c in verdicts("torch_backward")[-1].computed if c.name == "aten::sum"]
    assert item == Computed("torch", "aten::sum", "backward", False, f"provenance_kernels.py:{number}")


def test_autograd_of_torch_is_named_by_its_node() -> None:
    [item] = [c for c in verdicts("in_torch")[-1].computed if c.name == "aten::sum"]
    assert item.line.startswith("autograd's ")


def test_the_reference_of_an_op_is_named() -> None:
    assert ("reference", "product", "forward", False) in computed("calls_the_reference")


def test_what_a_registered_operator_calls_is_seen() -> None:
    assert ("torch", "aten::mul", "forward", False) in computed("in_a_registered_operator")


def test_an_operator_that_launches_kernels_is_those() -> None:
    assert computed("registered_launches") == computed("own_kernels")


def test_launches_of_a_library_are_not_the_kernels_own() -> None:
    assert ("triton", "_causal_conv1d_fwd_kernel", "forward", False) in computed("calls_a_library")


def test_a_pass_in_which_nothing_is_seen_says_so() -> None:
    assert {(c.kind, c.during) for c in verdicts("in_memory")[-1].computed} == {
        ("nothing", "forward"),
        ("nothing", "backward"),
    }
    assert computed_text(verdicts("in_memory")[-1].computed) == "nothing that packproof sees (forward and backward)"


@pytest.mark.proof
def test_own_kernels_alone_pass() -> None:
    assert finding("own_kernels", only_own_kernels=True) == ""


@sweep(
    "kernel, text",
    [
        ("launch_for_slack_alone", "torch aten::mul at provenance_kernels.py:"),
        ("calls_the_reference", "reference tests.harness.check.product_reference.product at provenance_kernels.py:"),
        ("calls_a_library", "triton packproof.kernels.causal_conv1d_fwd._causal_conv1d_fwd_kernel at provenance_kern"),
        ("numpy_backward", "outside Tensor.numpy at provenance_kernels.py:"),
        ("in_memory", "but it launches none"),
        ("memory_backward", "but without them its gradient of x and gradient of weight is the same"),
    ],
    [
        ("torch_backward", "torch aten::mul at provenance_kernels.py:"),
        ("in_torch", "torch aten::mul at provenance_kernels.py:"),
        ("in_a_registered_operator", "torch aten::mul at provenance_kernels.py:"),
        ("in_numpy", "outside Tensor.numpy at provenance_kernels.py:"),
    ],
)
def test_with_only_own_kernels_all_else_fails(kernel: str, text: str) -> None:
    assert text in finding(kernel, only_own_kernels=True)


@sweep("only_own_kernels", [True], [False])
def test_a_finding_is_replayed(tmp_path: Path, *, only_own_kernels: bool) -> None:
    request = CheckRequest(
        f"{KERNELS}:idle_launch",
        op=f"{KERNELS}:PRODUCT",
        dtypes=("float32",),
        properties=("reference",),
        profile="quick",
        only_own_kernels=only_own_kernels,
        replay_dir=str(tmp_path),
    )
    end = [event for event in run_check(request) if isinstance(event, RunFinished)][-1]
    [failure] = [v.failure for v in end.verdicts if v.failure]
    outcome = replay(failure.replay)
    assert outcome.status == "failing", outcome.text
    assert failure.lines[1] in outcome.text
    assert outcome.verdict.tier == "eager"
