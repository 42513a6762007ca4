"""The worker process: isolates itself, imports the function under test, and answers calls until it is dropped."""

import faulthandler
import importlib
import os
import resource
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from os import P_ALL, WEXITED, WNOHANG, WNOWAIT, getpid, waitid  # the originals: a kernel may change the module's
from typing import Any

import torch

from packproof.base.errors import KernelFault, MissingWallError, UsageError
from packproof.base.importing import one_line_reason
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.process.execution.fork import Fork, start_fork
from packproof.harness.process.execution.torch_state import TorchState
from packproof.harness.process.naming.location import Location
from packproof.harness.process.privilege import adopt_orphans, child_pids
from packproof.harness.process.start.imports import fast_imports
from packproof.harness.process.walls.catalogue import WALLS, probe_walls, require_walls
from packproof.harness.process.walls.enclosure import Enclosure
from packproof.harness.process.wire import READ_BYTES, Decoder, Frame, decode_call, encode, refusal_frame, result_frame
from packproof.interpreter import draw_configurations, misfit
from packproof.parallel.rank_process import RankProcesses
from packproof.properties.calling import MachineLimit, Refusal
from packproof.properties.declarations import describe_kernel

# helpers of multiprocessing and torch.compile: they run until their process ends
_HELPERS = ("multiprocessing.resource_tracker", "torch/_inductor/compile_worker")
CHANNEL_LOST = 120  # exit code of a worker that lost its parent


def run_worker(
    order: Mapping[str, Any],
    function: Callable[..., Any] | None,
    snapshot: TorchState,
    enclosure: Enclosure,
    *,
    channel: socket.socket,
    output: int,
) -> int:
    """Be a worker, in a process just forked from a zygote. Returns its exit code.

    order: a mapping with these keys.
        location     the fields of Location, or None for `function`
        device       the device of the calls
        warm         whether to create the device's context
        draw_configs see `tuning.draw_configurations`
        sys_path     the value of sys.path
        cwd          the working directory
        environment  changes of the environment; None removes a name
        magic        of the frames accepted by the parent, in hexadecimal
        judge        the `judge_identity` of the parent
        program      absent for a worker of a kernel: else the module whose `run(order, function, channel)` is called
                     in its place. Of the other keys it has sys_path, cwd, environment, magic and its own.
    function: the function of a worker without a location.
    snapshot: torch's functions before the kernel is imported.
    enclosure: the walls around the kernel.
    channel: the socket for frames.
    output: the descriptor to print into.
    """
    _isolate(output)
    sys.path[:] = order["sys_path"]
    _change_environment(order["environment"])
    torch.set_num_threads(1)
    enclosure.enter(str(order.get("program") or order["location"]))
    if "program" in order:
        run: Callable[..., int] = importlib.import_module(order["program"]).run
        return run(order, function, channel)
    return _serve(order, function, snapshot, enclosure, channel)


