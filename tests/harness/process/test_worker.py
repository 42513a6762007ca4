"""The worker process: every rogue is detected with a plain message, and the next call runs as if none had failed."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from packproof.base.errors import KernelFault, PackproofError, UsageError
from packproof.harness.process.child import Child
from packproof.harness.process.kernel_process import KernelProcess
from packproof.harness.process.wire import Frame
from packproof.harness.process.worker import Worker
from packproof.interpreter.memory_guard import is_poison
from packproof.properties.calling.call import Call, MachineLimit, OutsideDomain, Refusal, Result
from tests.in_process import environment, imports_of
from tests.sweeps import sweep

Make = Callable[..., Call]
Rogue = Callable[[str], str]


def test_a_result_comes_back(make_call: Make, rogue: Rogue) -> None:
    call = make_call(2, 0, 3, options={"scale": 2.0})
    with Worker(rogue("good")) as worker:
        result = worker.run(call)
    x, weight, dy = call.inputs["x"], call.inputs["weight"], call.cotangents["y"]
    assert torch.equal(result.outputs["y"], x * weight * 2)
    assert torch.equal(result.gradients["x"], dy * weight * 2)
    torch.testing.assert_close(result.gradients["weight"], (dy * x).sum(0) * 2)
    assert not result.interpreted


@pytest.mark.proof
def test_a_call_that_fills_a_gpu_has_a_quarter_of_the_time(make_call: Make, tmp_path: Path) -> None:
    """Others wait for the memory meanwhile. It is the machine that is too slow, and no kernel that hangs."""
    call, kernel = make_call(1), tmp_path / "slow.py"
    kernel.write_text("import time\ndef slow(x, weight, *, cu_seqlens):\n    time.sleep(60)\n    return x * weight\n")
    with Worker(f"{kernel}:slow", time_limit=60.0, until=time.monotonic() + 16) as worker:
        worker.open()
        worker.device, started = "cuda:test", time.monotonic()  # which only decides what waits for whom
        with pytest.raises(MachineLimit, match=r"^took more than \d+ s$"):
            worker.run(replace(call, copies=2))
        assert 2 < time.monotonic() - started < 8


def locks(folder: Path) -> list[str]:
    """The devices whose memory was waited for: each has a file, whose lock was held."""
    return re.findall(rf"packproof-{os.getuid()}-(cpu|cuda-test)-", " ".join(map(str, folder.glob("*.lock"))))


def test_a_small_call_that_lacks_memory_runs_once_more_when_no_other_may_fill_it(
    make_call: Make, rogue: Rogue, temporary: Path
) -> None:
    class Crowded(Worker):
        def _call_once(self, call: Call, until: float) -> Result:
            if not locks(temporary):
                raise MachineLimit("another process has it all")
            return super()._call_once(call, until)

    call = make_call(1)
    with Crowded(rogue("good")) as worker:
        worker.open()
        with pytest.raises(MachineLimit):  # on a CPU no one waits for another
            worker.run(call)
        worker.device = "cuda:test"
        assert worker.run(call).outputs["y"].shape == call.inputs["x"].shape
    assert locks(temporary) == ["cuda-test"]


def test_a_process_that_finds_no_memory_for_its_context_starts_once_more(rogue: Rogue, temporary: Path) -> None:
    class Crowded(Worker):
        starts = 0

        def _opened(self, *, warm: bool) -> KernelProcess:
            self.starts += 1
            if not locks(temporary):
                raise MachineLimit("cuda cannot be used: CUDA error: out of memory")
            return super()._opened(warm=warm)

    with Crowded(rogue("good")) as worker:
        worker.open()
        assert (worker.starts, locks(temporary)) == (2, ["cpu"])
        for lock in temporary.glob("*.lock"):
            lock.write_text("")
        worker.open()
        assert worker.starts == 3


def test_what_finds_no_memory_says_so(rogue: Rogue, monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    """The worker's process, to its parent, which then waits for the memory."""
    monkeypatch.setattr(Child, "receive", lambda *_: Frame("crowded", body={"pid": 0, "text": "full"}))
    with Worker(rogue("good")) as worker, pytest.raises(UsageError, match=r"^full$"):
        worker.open()
    assert locks(temporary) == ["cpu"]


