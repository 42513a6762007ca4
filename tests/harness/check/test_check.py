"""The check end to end on kernels that misbehave: each fails with a plain message, and the run goes on."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import packproof
from packproof import refs
from packproof.base.errors import UsageError
from packproof.cli import main
from packproof.harness.check import unit as engine_unit
from packproof.harness.check.check import run_check
from packproof.harness.check.partition import Unit
from packproof.harness.check.plan import Plan, plan
from packproof.harness.check.request import CheckRequest
from packproof.harness.check.schedule import run_plan
from packproof.harness.check.targets.target import INSTANCE_PROPERTIES, open_target, open_targets
from packproof.harness.process.sharing import CoreTime
from packproof.harness.report.events import Cell, CellFinished, CellStarted, Event, RunFinished, RunStarted, Verdict
from packproof.harness.report.failed import CheckFailed
from tests.in_process import imports_of
from tests.sweeps import sweep

HERE = Path(__file__).parents[1]
OP = f"{HERE / 'rogues_op.py'}:SCALED"
TIMEOUTS = {"cpu": 2.0, "cuda": 20.0}  # seconds of a call; on a GPU the first of them makes a context
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)

DETECTED = {
    "segfault_on_empty_sequence": "killed by SIGSEGV",
    "hang_on_one_token": "gave no answer within",
    "calls_exit": "called sys.exit(3)",
    "exits_at_once": "exited with code 0 instead of returning",
    "returns_none": "returned None, expected y",
    "returns_two": "returned a tuple of 2, expected y",
    "returns_integers": "expected a dense floating tensor",
    "detaches": "a kernel without a backward pass takes --forward-only, or",
    "replaces_equal": "replaced torch.equal",
}
SMALLEST = {"segfault_on_empty_sequence": (0,), "hang_on_one_token": (1,)}


pytestmark = pytest.mark.usefixtures("working_folder")


@pytest.fixture(scope="module")
def compilation() -> Plan:
    """Of all kernels of packproof."""
    request = CheckRequest(properties=("compile",))
    return plan(request, list(open_targets(request)))


def test_variants_of_a_module_are_compiled_once(compilation: Plan) -> None:
    ops = ["ssd", "attention", "selective_scan", "causal_conv1d", "grouped_mm", "rope", "hadamard", "rope_hadamard"]
    ops += ["round_fp8"]
    assert [cell.op for cell in compilation.cells] == ops
    alone = next(run_check(CheckRequest(op="rope_qk", properties=("compile",))))
    assert isinstance(alone, RunStarted)
    assert [cell.target for cell in alone.cells] == ["packproof.kernels.rope:rope_qk"]


def test_one_process_compiles_for_all_and_after_a_loss_for_the_rest(
    compilation: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Mapping[Cell, str]] = []

    def compile_cells(cells: Mapping[Cell, str], record: str | None) -> list[tuple[Cell, Iterator[Event]]]:
        given.append(cells)
        return []

    monkeypatch.setattr(engine_unit, "compile_cells", compile_cells)
    (unit,) = compilation.units
    for cells in (unit.cells, unit.cells[-2:]):
        assert list(engine_unit.run_unit(replace(unit, cells=cells), CoreTime())) == []
    first, second = given
    assert len(first) == 9
    assert (
        list(second.values())
        == list(first.values())[-2:]
        == [
            "packproof.kernels.rope_hadamard",
            "packproof.kernels.quantize_fp8",
        ]
    )


def test_of_all_kernels_an_instance_of_another_op_is_judged_on_a_cpu_for_what_it_decides() -> None:
    started = next(run_check(CheckRequest(dtypes=("bfloat16",), questions=False)))
    assert isinstance(started, RunStarted)
    laws = {op: {cell.property for cell in started.cells if cell.op == op} for op in ("rope", "simple_gla")}
    assert laws["simple_gla"] == set(INSTANCE_PROPERTIES)
    assert laws["rope"] > {*INSTANCE_PROPERTIES, "packing", "carry", "compile"}
    named = next(run_check(CheckRequest(op="simple_gla", dtypes=("bfloat16",), questions=False)))
    assert isinstance(named, RunStarted)
    assert {cell.property for cell in named.cells} == laws["rope"]


def test_on_a_cpu_the_dtypes_share_the_layouts_that_none_of_them_decides(tmp_path: Path) -> None:
    (tmp_path / "scales.py").write_text("def scaled(x, weight, *, cu_seqlens):\n    return x * weight\n")
    dtypes, properties = ("float64", "float32"), ("reference", "strides")
    target = f"{tmp_path / 'scales.py'}:scaled"
    request = CheckRequest(
        target, op=OP, device="cpu", dtypes=dtypes, properties=properties, profile="quick", questions=False
    )
    verdicts = [event.verdict for event in run_check(request) if isinstance(event, CellFinished)]
    examples = {law: [v.examples for v in verdicts if v.cell.property == law] for law in properties}
    assert set(examples["reference"]) == {21}
    assert sum(examples["strides"]) == 15  # layouts
    assert all(examples["strides"])


@pytest.mark.usefixtures("all_cores", "no_walls")
@pytest.mark.parametrize(("one_cell_each", "processes"), [(False, 2), (True, 3)])
def test_cells_that_share_something_run_in_one_process(tmp_path: Path, one_cell_each: bool, processes: int) -> None:
    (tmp_path / "tells.py").write_text(
        "import os, pathlib\n"
        "def scaled(x, weight, *, cu_seqlens):\n"
        f"    (pathlib.Path({str(tmp_path)!r}) / f'by-{{os.getpid()}}').touch()\n"
        "    return x * weight\n"
    )
    properties = ("reference", "causality", "memory")
    request = CheckRequest(
        "tells.py:scaled", op=OP, device="cpu", dtypes=("float32",), properties=properties, profile="quick"
    )
    events = list(run_plan(plan(request, [open_target(request)], one_cell_each=one_cell_each)))
    verdicts = [event.verdict for event in events if isinstance(event, CellFinished)]
    assert {verdict.cell.property for verdict in verdicts if verdict.status == "passed"} == set(properties)
    assert len(list(tmp_path.glob("by-*"))) == processes


@pytest.mark.parametrize(
    ("name", "verdict", "words"),
    [
        ("no_such_package", "inconclusive", "not judged: module no_such_package is not installed (k.py:2)"),
        ("torch.no_such_module", "failed", "ModuleNotFoundError: No module named 'torch.no_such_module' (k.py:2)"),
    ],
)
def test_a_kernel_without_a_package_that_it_imports_is_not_judged(
    tmp_path: Path, name: str, verdict: str, words: str
) -> None:
    """A package that is installed and has no such module is another one than the kernel was written for."""
    (tmp_path / "k.py").write_text(f"def conv(x, weight, *, cu_seqlens):\n    import {name}\n    return x\n")
    request = CheckRequest(
        f"{tmp_path / 'k.py'}:conv", op="causal_conv1d", device="cpu", dtypes=("float32",), properties=("reuse",)
    )
    [cell] = [event.verdict for event in run_check(request) if isinstance(event, CellFinished)]
    assert cell.status == verdict
    assert words in ("\n".join(cell.failure.lines) if cell.failure else cell.reason)


def test_a_property_whose_skip_reason_fails_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "scales.py").write_text("def scaled(x, weight, *, cu_seqlens):\n    return x * weight\n")
    (tmp_path / "laws.py").write_text(
        "from dataclasses import replace\n"
        "from packproof.properties.laws.torch_integration import OPCHECK\n"
        "def reason(space):\n"
        "    raise RuntimeError('no reason')\n"
        "UNSURE = replace(OPCHECK, name='unsure', skip_reason=reason)\n"
    )
    properties = ("causality", "opcheck", "torch_compile", "laws:UNSURE")
    request = CheckRequest("scales.py:scaled", op=OP, device="cpu", dtypes=("float64",), properties=properties)
    with imports_of(tmp_path):
        planned = plan(request, [replace(open_target(request), request=replace(request, questions=False))])
        verdicts = {e.verdict.cell.property: e.verdict for e in run_plan(planned) if isinstance(e, CellFinished)}
    assert verdicts["causality"].status == "passed"
    assert verdicts["opcheck"].status == "skipped"
    assert verdicts["laws:UNSURE"].reason == "packproof itself failed: RuntimeError: no reason"


@pytest.mark.proof
def test_the_dtypes_of_one_process_have_the_verdicts_of_two(tmp_path: Path) -> None:
    (tmp_path / "halves.py").write_text(
        "def scaled(x, weight, *, cu_seqlens):\n"
        "    return x * weight if x.itemsize == 8 else (x * weight).cumsum(0).to(x.dtype)\n"
    )
    request = CheckRequest(
        "halves.py:scaled",
        op=OP,
        device="cpu",
        dtypes=("float32", "float64"),
        properties=("reference", "causality"),
        profile="quick",
        questions=False,
    )
    planned = plan(request, [open_target(request)])

    def verdicts(*units: Unit) -> set[tuple[str, str, str]]:
        events = run_plan(replace(planned, units=units))
        found = [event.verdict for event in events if isinstance(event, CellFinished)]
        return {(v.cell.property, v.cell.dtype, v.status) for v in found}

    assert len(planned.units) == 2
    apart = verdicts(*planned.units)
    assert {status for _, dtype, status in apart if dtype == "float64"} == {"passed"}
    assert ("reference", "float32", "failed") in apart
    assert verdicts(replace(planned.units[0], cells=planned.cells)) == apart


def test_a_fault_of_ours_in_one_cell_lets_the_others_be_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "faulty_laws.py").write_text(
        "from dataclasses import replace\n"
        "from packproof.properties.laws.catalogue import PROPERTIES\n"
        "def faulty(law):\n"
        "    def check(kernel, case):\n"
        "        if case.dtype == 'float32':\n"
        "            raise RuntimeError('oops')\n"
        "        yield from law.check(kernel, case)\n"
        "    return replace(law, name=f'faulty_{law.name}', check=check)\n"
        "STRIDES, CAUSALITY = faulty(PROPERTIES['strides']), faulty(PROPERTIES['causality'])\n"
    )
    call = ["check", "packproof.refs:rope", "--op", "rope", "--dtype", "fp32,fp64", "--profile", "quick"]
    with imports_of(tmp_path):
        assert main.run([*call, "--property", "faulty_laws:STRIDES,faulty_laws:CAUSALITY"]) == 3
    out = capsys.readouterr().out
    assert "passed   rope faulty_laws:STRIDES fp64" in out
    assert "passed   rope faulty_laws:CAUSALITY fp64" in out
    assert "packproof itself failed, and not everything could be judged: 2 not judged, 2 passed" in out


def check(name: str, *properties: str, timeout: float = 2.0, device: str = "cpu") -> list[Verdict]:
    request = CheckRequest(
        target=f"{HERE / 'rogues.py'}:{name}",
        op=OP,
        device=device,
        dtypes=("float32",),
        properties=properties,
        profile="quick",
        timeout=timeout,
        questions=False,
    )
    found = [event.verdict for event in run_check(request) if isinstance(event, CellFinished)]
    return sorted(found, key=lambda verdict: properties.index(verdict.cell.property))


@pytest.mark.parametrize("device", DEVICES)
@sweep("name, words", [row for row in DETECTED.items() if row[0] != "hang_on_one_token"], [*DETECTED.items()])
def test_misconduct_is_detected_and_the_run_goes_on(name: str, words: str, device: str) -> None:
    first, second = check(name, "reference", "determinism", timeout=TIMEOUTS[device], device=device)
    assert first.status == "failed"
    assert first.failure is not None
    assert words in "\n".join(first.failure.lines)
    if device == "cpu" and name in SMALLEST:
        assert first.failure.lengths == SMALLEST[name]
    assert second.cell.property == "determinism"
    assert second.examples > 0


@pytest.mark.usefixtures("all_cores")
def test_a_device_that_is_lost_on_one_layout_fails_and_the_other_properties_are_judged() -> None:
    every = ("reference", "causality", "determinism", "memory", "strides", "double_backward")
    verdicts = {verdict.cell.property: verdict for verdict in check("loses_the_device", *every, timeout=60)}
    failure = verdicts["reference"].failure
    assert failure is not None
    assert failure.lengths == (3,)
    assert failure.cases_tried > 1
    assert "CUDA error: an illegal memory access was encountered" in failure.lines[1]
    assert verdicts["double_backward"].status == "failed"  # the sequence of three tokens is tried there, too
    assert all(verdict.examples > 0 for verdict in verdicts.values())


def test_examples_without_memory_are_counted_and_not_judged() -> None:
    some, none = check("runs_out_of_memory", "reference"), check("never_has_memory", "reference")
    assert some[0].status == "inconclusive"
    assert some[0].reason.startswith("not judged: a boundary between two sequences")
    assert re.search(r"\d+ of 21 examples are too large to be judged here: RuntimeError: ", some[0].reason)
    assert none[0].status == "skipped"
    assert none[0].reason.startswith("21 of 21 examples")


def test_a_good_kernel_passes_and_the_events_come_in_order() -> None:
    request = CheckRequest(
        target=f"{HERE / 'rogues.py'}:good",
        op=OP,
        dtypes=("float32",),
        properties=("reference", "causality", "carry", "determinism"),
        profile="quick",
    )
    events = list(run_check(request))
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[1], CellStarted)
    assert isinstance(events[-1], RunFinished)
    finished = {e.verdict.cell: e.verdict for e in events if isinstance(e, CellFinished)}
    assert {v.status for v in finished.values() if v.cell.property != "carry"} == {"passed"}
    assert events[-1].verdicts == tuple(finished[cell] for cell in events[0].cells)


def test_check_raises_the_report_and_returns_the_verdicts() -> None:
    with pytest.raises(CheckFailed, match=r"replaced torch\.equal") as caught:
        packproof.check(
            f"{HERE / 'rogues.py'}:replaces_equal",
            op=OP,
            device="cpu",
            dtypes=["fp32"],
            properties=["packing"],
            profile="quick",
        )
    assert [v.status for v in caught.value.verdicts if v.cell.counts] == ["failed"]
    verdicts = packproof.check(
        f"{HERE / 'rogues.py'}:good",
        op=OP,
        device="cpu",
        dtypes=["fp32"],
        properties=["reference", "strides"],
        profile="quick",
    )
    assert [v.status for v in verdicts] == ["passed", "passed"]


@pytest.mark.parametrize(("there", "device"), [(True, "cuda"), (False, "cpu")])
def test_check_takes_the_gpu_if_there_is_one(
    there: bool, device: str, cuda_available: Callable[[bool], None], fake_check: Callable[..., None]
) -> None:
    def run(request: CheckRequest) -> Iterator[Event]:
        asked.append(request.device)
        passed = Verdict(Cell("ssd", "ssd", "packing", "float32", request.device), "gpu", "passed", 1, 0.1)
        yield RunFinished((passed,), 0.1)

    asked: list[str] = []
    cuda_available(there)
    fake_check(run)
    packproof.check("m:f")
    packproof.check("m:f", device="cpu")
    assert asked == [device, "cpu"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="autograd has threads beside a GPU, which no fork survives")
def test_what_a_kernel_prints_is_shown_with_its_failure() -> None:
    def talks(x, weight, *, cu_seqlens):
        print(f"{len(x)} rows")
        return x * weight * 2

    from tests.harness.rogues_op import SCALED  # noqa: PLC0415

    with pytest.raises(CheckFailed, match=r"the kernel printed:\n *1 rows"):
        packproof.check(talks, op=SCALED, device="cpu", dtypes=["fp32"], properties=["reference"], profile="quick")


def test_an_optional_input_that_the_kernel_requires_is_its_domain() -> None:
    """It is never called without, which would be an error of the call, and the report says so."""
    target = f"{HERE / 'rogues.py'}:needs_a_bias"
    request = CheckRequest(target=target, op="causal_conv1d", dtypes=("float32",), properties=("reference",))
    started, *_, end = run_check(replace(request, profile="quick"))
    assert isinstance(started, RunStarted)
    assert isinstance(end, RunFinished)
    assert f"{target} has no default for, so it is not tested without: bias" in started.notes
    assert [verdict.status for verdict in end.verdicts] == ["passed"]


@pytest.mark.proof
@pytest.mark.skipif(torch.cuda.is_available(), reason="autograd has threads beside a GPU, which no fork survives")
def test_a_failure_in_slack_says_what_slack_is_and_how_to_do_without() -> None:
    def conv(x, weight, *, cu_seqlens):
        slack = torch.arange(len(x))[:, None] >= cu_seqlens[-1]
        return torch.where(slack, 1.0, refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens))

    few = partial(
        packproof.check,
        conv,
        op="causal_conv1d",
        dtypes=["fp32"],
        properties=["reference"],
        profile="quick",
        device="cpu",
    )
    with pytest.raises(
        CheckFailed,
        match=r"slack row 0, .*\n *y is wrong in row 1 .*\n *slack is rows past the last sequence.*'slack == 0'",
    ):
        few()
    few(domain="slack == 0")


def test_a_module_is_checked_by_what_its_forward_takes() -> None:
    class Conv(torch.nn.Module):
        def forward(self, x, weight, *, cu_seqlens):
            return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)

    found = packproof.check(
        Conv(), op="causal_conv1d", device="cpu", dtypes=["fp32"], properties=["reference"], profile="quick"
    )
    assert [verdict.status for verdict in found] == ["passed"]


def test_a_closure_is_checked_in_a_fork() -> None:
    factor = 2.0

    def doubled(x, weight, *, cu_seqlens):
        return x * weight * factor

    from tests.harness.rogues_op import SCALED  # noqa: PLC0415

    with pytest.raises(CheckFailed, match="reference"):
        packproof.check(doubled, op=SCALED, device="cpu", dtypes=["float32"], properties=["reference"], profile="quick")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (CheckRequest(target="no_such_module:f", op="rope"), "no_such_module"),
        (CheckRequest(target=f"{HERE / 'rogues.py'}:absent", op="rope"), "has no absent"),
        (CheckRequest(target=f"{HERE / 'rogues.py'}:good", op="ropes"), "rope"),
        (CheckRequest(target=f"{HERE / 'rogues.py'}:good"), "which op is it?"),
        (CheckRequest(target=f"{HERE / 'rogues.py'}:good", op="rope"), "takes (x, weight, cu_seqlens, scale)"),
        (CheckRequest(target=f"{HERE / 'rogues.py'}:needs_more", op="rope"), "takes (x, weight, chunk, cu_seqlens)"),
        (
            CheckRequest(target=f"{HERE / 'rogues.py'}:needs_more", op=f"{HERE / 'rogues_op.py'}:SCALED"),
            "needs chunk, which scaled does not have; give it a default, or paste below it, with what belongs in",
        ),
        (
            CheckRequest(target=f"{HERE / 'rogues.py'}:_BadBackward", op="rope"),
            "_BadBackward is a class, not a function; name _BadBackward.apply, or a function that calls it",
        ),
        (CheckRequest(properties=("pakking",)), "packing"),
        (CheckRequest(profile="slow"), "profile"),
        pytest.param(
            CheckRequest(device="cuda"),
            "sees no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
        ),
        (CheckRequest(dtypes=("int8",)), "dtype"),
        (CheckRequest(op="kda"), "packproof has no kernel for 'kda'"),
        (CheckRequest(target=f"{HERE / 'rogues.py'}:good", op=f"{HERE / 'rogues.py'}:good"), "expected a packproof.Op"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_runs(request_: CheckRequest, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        list(run_check(request_))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
