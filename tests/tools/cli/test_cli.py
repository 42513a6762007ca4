"""The command line: exit codes, and one line for a wrong call, with a fake engine where the real one is not needed."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from packproof.base.errors import UsageError
from packproof.base.signatures import SIGNATURES
from packproof.cli import main
from packproof.cli.ending import follow
from packproof.cli.printing import print_safely
from packproof.harness.check.replay import ReplayOutcome
from packproof.harness.check.request import CheckRequest
from packproof.harness.process.start.exit import exit_at_once
from packproof.harness.report.events import Cell, CellFinished, Event, Failure, RunFinished, RunStarted, Verdict
from tests.in_process import environment
from tests.tools.cli.test_light import FILE as REPLAY_FILE

HERE = "packproof.refs:rope"
CELL = Cell("rope", "my_kernels:rope", "packing", "float32", "cpu")
PASSED = Verdict(CELL, "eager", "passed", 10, 0.1)
SKIPPED = Verdict(CELL, "eager", "skipped", 0, 0.0, reason="refused")
FAILED = Verdict(CELL, "eager", "failed", 1, 0.1, failure=Failure((1, 1), "y", ("wrong",), 1, 2))


class Engine:
    """A fake run_check: keeps the request and replays a script; exceptions in it are raised."""

    def __init__(self, *script: Event | BaseException) -> None:
        self.script = script
        self.request = CheckRequest()

    def __call__(self, request: CheckRequest) -> Iterator[Event]:
        self.request = request
        for step in self.script:
            if isinstance(step, BaseException):
                raise step
            yield step


def ended(*verdicts: Verdict, interrupted: bool = False) -> Engine:
    finished = [CellFinished(verdict) for verdict in verdicts]
    return Engine(RunStarted((CELL,), "quick", 0), *finished, RunFinished(verdicts, 0.1, interrupted))


@pytest.fixture
def play(fake_check: Callable[[Engine], None]) -> object:
    def install(engine: Engine, *arguments: str) -> int:
        fake_check(engine)
        return main.run(["check", *arguments])

    return install


@pytest.mark.parametrize(
    ("engine", "code"),
    [
        (ended(PASSED), 0),
        (ended(PASSED, SKIPPED), 0),
        (ended(PASSED, FAILED), 1),
        (ended(SKIPPED), 2),
        (Engine(UsageError("no such thing")), 2),
        (Engine(RuntimeError("oops")), 3),
        (Engine(RunStarted((CELL,), "quick", 0), CellFinished(FAILED), RuntimeError("oops")), 1),
        (Engine(RunStarted((CELL,), "quick", 0)), 3),
        (ended(PASSED, interrupted=True), 130),
        (ended(FAILED, interrupted=True), 1),
        (Engine(RunStarted((CELL,), "quick", 0), CellFinished(PASSED), KeyboardInterrupt()), 130),
    ],
    ids=[
        "passed",
        "passed and skipped",
        "failed",
        "nothing judged",
        "wrong call",
        "own fault at once",
        "own fault later",
        "stream breaks off",
        "interrupted",
        "failed, then interrupted",
        "Ctrl-C in between",
    ],
)
def test_exit_codes(play, engine: Engine, code: int) -> None:
    assert play(engine) == code


def test_the_request(play) -> None:
    engine = ended(PASSED)
    line = (
        "m:f --op ssd --device cpu --dtype bf16,float32 --dtype fp64 --property packing,carry --profile quick --seed 3"
    )
    assert play(engine, *line.split(), "--timeout", "2.5", "--forward-only") == 0
    assert engine.request == CheckRequest(
        target="m:f",
        op="ssd",
        device="cpu",
        dtypes=("bfloat16", "float32", "float64"),
        properties=("packing", "carry"),
        profile="quick",
        seed=3,
        timeout=2.5,
        forward_only=True,
    )


def test_what_was_found_before_an_interrupt_is_written(play, tmp_path: Path) -> None:
    engine = Engine(RunStarted((CELL,), "quick", 0), CellFinished(PASSED), KeyboardInterrupt())
    assert play(engine, "--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml")) == 130
    document = json.loads((tmp_path / "r.json").read_text())
    assert (document["verdict"], len(document["results"])) == ("error", 1)
    assert 'name="packing-fp32"' in (tmp_path / "r.xml").read_text()


def test_ctrl_c_between_two_events_ends_the_run_with_what_it_found() -> None:
    def run() -> Iterator[Event]:
        try:
            yield RunStarted((CELL,), "quick", 0)
        except KeyboardInterrupt:
            yield RunFinished((FAILED,), 0.1, interrupted=True)

    def press(event: Event) -> None:
        if isinstance(event, RunStarted):
            raise KeyboardInterrupt

    end = follow(run(), [press])
    assert (end.verdicts, end.interrupted) == ((FAILED,), True)


SLOW = """
import time