def test_a_kernel_has_the_environment_of_its_caller(make_call: Make, rogue: Rogue) -> None:
    """Not the environment at the first kernel, whose zygote all later workers come from."""
    call = make_call(2)
    for scale in ("3", "5", None):
        with environment(PACKPROOF_ROGUE_SCALE=scale), Worker(rogue("scaled_by_the_environment")) as worker:
            y = worker.run(call).outputs["y"]
        assert torch.equal(y, call.inputs["x"] * call.inputs["weight"] * float(scale or 1))


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("segfault_on_empty_sequence", "crashed", r"^killed by SIGSEGV \(Segmentation fault\)\n(.*\n)*.*rogues.py"),
        ("prints_and_dies", "crashed", r"^killed by SIGKILL \(Killed\)\n    the last words$"),
        ("calls_exit", "exited", r"^called sys.exit\(3\)$"),
        ("exits_at_once", "exited", "^exited with code 0 instead of returning$"),
        ("forks_and_dies", "exited", "^exited with code 5 instead of returning$"),
        ("forks", "malformed", "^forked a child process; a kernel computes in the process that called it$"),
        ("returns_none", "malformed", "^returned None, expected y$"),
        ("writes_into_sockets", "malformed", "^wrote into packproof's channel: b'all is well"),
        ("closes_descriptors", "malformed", "^closed file descriptors that are not its own$"),
        ("replaces_equal", "patched", "^replaced torch.equal$"),
        ("replaces_equal_and_identity", "patched", "^replaced torch.equal$"),
        ("breaks_isinstance", "patched", "^replaced builtins.isinstance$"),
        ("presses_ctrl_c", "raised", r"^KeyboardInterrupt \(rogues.py:\d+\)$"),
        ("raises", "raised", r"^ValueError: only even \(rogues.py:\d+\)\n    lengths$"),
        ("writes_past_the_end", "memory", "^wrote past the end of a torch.empty of shape"),
        ("launches_too_many", "launch", r"^the device refused a launch: RuntimeError: .*invalid argument \(rogues.py"),
    ],
)
def test_rogues_are_detected_and_the_run_goes_on(
    make_call: Make, rogue: Rogue, name: str, kind: str, words: str
) -> None:
    with Worker(rogue(name), time_limit=20) as worker:
        for _ in range(2):
            with pytest.raises(KernelFault, match=words) as fault:
                worker.run(make_call(2, 0, 1))
            assert fault.value.kind == kind


def test_a_crash_costs_one_call(make_call: Make, rogue: Rogue) -> None:
    with Worker(rogue("segfault_on_empty_sequence")) as worker:
        for _ in range(2):
            assert worker.run(make_call(2, 1)).outputs["y"].shape == (3, 4)
            with pytest.raises(KernelFault, match="SIGSEGV"):
                worker.run(make_call(2, 0))


def test_an_error_that_takes_the_device_with_it_costs_one_process(make_call: Make, rogue: Rogue) -> None:
    with Worker(rogue("loses_the_device")) as worker:
        for _ in range(2):
            worker.run(make_call(2, 1))
            with pytest.raises(KernelFault, match=r"^CUDA error: an illegal memory access was encountered") as fault:
                worker.run(make_call(2, 3))
            assert fault.value.kind == "crashed"


def test_too_little_memory_is_not_a_fault_of_the_kernel(make_call: Make, rogue: Rogue) -> None:
    with Worker(rogue("runs_out_of_memory")) as worker:
        with pytest.raises(MachineLimit, match=r"^RuntimeError: .*DefaultCPUAllocator: can't allocate memory"):
            worker.run(make_call(5))
        worker.run(make_call(4))


PADDED = """
from packproof.adapters import Padded, adapt
from packproof.base.errors import OutsideConvention

def takes_batches(x, weight, *, cu_seqlens):
    raise AssertionError("its batch fits no memory")

adapted = adapt(takes_batches, op="causal_conv1d", tokens=Padded())

def asks_an_adapter(x, weight, *, cu_seqlens):
    return adapted(x, weight, cu_seqlens=cu_seqlens)

def claims_to_be_one(x, weight, *, cu_seqlens):
    raise OutsideConvention("2^31 elements or more")

def claims_it_in_between(x, weight, *, cu_seqlens):
    try:
        claims_to_be_one(x, weight, cu_seqlens=cu_seqlens)
    finally:
        raise ValueError("any number of tokens")
"""
TOO_WIDE = (40000, *[0] * 20000)


