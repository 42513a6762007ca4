"""The bench end to end on a CPU: incorrect kernels get a verdict and no time; the command reports the rest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from packproof.adapters.peers.registry import Peer
from packproof.base.errors import PackproofError, UsageError
from packproof.bench.kernels.bench import BenchRequest, run_bench
from packproof.bench.kernels.command import document_from_new_process, with_median_rows
from packproof.bench.kernels.file import BenchDocument, NoisyRow, TimedRow
from packproof.bench.kernels.implementations import Implementation
from packproof.bench.kernels.layouts import BenchLayout
from packproof.bench.kernels.markdown import table
from packproof.bench.kernels.proof import _select_sequences, prove, spot_check
from packproof.bench.kernels.results import BenchResult, BenchStarted, Decile, LayoutFinished, PassName, SizeProof
from packproof.bench.kernels.settings import Setting, setting
from packproof.bench.kernels.timing import RoundLimits
from packproof.cli import ending, main
from packproof.harness.check.request import CheckRequest
from packproof.harness.check.targets.target import open_target
from packproof.harness.process.execution import InProcess
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.ops.catalogue import OPS
from tests.in_process import imports_of
from tests.tools.bench import bench_samples
from tests.tools.bench.bench_results import CEILINGS, ON_CPU, spread

T = TypeVar("T")
SAMPLES = str(Path(__file__).parents[1] / "bench_samples.py")
LAYOUT = BenchLayout("mixed", (40, 0, 150, 1, 60))
SIZES = {"d": 3, "w": 2}


class Clock:
    """Does the work and reports a fixed time."""

    def time(self, work: Callable[[], T]) -> tuple[T, float]:
        return work(), 2.0


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The clock of the commands, if another one is to be read; each bench has few rounds."""
    selected: list[Any] = []
    monkeypatch.setattr("packproof.bench.kernels.bench.LIMITS", {"cpu": RoundLimits(0.0, 6, 0.0)})
    monkeypatch.setattr("packproof.bench.kernels.bench.clock_for", lambda _device: [Clock(), *selected][-1])
    monkeypatch.setattr("packproof.bench.kernels.command.PROCESSES", 1)  # others would have clocks of their own
    return selected


def bench(*names: str, layout: BenchLayout = LAYOUT, **fields: Any) -> tuple[list[SizeProof], list[BenchResult]]:
    targets = tuple(f"{SAMPLES}:{name}" for name in names)
    request = BenchRequest((layout,), targets, op="causal_conv1d", **{"sizes": SIZES, **fields})
    events = list(run_bench(request, Clock()))
    assert isinstance(events[0], BenchStarted)
    results = [r for event in events if isinstance(event, LayoutFinished) for r in event.results]
    return [event for event in events if isinstance(event, SizeProof)], results


@pytest.mark.proof
def test_a_correct_kernel_is_proven_and_timed_with_the_reference() -> None:
    proofs, results = bench("correct")
    assert [(p.status, p.examples, p.tier) for p in proofs] == [("passed", 2, "eager")] * 2
    assert [r.implementation for r in results] == ["bench_samples.py:correct", "reference"]
    for result in results:
        assert [p.name for p in result.passes] == ["forward", "backward", "both"]
        assert all((p.device.median, p.host, p.device.rounds) == (2.0, None, 6) for p in result.passes)


def test_a_leaky_kernel_gets_a_verdict_and_no_time() -> None:
    [proof, baseline], [wrong, reference] = bench("leaky")
    assert (proof.status, baseline.status) == ("failed", "passed")
    assert proof.text.startswith("reference (y): lengths [2, 0, 130, 1]\nsequence 3, token 0")
    assert wrong.verdict == proof.text
    assert not wrong.passes
    assert reference.passes


@pytest.mark.parametrize(
    ("name", "tensor"), [("wrong_on_many_tokens", "y"), ("wrong_gradient_on_many_tokens", "gradient of x")]
)
def test_a_kernel_that_fails_only_at_the_timed_layout_gets_a_verdict_too(name: str, tensor: str) -> None:
    [proof], [wrong] = bench(name, baselines=())
    assert proof.status == "passed"
    assert wrong.verdict.startswith(f"spot check ({tensor}): sequences 3 and 4 of the timed layout")
    assert not wrong.passes


@pytest.mark.proof
def test_what_a_kernel_does_not_take_is_left_out_and_the_row_says_so() -> None:
    proofs, results = bench("takes_no_bias", "correct")
    assert {proof.setting for proof in proofs} == {"d=3 w=2, activation=silu, without bias"}
    assert {result.setting for result in results} == {"d=3 w=2, activation=silu, without bias"}
    assert all(result.passes for result in results)