def rope(x, cos, sin, *, cu_seqlens):
    print("called")
    time.sleep(1 if len(x) < 8 else 100)
    return x
"""


def test_a_run_that_is_ended_writes_what_it_found(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "packproof", "check", "slow.py:rope", "--op", "rope", "--dtype", "fp32,bf16"]
    command += ["--device", "cpu", "--json", "r.json", "--timeout", "200"]
    shell = ["sh", "-c", '"$@" & trap "kill -TERM $!; kill -TERM $!; wait $!" TERM; wait $!', "sh", *command]
    with subprocess.Popen(shell, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True) as run:
        assert run.stdout is not None
        next(line for line in run.stdout if line.startswith("failing "))
        os.killpg(run.pid, signal.SIGTERM)  # to every process of the job, and to its command twice, as `timeout` does
        run.communicate(timeout=30)
    document = json.loads((tmp_path / "r.json").read_text())
    assert (document["finished"], document["verdict"]) == (False, "failed")
    assert "killed" not in str(document)


def test_a_bug_of_packproof_is_reported(play, capsys: pytest.CaptureFixture[str]) -> None:
    play(Engine(RunStarted((CELL,), "quick", 0), CellFinished(FAILED), RuntimeError("oops\nsecond line")))
    out, err = capsys.readouterr()
    assert "FAILED  packing (y)" in out
    assert "packproof itself failed: RuntimeError: oops: 1 failed; 0 of 1 example judged" in out
    assert "Traceback" in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            f"check {HERE} --op rop",
            f"no op is called 'rop'; did you mean rope? there are {len(SIGNATURES)}, from causal_conv1d to",
        ),
        (f"check {HERE} --op rope --dtype fp23", "no dtype is called 'fp23'"),
        (
            f"check {HERE} --op rope --property packin",
            "no property is called 'packin'; did you mean packing? there are: reference,",
        ),
        (f"check {HERE} --op rope --profile fast", "no profile is called 'fast'; there are: quick, standard, thorough"),
        (f"check {HERE} --op rope --device gpu", "no device is called 'gpu'; did you mean cuda? there are: cpu, cuda"),
        (
            f"check {HERE} --op rope --dtype half",
            "no dtype is called 'half'; did you mean fp16? there are: fp64, fp32,",
        ),
        ("check no_such_module:f --op rope", "no_such_module"),
        (f"check {HERE}e --op rope", "packproof.refs has no ropee"),
        ("check --seed x", "Invalid value for '--seed'"),
        (
            "check --json no/where/r.json",
            "--json: the folder no/where of no/where/r.json does not exist; create it first",
        ),
        ("judge m:f", "No such command 'judge'"),
        ("replay no/such/file.json", "no/such/file.json: No such file or directory"),
    ],
)
def test_a_wrong_call_gets_one_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main.run([*line.split(), "--device", "cpu"] if line.startswith(f"check {HERE} --op rop ") else line.split())
        == 2
    )
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("packproof: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("status", "verdict", "code"), [("fixed", PASSED, 0), ("failing", FAILED, 1), ("not applicable", SKIPPED, 2)]
)
def test_replay(
    status: str,
    verdict: Verdict,
    code: int,
    working_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def replayed(path: str, *, target: str | None, maps: bool) -> ReplayOutcome:
        return ReplayOutcome(status, f"{path} {target} {status}", verdict)  # type: ignore[arg-type]

    monkeypatch.setattr("packproof.models.replay", replayed)
    (working_folder / "r.json").write_text(json.dumps(REPLAY_FILE))
    assert main.run(["replay", "r.json", "--target", "m:f"]) == code
    assert capsys.readouterr().out == f"r.json m:f {status}\n"


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["list"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"  rope +x\[t h k\], cos\[m r\], sin\[m r\], offsets\[s\?\] -> y\[t h k\]\n", out)
    assert "  packproof.kernels.rope:rope" in out
    assert re.search(r"\n  packing +A sequence computes in the pack what it computes alone", out)


HELPS = (
    *("", "check", "peers", "replay", "diff", "bench", "bench kernels", "bench packing", "bench stack", "bench ranks"),
    *("bench fp8", "table", "proof", "mutate", "list", "museum", "museum run", "museum rogues", "model", "models"),
)


@pytest.mark.parametrize("command", HELPS)
def test_every_command_has_the_short_option_for_help_which_fits_a_terminal(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with environment(COLUMNS="80"):
        assert main.run([*command.split(), "-h"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: packproof {command}".rstrip())
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_dtypes_have_the_names_of_torch_too(play) -> None:
    engine = ended(PASSED)
    assert play(engine, "m:f", "--op", "rope", "--dtype", "torch.bfloat16,float32,fp16", "--device", "cpu") == 0
    assert engine.request.dtypes == ("bfloat16", "float32", "float16")


def test_help_has_examples_and_exit_codes() -> None:
    runner = CliRunner()
    assert "packproof check my_kernels:conv --op causal_conv1d" in runner.invoke(main.app, ["check", "--help"]).output
    assert "0 every property held, 1 a property failed" in runner.invoke(main.app, ["--help"]).output.replace(
        "\n  ", " "
    )


def onto(*descriptors: int, where: str) -> None:
    """Redirect these descriptors, as a shell does before a command."""
    if where == "closed":
        for descriptor in descriptors:
            os.close(descriptor)
        return
    reader, target = os.pipe() if where == "pipe" else (-1, os.open(where, os.O_WRONLY))
    for descriptor in descriptors:
        os.dup2(target, descriptor)
    os.close(target)
    if reader >= 0:
        os.close(reader)


def exit_code_of_a_command(prepare: Callable[[], None], encoding: str) -> int:
    """The exit code of `packproof check` in a process prepared this way."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            prepare()
            for name, number in (("stdout", 1), ("stderr", 2)):
                try:
                    setattr(sys, name, open(number, "w", encoding=encoding, closefd=False))  # noqa: SIM115
                except OSError:
                    setattr(sys, name, None)
            print_safely()
            exit_at_once(main.run(["check"]))
        except SystemExit as end:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            code = int(end.code or 0)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