@pytest.fixture
def padded(tmp_path: Path) -> Path:
    (tmp_path / "padded.py").write_text(PADDED)
    return tmp_path / "padded.py"


def test_a_pack_that_its_adapter_cannot_express_is_outside_of_its_domain(make_call: Make, padded: Path) -> None:
    with Worker(f"{padded}:adapted") as worker, pytest.raises(OutsideDomain, match=r"2\^31 elements or more$"):
        worker.run(make_call(*TOO_WIDE))


def test_a_kernel_that_asks_an_adapter_for_it_declines_the_call(make_call: Make, padded: Path) -> None:
    with Worker(f"{padded}:asks_an_adapter") as worker, pytest.raises(Refusal, match=r"2\^31 elements") as refusal:
        worker.run(make_call(*TOO_WIDE))
    assert type(refusal.value) is Refusal


@pytest.mark.parametrize("name", ["claims_to_be_one", "claims_it_in_between"])
def test_a_kernel_that_claims_it_fails(name: str, make_call: Make, padded: Path) -> None:
    with Worker(f"{padded}:{name}") as worker, pytest.raises(KernelFault, match="only packproof's adapters may"):
        worker.run(make_call(5))


def test_a_machine_with_memory_to_spare_is_no_excuse(make_call: Make, rogue: Rogue) -> None:
    with (
        Worker(rogue("pretends_to_lack_memory")) as worker,
        pytest.raises(KernelFault, match=r"bytes, and .* are free"),
    ):
        worker.run(make_call(5))


def test_a_spare_process_takes_the_place_of_a_lost_one(make_call: Make, rogue: Rogue) -> None:
    def process(worker: Worker) -> int:
        return int(worker.run(make_call(2)).outputs["y"][0, 0])

    with Worker(rogue("process_id")) as worker:
        worker._keeps_spare = True  # as beside a GPU, where a fresh process takes seconds
        first = process(worker)
        spare = worker._supply.spare
        assert process(worker) == first
        with pytest.raises(KernelFault, match="SIGSEGV"):
            worker.run(make_call(0))
        second = process(worker)
        assert worker._process is spare
        assert worker._supply.spare is not None
        worker.restart()
        assert len({first, second, process(worker)}) == 3


def test_a_kernel_that_ends_its_parent_does_not_end_the_run_and_a_spare_that_went_with_it_is_not_missed(
    make_call: Make, rogue: Rogue
) -> None:
    for calls in (1, 2):
        with Worker(rogue("kills_its_parent")) as worker:
            worker._keeps_spare = calls == 2
            for _ in range(calls):
                with suppress(KernelFault):  # its own end follows at once: the answer may still come through, or not
                    worker.run(make_call(2))
                time.sleep(0.1)
    with Worker(rogue("good")) as worker:
        worker.run(make_call(2))


def test_a_hang_ends_at_the_time_limit(make_call: Make, rogue: Rogue) -> None:
    with Worker(rogue("spins_on_one_token"), time_limit=1) as worker:
        worker.run(make_call(2))
        start = time.monotonic()
        with pytest.raises(
            KernelFault, match=r"^gave no answer within 1 s\n.*rogues.py.* in spins_on_one_token$"
        ) as fault:
            worker.run(make_call(1))
        assert fault.value.kind == "hung"
        assert 1 <= time.monotonic() - start < 10 * 1 + 4  # it spins, and has longer where it waits for a core
        worker.run(make_call(2))


SLOW = """
import time
def slow(x, weight, *, cu_seqlens):
    time.sleep({seconds})
    return x * weight
"""


@pytest.mark.parametrize(
    ("seconds", "error", "words"),
    [
        pytest.param(
            "0.002 * len(x) ** 2",
            MachineLimit,
            "40 tokens are too slow to be judged: it gave no answer within 1 s",
            marks=pytest.mark.proof,
        ),
        ("1000 * (len(x) == 40)", KernelFault, "gave no answer within 1 s"),
    ],
    ids=["slow", "hung"],
)
def test_a_call_as_slow_as_smaller_ones_let_expect_is_no_hang(
    make_call: Make, tmp_path: Path, seconds: str, error: type[PackproofError], words: str
) -> None:
    kernel = tmp_path / "slow.py"
    kernel.write_text(SLOW.format(seconds=seconds))
    with Worker(f"{kernel}:slow", time_limit=1.0, warmup_limit=30.0) as worker:
        for n in (3, 13, 14):
            worker.run(make_call(n))
        with pytest.raises(error, match=words):
            worker.run(make_call(40))