def test_what_was_asked_for_and_a_kernel_does_not_take_is_declined_with_the_way_out() -> None:
    [proof], results = bench("takes_no_bias", baselines=(), inputs=("bias",))
    said = "does not take bias; without that in --inputs it can be timed"
    assert (proof.status, proof.text, results) == ("declined", said, [])
    [proof], [result] = bench("takes_no_bias", baselines=(), options={"activation": "none"})
    assert proof.setting == "d=3 w=2, activation=None, without bias"
    assert result.passes


def test_threads_are_pinned_and_given_back() -> None:
    before = torch.get_num_threads()
    for threads, expected in ((None, 1), (2, 2)):
        request = BenchRequest((LAYOUT,), (f"{SAMPLES}:correct",), op="causal_conv1d", sizes=SIZES, threads=threads)
        events = run_bench(request, Clock())
        started = next(events)
        assert isinstance(started, BenchStarted)
        assert started.environment.threads == torch.get_num_threads() == expected
        events.close()  # type: ignore[attr-defined]
    assert torch.get_num_threads() == before


def test_interpreted_kernels_are_proven_and_not_timed() -> None:
    proofs, results = bench(baselines=(), dtype="bfloat16")
    assert [(p.implementation, p.status, p.tier) for p in proofs] == [("packproof", "interpreted", "interpret")]
    assert results == []


def test_a_peer_that_is_not_installed_is_one_line() -> None:
    proofs, results = bench("correct", baselines=("causal_conv1d:causal_conv1d",))
    assert [(p.implementation, p.status) for p in proofs[1:]] == [("causal_conv1d:causal_conv1d", "not installed")]
    assert len(results) == 1