STREAMS, ENCODINGS = ((1,), (2,), (1, 2)), ("utf-8", "ascii", "latin-1")


@pytest.mark.parametrize(
    ("where", "descriptors", "encoding"),
    [
        (where, descriptors, ENCODINGS[(k + n) % 3])
        for k, where in enumerate(("/dev/full", "/dev/null", "closed", "pipe"))
        for n, descriptors in enumerate(STREAMS)
        if (k + n) % 2 == 0
    ],
)
def test_an_exit_code_does_not_depend_on_what_can_be_printed(
    fake_check: Callable[[Engine], None], where: str, descriptors: tuple[int, ...], encoding: str
) -> None:
    for engine, code in ((ended(PASSED), 0), (ended(FAILED), 1), (Engine(RuntimeError("\u00e9\ud800")), 3)):
        fake_check(engine)
        assert exit_code_of_a_command(partial(onto, *descriptors, where=where), encoding) == code


def test_a_full_output_is_reported_once(capfd: pytest.CaptureFixture[str]) -> None:
    pid = os.fork()
    if pid == 0:
        onto(1, where="/dev/full")
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        print_safely()
        print("one", flush=True)
        print("two", flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    assert capfd.readouterr().err == "packproof: some of this output could not be printed: No space left on device\n"


@pytest.mark.parametrize(("engine", "code"), [(ended(PASSED), 2), (ended(FAILED), 1)])
def test_a_report_that_cannot_be_written_does_not_stop_the_others(
    play, tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: Engine, code: int
) -> None:
    file = tmp_path / "r.xml"
    assert play(engine, "--json", "/dev/full", "--junit", str(file)) == code
    assert "packproof: a report could not be written: [Errno 28] No space left on device: '/dev/full'" in (
        capsys.readouterr().err
    )
    assert 'tests="1"' in file.read_text()


PRESSED = """
import sys, types
from packproof.__main__ import main

class Pressed(types.ModuleType):
    def __getattr__(self, name):
        raise KeyboardInterrupt

sys.modules["packproof.cli.main"] = Pressed("main")
main()
"""


def test_ctrl_c_while_it_starts_is_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", PRESSED, "list"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "packproof: interrupted\n")