def test_an_interrupted_call_leaves_no_answer_for_the_next(make_call: Make, rogue: Rogue) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    with Worker(rogue("slow_at_first"), time_limit=20) as worker:
        worker.open()
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                worker.run(make_call(2))
        finally:
            signal.signal(signal.SIGALRM, before)
        assert worker.run(make_call(3)).outputs["y"].shape == (3, 4)


def test_the_first_call_may_take_longer(make_call: Make, rogue: Rogue) -> None:
    with Worker(rogue("slow_at_first"), time_limit=0.3, warmup_limit=20) as worker:
        worker.run(make_call(2))
        worker.run(make_call(2))
    with Worker(rogue("slow_at_first"), time_limit=0.3) as worker, pytest.raises(KernelFault, match=r"within 0\.3 s"):
        worker.run(make_call(2))


def test_a_refusal_is_not_a_fault(make_call: Make, rogue: Rogue) -> None:
    with Worker(rogue("declines")) as worker, pytest.raises(Refusal, match="no such option here"):
        worker.run(make_call(2))


def test_what_a_kernel_prints_stays_with_it(make_call: Make, rogue: Rogue, capfd: pytest.CaptureFixture[str]) -> None:
    with Worker(rogue("prints_megabytes")) as worker:
        for _ in range(3):
            assert list(worker.run(make_call(2)).gradients) == ["x", "weight"]
    assert capfd.readouterr() == ("", "")


def test_settings_are_restored_between_calls(make_call: Make, rogue: Rogue) -> None:
    with Worker(rogue("changes_settings"), time_limit=60) as worker:
        for _ in range(2):
            assert list(worker.run(make_call(2)).gradients) == ["x", "weight"]


def test_unwritten_rows_arrive_as_poison(make_call: Make, rogue: Rogue) -> None:
    with Worker(rogue("leaves_rows_unwritten")) as worker:
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            y = worker.run(make_call(4, dtype=dtype, guard=True)).outputs["y"]
            assert is_poison(y).tolist() == [[False] * 4] * 2 + [[True] * 4] * 2


def test_metadata_edited_in_place_and_a_cold_restart(make_call: Make, rogue: Rogue) -> None:
    with Worker(rogue("remembers_offsets")) as worker:

        def same(*lengths: int) -> bool:
            call = make_call(*lengths, edit_metadata=True)
            y = worker.run(call).outputs["y"] - call.inputs["x"] * call.inputs["weight"]
            return bool(y.mean().round() % 10)

        assert [same(2, 3), same(4, 1), same(1, 2)] == [False, True, True]
        worker.restart()
        assert [same(2, 3), same(2, 3)] == [False, True]