def test_an_unpacked_implementation_is_a_bound_and_not_judged() -> None:
    target = f"{SAMPLES}:leaky"
    job = open_target(CheckRequest(target=target, op="causal_conv1d"))
    bound = Implementation("bound", job, Peer("bound", "causal_conv1d", "torch", ("torch",), packed=False))
    proof = prove(bound, setting(job.op, "cpu", SIZES, None), "float32", "cpu", 0)
    assert (proof.status, proof.may_be_timed, proof.examples) == ("unpacked", True, 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"options": {"activate": "silu"}},
            "--options: causal_conv1d has no option 'activate'; did you mean activation?",
        ),
        ({"options": {"activation": "gelu"}}, "--options: activation is 'gelu', expected None or silu"),
        ({"threads": 0}, "threads: 0 on cpu; expected a whole number above zero, with --device cpu"),
        ({"sizes": {"n": 3}}, "--sizes: causal_conv1d has no axis 'n'; it has d, w"),
        ({"inputs": ("z",)}, "--inputs: causal_conv1d has no optional input 'z'; it has bias, initial_states"),
        ({"baselines": ("ference",)}, "no baseline is called 'ference'; did you mean reference?"),
        (
            {"baselines": ("mamba_ssm:ssd",)},
            "--against: mamba_ssm:ssd computes ssd, but this bench times causal_conv1d",
        ),
        ({"layout": BenchLayout("lengths", (2**31,))}, "layout lengths: 2147483648 tokens; int32 cu_seqlens end at"),
        ({"layout": BenchLayout("lengths", (0, 0))}, "layout lengths: it has no tokens"),
        ({"device": "cdua"}, "no device is called 'cdua'; did you mean cuda?"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_runs(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        bench("correct", **fields)
    assert str(error.value).startswith(message)


CONFIGURATION = ("rope", "packproof", "", "float32", "L2", 64, 3, 34)


def _row(name: PassName, ms: float, fixed_work: float = 1.0) -> TimedRow:
    counts = (0, 0, 0.0, "byte/s", 0.0, None, None, None)
    decile = Decile(ms, 1.0, {"products": fixed_work})
    return TimedRow(*CONFIGURATION, name, spread(ms), None, *counts, decile=decile)  # type: ignore[arg-type]


def _document(*rows: TimedRow, noisy: tuple[NoisyRow, ...] = ()) -> BenchDocument:
    return BenchDocument(1, "", "", ON_CPU, CEILINGS, 0, rows=rows, noisy=noisy)


def test_of_several_processes_the_median_counts_beside_fixed_work() -> None:
    here = _document(_row("forward", 2.0), _row("backward", 2.0))
    other = _document(_row("forward", 1.0), _row("backward", 1.9, fixed_work=0.5))  # a machine twice as fast: longer
    third = _document(_row("forward", 1.5), _row("backward", 2.1))
    median = with_median_rows(here, [other, third])
    assert [row.decile and row.decile.ms for row in median.rows] == [1.5, 2.1]


def test_a_pass_that_is_calm_in_one_process_has_a_time() -> None:
    noisy = NoisyRow(*CONFIGURATION, "forward 1.30 x")
    median = with_median_rows(_document(noisy=(noisy,)), [_document(_row("forward", 1.0))])
    assert (len(median.rows), median.noisy) == (1, ())


@pytest.mark.proof
def test_a_bench_in_a_process_of_its_own(tmp_path: Path) -> None:
    """It sends its document here: a verdict, which does not depend on how busy the machine is."""
    request = BenchRequest((LAYOUT,), (f"{SAMPLES}:leaky",), op="causal_conv1d", baselines=(), sizes=SIZES)
    [verdict] = document_from_new_process(request).verdicts
    assert (verdict.op, verdict.verdict.partition(":")[0]) == ("causal_conv1d", "reference (y)")
    (tmp_path / "torch.py").write_text("raise ImportError('a broken installation')\n")  # it fails before it starts
    with (
        imports_of(tmp_path),
        pytest.raises(PackproofError, match=r"(?s)the bench ended in another process: .*a broken installation"),
    ):
        document_from_new_process(request)


def test_the_command_prints_a_table_and_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.json"
    line = ["bench", f"{SAMPLES}:correct", "--op", "causal_conv1d", "--sizes", "d=3,w=2", "--device", "cpu"]
    line += ["--dtype", "fp32", "--against", "", "--json", str(file), "--lengths", "50,0,6"]
    assert main.run(line) == ending.SUCCESS
    printed = capsys.readouterr().out
    assert "causal_conv1d · lengths: 3 sequences, 56 tokens, longest 50 · fp32" in printed
    assert "proven eager" in printed
    written = json.loads(file.read_text())
    assert written["version"] == 1
    assert written["finished"]
    assert written["environment"]["device"] == "cpu"
    assert [row["pass"] for row in written["rows"]] == ["forward", "backward", "both"]
    assert {row["host_ms"] for row in written["rows"]} == {None}  # the host does the work here
    assert main.run([*line, "--compare", str(file)]) == ending.SUCCESS
    assert "3 rows compared, none slower than allowed" in capsys.readouterr().out
    for row in written["rows"]:
        row["decile"]["ms"] /= 1.3
    file.with_name("fast.json").write_text(json.dumps(written))
    assert main.run([*line, "--compare", str(file.with_name("fast.json"))]) == ending.FAILED
    assert "forward · lengths, 56 tokens · float32 · d=3 w=2, bias, activation=silu: 2 ms, was 1.538: 1.30 x" in (
        capsys.readouterr().out
    )
    for row in written["rows"]:
        row["decile"] |= {"ms": 2 / 1.14, "noise": 1.1}  # neither a slowdown nor none
    file.with_name("open.json").write_text(json.dumps(written))
    assert main.run([*line, "--compare", str(file.with_name("open.json"))]) == ending.INCONCLUSIVE
    assert "3 rows compared, none slower than allowed, 3 undecided: too much noise" in capsys.readouterr().out


def test_a_file_that_cannot_match_is_refused_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The device, the threads, the dtype and the layout are compared first, then the kernels; none has been run."""
    file = tmp_path / "bench.json"
    line = ["bench", f"{SAMPLES}:correct", "--op", "causal_conv1d", "--sizes", "d=3,w=2", "--device", "cpu"]
    line += ["--against", "", "--lengths", "50,0,6"]
    assert main.run([*line, "--json", str(file)]) == ending.SUCCESS
    capsys.readouterr()
    monkeypatch.setattr("packproof.bench.kernels.bench.measure_ceilings", None)  # the first thing that is timed
    other = [line[0], f"{SAMPLES}:leaky", *line[2:]]
    opens_nothing = {
        "dtype 'float32' there and 'bfloat16' here": [*line, "--dtype", "bf16"],
        "tokens 56 there and 57 here": [*line[:-1], "51,0,6"],
        "1 thread), this run is on": [*line, "--threads", "2"],
    }
    opens = {
        "kernel 'bench_samples.py:correct' there and 'bench_samples.py:leaky' here": other,
        "setting 'd=3 w=2, bias, activation=silu' there and 'd=3 w=2, activation=silu' here": [*line, "--inputs", ""],
    }
    for said, wrong in (opens_nothing | opens).items():
        with monkeypatch.context() as patch:
            if said in opens_nothing:
                patch.setattr("packproof.bench.kernels.bench.implementations", None)
            assert main.run([*wrong, "--compare", str(file)]) == ending.WRONG_CALL
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert said in err
        assert "has no row of this run" not in err or "repeat the command that wrote it" in err


def test_a_row_that_is_too_noisy_has_no_time(
    tmp_path: Path, clocks: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two calls of four take 1.5 times as long; of the six in a round, each is among them in every other round."""

    class Uneven:
        calls = 0

        def time(self, work: Callable[[], T]) -> tuple[T, float]:
            self.calls += 1
            return work(), 2.0 if self.calls % 4 < 2 else 3.0

    clocks.append(Uneven())
    line = ["bench", f"{SAMPLES}:correct", "--op", "causal_conv1d", "--sizes", "d=3,w=2", "--device", "cpu"]
    line += ["--against", "", "--lengths", "50,0,6", "--json", str(tmp_path / "bench.json")]
    assert main.run(line) == ending.INCONCLUSIVE
    said = "against itself the same code takes forward 1.50 x, backward 1.50 x, both 1.50 x, and 1.12 x is allowed"
    assert f"not timed: {said}; the machine is too busy" in capsys.readouterr().out
    [noisy] = json.loads((tmp_path / "bench.json").read_text())["noisy"]
    assert noisy["noise"].startswith(said)


def test_running_out_of_memory_is_not_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], free_memory: Callable[[int], None]
) -> None:
    free_memory(1 << 20)
    file = tmp_path / "bench.json"
    targets = [f"{SAMPLES}:correct", f"{SAMPLES}:fits_on_few_tokens"]
    line = ["bench", *targets, "--op", "causal_conv1d", "--sizes", "d=3,w=2", "--device", "cpu", "--against", ""]
    assert main.run([*line, "--lengths", "150,30", "--json", str(file)]) == ending.SUCCESS
    assert "not timed: OutOfMemoryError: CUDA out of memory. Tried to allocate 644.00 GiB" in capsys.readouterr().out
    data = json.loads(file.read_text())
    assert [limit["implementation"] for limit in data["limits"]] == ["bench_samples.py:fits_on_few_tokens"]
    assert data["verdicts"] == []
    assert "| too large |" in table(str(file))


