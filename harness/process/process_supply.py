"""The processes of one kernel, started one after another, and the zygotes that fork them."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from packproof.base.errors import BrokenInstallation, KernelFault, UsageError
from packproof.harness.process.child import ZygoteLostError
from packproof.harness.process.kernel_process import DisplacedError, KernelProcess
from packproof.harness.process.memory_wait import MemoryWait, ProcessKilled
from packproof.harness.process.naming.location import Location, require_no_import
from packproof.harness.process.privilege import concealment
from packproof.harness.process.zygote_client import (
    ZygoteClient,
    discard,
    fork_zygote,
    import_path,
    shared_zygote,
    spawn_zygote,
    working_directory,
)

_MAX_STARTS = 3  # of processes that are killed before their first frame


class ProcessSupply:
    """Starts the processes of one kernel.

    target: as for `Worker`.
    device: the device of the calls.
    draw_configs: see `tuning.draw_configurations`.
    """

    spare: KernelProcess | None
    """A process that imports the target and checks the device, and then waits for calls."""

    def __init__(self, target: str | Callable[..., Any], device: str, *, draw_configs: bool) -> None:
        require_no_import()
        self._name = target if isinstance(target, str) else getattr(target, "__qualname__", repr(target))
        self._location = Location.parse(target) if isinstance(target, str) else Location.from_function(target)
        self._function = target if self._location is None and callable(target) else None
        if self._function and device != "cpu":
            raise UsageError(
                f"{self._name} cannot be imported by name, so it cannot run on {device}: put it at the top level "
                "of a module and name it as package.module:function or path/file.py:function"
            )
        self._device, self._draw_configs = device, draw_configs
        self.spare = None
        self._is_displaced = False  # this process's working directory cannot be entered
        self._concealment = ExitStack()  # of this process, while a kernel's process may exist
        self._own_zygote: ZygoteClient | None = None
        self._shares_zygote = self._function is None  # until one is lost: another kernel may have ended that

    def start_spare(self, *, warm: bool = True) -> None:
        """Start a spare process unless there is one, without waiting for it."""
        if self.spare is None:
            self.spare = self._start(warm=warm)

    def take(self, *, warm: bool) -> KernelProcess:
        """A process that has imported the kernel: the spare or a new one. Raises UsageError with the reason on failure.

        It starts up to three processes: an earlier kernel, or one of another worker, may have killed the first two.
        Where the system lacks memory it waits for some. Raises OutOfMemory if there is none in time.
        """
        wait = MemoryWait()
        for n_remaining in reversed(range(_MAX_STARTS)):
            try:
                return wait.repeat(lambda: self._take_once(warm=warm))
            except ZygoteLostError as lost:
                if not lost.was_killed:
                    raise BrokenInstallation(str(lost)) from lost
                if not n_remaining:
                    raise
            except ProcessKilled as fault:
                if not n_remaining:
                    raise UsageError(f"{self._name} cannot be imported: its process {fault}") from fault
        raise AssertionError

    def _take_once(self, *, warm: bool) -> KernelProcess:
        self.start_spare(warm=warm)
        assert self.spare is not None
        process, self.spare = self.spare, None
        try:
            process.await_import()
        except ZygoteLostError:
            self._forget_zygote(process)
            raise
        except DisplacedError:
            if self._is_displaced:
                raise
            self._is_displaced = True
            return self._take_once(warm=warm)
        return process

    def _start(self, *, warm: bool) -> KernelProcess:
        order = {
            "location": self._location and [self._location.module, self._location.file, self._location.qualname],
            "device": self._device,
            "warm": warm,
            "draw_configs": self._draw_configs,
            "sys_path": import_path(),
            "cwd": "" if self._is_displaced else working_directory(),
        }
        with self._concealment.pop_all():  # ends once the next one has begun
            self._concealment.enter_context(concealment())
        return KernelProcess(self._zygote(), self._name, order)

    def _zygote(self) -> ZygoteClient:
        interpreted = self._device == "cpu"
        if self._shares_zygote:
            return shared_zygote(interpreted=interpreted)
        if self._own_zygote is None:
            self._own_zygote = fork_zygote(self._function) if self._function else spawn_zygote(interpreted=interpreted)
        return self._own_zygote

    def replace_zygote(self, process: KernelProcess) -> KernelFault:
        """Fork the next process from another zygote: the one of this process was lost during a call.

        Returns the fault of the call. It is ProcessKilled, after which the call is repeated, if the zygote may have
        ended for another reason than this kernel.
        """
        self._forget_zygote(process)
        # another kernel may have ended a shared zygote, or one forked from this process for a function
        is_blame_uncertain = self._shares_zygote or self._function is not None
        self._shares_zygote = False
        text = "ended the process that had started it"
        return ProcessKilled(text) if is_blame_uncertain else KernelFault("killed", text)

    def _forget_zygote(self, process: KernelProcess) -> None:
        discard(process.zygote)
        self._own_zygote = None
        self._end_spare()  # it ended with the zygote

    def _end_spare(self) -> None:
        if self.spare is not None:
            self.spare.end()
            self.spare = None

    def close(self) -> None:
        """End the spare, and the zygote unless it is shared."""
        self._end_spare()
        if self._own_zygote is not None:
            self._own_zygote.close()
            self._own_zygote = None
        self._concealment.close()