def test_triton_runs_interpreted(make_call: Make) -> None:
    pytest.importorskip("triton")
    x, weight = torch.randn(5, 4), torch.randn(4, 2)
    call = make_call(2, 3, inputs={"x": x, "weight": weight})
    with Worker("packproof.kernels.causal_conv1d:causal_conv1d", time_limit=60) as worker:
        result = worker.run(call)
    assert result.interpreted
    torch.testing.assert_close(result.outputs["y"][0], x[0] * weight[:, 1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="autograd has threads beside a GPU, which no fork survives")
def test_a_closure_runs_in_a_fork_of_this_process(make_call: Make) -> None:
    factor = 3.0

    def closure(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        if x.shape[0] == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        return x * weight * factor

    with Worker(closure) as worker:
        for length in (5, 1, 5):
            call = make_call(length)
            if length == 1:
                with pytest.raises(KernelFault, match="SIGSEGV") as fault:
                    worker.run(call)
                assert "test_worker.py" in str(fault.value)  # where it crashed is the start of a long stack
                assert "pluggy" not in str(fault.value)
            else:
                assert torch.equal(worker.run(call).outputs["y"], call.inputs["x"] * call.inputs["weight"] * factor)
    with pytest.raises(UsageError, match="cannot be imported by name, so it cannot run on cuda"):
        Worker(closure, "cuda")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "import nonsense_of_the_moon",
            r"bad.py cannot be imported: ModuleNotFoundError: No module named 'nonsense_of_the_moon' \(bad.py:1\)$",
        ),
        ("import json\njson.loads('')", r"bad.py cannot be imported: JSONDecodeError: .* \(char 0\) \(bad.py:2\)$"),
        ("def f(:", r"bad.py cannot be imported: SyntaxError: .* \(bad.py, line 1\)$"),
        ("import ctypes\nctypes.string_at(0)", r"process killed by SIGSEGV .*\n(.*\n)*.*bad.py\", line 2 in <module>$"),
        ("f = 3", r"bad.py:f is of type int, not a function"),
        ("import os; os._exit(4)", r"bad.py:f cannot be imported: its process exited with code 4"),
        ("import sys; sys.exit('no GPU')", r"bad.py cannot be imported: SystemExit: no GPU"),
    ],
)
def test_a_target_that_cannot_be_imported(tmp_path: Path, source: str, words: str) -> None:
    file = tmp_path / "bad.py"
    file.write_text(source)
    with Worker(f"{file}:f") as worker, pytest.raises(UsageError, match=words):
        worker.open()


def test_a_target_imports_its_neighbours_and_describes_itself(tmp_path: Path, make_call: Make) -> None:
    (tmp_path / "neighbour_of_kernel.py").write_text("FACTOR = 2.0\n")
    (tmp_path / "kernel.py").write_text(
        "from neighbour_of_kernel import FACTOR\n"
        "class Ops:\n"
        "    @staticmethod\n"
        "    def f(x, weight, *, cu_seqlens):\n"
        "        return x * weight * FACTOR\n"
    )
    with Worker(f"{tmp_path}/kernel.py:Ops.f") as worker:
        assert worker.describe()["parameters"] == ("x", "weight", "cu_seqlens")
        worker.run(make_call(2))


@pytest.mark.proof
@sweep("calls", [600], [600, 3000])
def test_many_calls_leak_nothing(make_call: Make, rogue: Rogue, calls: int) -> None:
    descriptors = Path("/proc/self/fd")
    call = make_call(2, 3)
    with Worker(rogue("reports_its_size")) as worker:
        worker.run(call)
        before = len(list(descriptors.iterdir()))
        sizes = [int(worker.run(call).outputs["y"][0, 0]) for _ in range(calls)]
        assert len(list(descriptors.iterdir())) == before
        assert sizes[-1] - sizes[200] < 2_000 * (calls - 200)  # bytes
        for _ in range(5):
            worker.restart()
            worker.run(call)
        assert len(list(descriptors.iterdir())) == before


_PARENT = """
import signal, sys, torch
from packproof.harness.process import Worker, set_isolation
from packproof.properties.calling.call import Call
set_isolation("none")  # it writes a file, with its id
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
call = Call({"x": torch.ones(1, 4), "weight": torch.ones(4)}, torch.tensor([0, 1]), {}, ("y",))
with Worker(sys.argv[1], time_limit=100) as worker:
    worker.run(call)
"""


@sweep("number", [signal.SIGKILL], [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_parent(rogue: Rogue, tmp_path: Path, number: signal.Signals) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PACKPROOF_ROGUE_FILE": str(tmp_path / "pid")}
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, rogue("hangs_and_records_where")],
        env=environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    pid = _content(tmp_path / "pid", 60)
    os.killpg(parent.pid, number)  # as a terminal does on Ctrl-C
    _, errors = parent.communicate(timeout=20)
    assert errors.count(b"Traceback") == (1 if number == signal.SIGINT else 0)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


def _content(file: Path, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return file.read_text()


@pytest.mark.usefixtures("no_zygote")
def test_a_zygote_that_cannot_start_reports_the_reason(make_call: Make, rogue: Rogue, tmp_path: Path) -> None:
    (tmp_path / "safetensors.py").write_text("raise ImportError('a broken installation')\n")
    refused = pytest.raises(PackproofError, match="a broken installation")
    with imports_of(tmp_path), Worker(rogue("good")) as worker, refused:
        worker.run(make_call(2))