def test_nothing_to_time_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["bench", f"{SAMPLES}:takes_no_bias", "--op", "causal_conv1d", "--device", "cpu", "--against", ""]
    assert main.run([*line, "--inputs", "bias"]) == ending.WRONG_CALL
    printed = capsys.readouterr()
    assert "does not take bias" in printed.out
    assert printed.err == "packproof: nothing could be timed or proven: see the reasons above\n"


@pytest.mark.parametrize(
    ("name", "verdict"), [("whole_sequences", ""), ("whole_pack", "spot check (y): sequences 2 and 4")]
)
def test_an_op_that_is_not_causal_is_checked_on_whole_sequences(name: str, verdict: str) -> None:
    job = open_target(CheckRequest(target=f"{SAMPLES}:{name}", op="attention"))
    sizes = {"hq": 1, "hk": 1, "k": 4, "v": 4}
    sample = Setting(sizes).sample(job.op, BenchLayout("mixed", (30, 0, 8, 40, 9)), "float32", 0)
    runner = InProcess(getattr(bench_samples, name))
    found = spot_check(KernelUnderTest(job.op, runner, job.declared.promises), sample)
    assert found.startswith(verdict)
    assert bool(found) == bool(verdict)


def test_the_spot_check_prefers_later_sequences_unless_the_budget_depends_on_earlier_ones() -> None:
    sample = setting(OPS["causal_conv1d"], "cpu", SIZES, None).sample(OPS["causal_conv1d"], LAYOUT, "float32", 0)
    assert _select_sequences(sample, first_only=False) == ([3, 4], [1, 60])
    assert _select_sequences(sample, first_only=True) == ([0], [40])


def test_a_wrong_target_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["bench", f"{SAMPLES}:leaky", "--op", "causal_conv1d", "--sizes", "d=3,w=2", "--device", "cpu"]
    assert main.run([*line, "--lengths", "20,30"]) == ending.FAILED
    printed = capsys.readouterr().out
    assert "FAILED eager" in printed
    assert "FAILED reference (y): lengths [2, 130, 1]; no time" in printed


@pytest.mark.proof
def test_a_sweep_shows_how_cost_grows_and_draws_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="drawing needs matplotlib")
    line = ["bench", f"{SAMPLES}:correct", "--op", "causal_conv1d", "--sizes", "d=3,w=2", "--device", "cpu"]
    line += ["--against", "", "--sweep", "sequences", "--tokens", "20", "--plot", str(tmp_path / "sweep.svg")]
    assert main.run(line) == ending.SUCCESS
    printed = capsys.readouterr().out
    assert "causal_conv1d · growth of the time with sequences" in printed
    assert printed.rstrip().splitlines()[-1].split()[-4:] == ["both", "1.00", "1.00", "1.00"]
    assert "<svg" in (tmp_path / "sweep.svg").read_text()