def _change_environment(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _isolate(output: int) -> None:
    """Isolate this process: own group, no core dump, no terminal, and a traceback if it crashes.

    It adopts the orphans of its children.
    """
    os.setsid()
    adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    redirect_output(output)
    os.close(output)
    faulthandler.enable(file=2, all_threads=False)


def redirect_output(descriptor: int) -> None:
    """Redirect all output of this process to the descriptor, and close its input."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((null, 0), (descriptor, 1), (descriptor, 2)):
        os.dup2(source, number)
    os.close(null)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def import_compiler() -> None:
    """Import the modules of torch.compile's first call.

    The timing of its guards is switched off: for one line in a log, each compilation would flush the processor's
    caches.
    """
    with fast_imports():
        importlib.import_module("torch._functorch.aot_autograd")
        guards = importlib.import_module("torch._dynamo.guards")
    if hasattr(guards, "profile_guard_manager"):  # no public name
        guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]


def _serve(
    order: Mapping[str, Any],
    function: Callable[..., Any] | None,
    snapshot: TorchState,
    enclosure: Enclosure,
    channel: socket.socket,
) -> int:
    """Report the walls, import the target, report readiness, answer calls. Returns the exit code."""
    magic = bytes.fromhex(order["magic"])
    channel.sendall(encode(Frame("begun"), magic))
    try:
        os.chdir(order["cwd"])
        walls = _tried_walls(enclosure, order["judge"])
    except OSError as error:  # another kernel may just have deleted it
        text = f"the working directory {order['cwd']} cannot be entered: {error.strerror}"
        channel.sendall(encode(Frame("displaced", body={"text": text}), magic))
        return 0
    except MissingWallError as error:
        channel.sendall(encode(Frame("unwalled", body={"text": str(error)}), magic))
        return 0
    check = snapshot.checker  # read before the kernel's module runs
    forks: list[None] = []
    os.register_at_fork(after_in_parent=lambda: forks.append(None), after_in_child=channel.close)
    try:
        if order["draw_configs"]:
            draw_configurations(order["device"])
        if order["location"] is not None:
            function = Location(*order["location"]).load()
        else:
            _require_autograd()
        assert function is not None
        import_fault_answer = _import_fault_answer(check)
        runner = InProcess(function, order["device"], snapshot)
        runner.create_context() if order["warm"] else runner.require_device()
        hello = Frame("ready", body={**describe_kernel(function), "misfit": misfit(), "walls": walls})
    except (UsageError, MachineLimit) as error:
        hello = Frame("crowded" if isinstance(error, MachineLimit) else "unusable", body={"text": str(error)})
    own_pid = getpid()
    if order["device"] == "cpu":
        _repeat_ranks_apart(forks)
    decoder = Decoder(magic)
    initial_children = set(child_pids())
    try:
        channel.sendall(encode(hello, magic))
        while frame := _next_frame(channel, decoder):
            forks.clear()
            answer = (
                import_fault_answer(frame)
                if import_fault_answer
                else _answer(runner, check, frame, forks, initial_children)
            )
            if getpid() != own_pid:  # this is a child forked by the kernel, which returned here
                return 0
            channel.sendall(encode(answer, magic))
    except OSError:
        return CHANNEL_LOST
    return 0


def _tried_walls(enclosure: Enclosure, judge: Mapping[str, Any]) -> dict[str, bool]:
    """The walls and whether they hold. Raises MissingWallError if one does not and all are required."""
    if enclosure.isolation == "none":
        return dict.fromkeys((wall.name for wall in WALLS), False)
    states = probe_walls(judge)
    if enclosure.isolation == "required":
        require_walls(states)
    return states


def _repeat_ranks_apart(forks: list[None]) -> None:
    """Let simulated ranks run in processes of their own too. A GPU survives no fork: there they share this process.

    forks: an entry for each fork of this process; these leave none.
    """

    def start(function: Callable[[], None]) -> Fork:
        fork = start_fork(function)
        forks.pop()
        return fork

    RankProcesses.start_fork = start


def _import_fault_answer(check: Callable[[], None]) -> Callable[[Frame], Frame] | None:
    """The answer to every call if the kernel's module replaced functions at import; else None."""
    try:
        check()
    except KernelFault as fault:
        answer = refusal_frame(fault, 0)
        return lambda frame: replace(answer, number=frame.number)
    return None


def _require_autograd() -> None:
    """Raises UsageError if the parent's autograd had threads, as beside a GPU: no fork survives that."""
    leaf = torch.ones((), requires_grad=True)
    try:
        torch.autograd.grad(leaf * 1, leaf)
    except RuntimeError as error:
        raise UsageError(
            "a function that cannot be imported by name runs in a fork of this process, and this process has already "
            "used autograd beside a GPU, which no fork survives: put the function at top level of a module and name "
            "it as package.module:function or path/file.py:function"
        ) from error


def _next_frame(channel: socket.socket, decoder: Decoder) -> Frame | None:
    """The next call, or None after the parent has hung up."""
    while (frame := decoder.take()) is None:
        data = channel.recv(READ_BYTES)
        if not data:
            return None
        decoder.feed(data)
    return frame


def _answer(
    runner: InProcess, check: Callable[[], None], frame: Frame, forks: list[None], initial_children: set[int]
) -> Frame:
    try:
        call = decode_call(frame)
        if call.mode == "compiled":
            import_compiler()
        result = runner.run(call)
        if forks:
            raise KernelFault("malformed", "forked a child process; a kernel computes in the process that called it")
        if commands := list(_leftover_commands(initial_children)):
            raise KernelFault("malformed", f"left processes running: {', '.join(commands[:3])}")
        return result_frame(result, frame.number)
    except (KernelFault, Refusal) as error:
        return refusal_frame(error, frame.number)
    except Exception:
        return _internal_error_answer(check, frame)
    except BaseException as error:  # of the kernel: no Ctrl-C reaches this process
        return refusal_frame(KernelFault("raised", one_line_reason(error)), frame.number)


def _leftover_commands(initial_children: set[int]) -> Iterator[str]:
    """The command lines of processes started by the call and still running."""
    try:
        waitid(P_ALL, 0, WEXITED | WNOHANG | WNOWAIT)
    except ChildProcessError:
        return  # no children: the usual case, and a cheap test
    for pid in set(child_pids()) - initial_children:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        if command and not any(helper in command for helper in _HELPERS):  # a zombie has no command line
            yield command[:80]


def _internal_error_answer(check: Callable[[], None], frame: Frame) -> Frame:
    """The answer after an error in packproof's own code: a fault if the kernel replaced a function, else "broken"."""
    try:
        check()
    except KernelFault as error:
        return refusal_frame(error, frame.number)
    return Frame("broken", frame.number, {"text": traceback.format_exc()})
