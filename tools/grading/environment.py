"""packproof's tasks as an environment of `verifiers` (0.4 or newer), an optional dependency.

The taskset has a task for each packed problem; its reward is that of a grade. `verifiers` finds it by the name of this
module.
"""

from collections.abc import Iterator

import verifiers.v1 as vf

from packproof.grading.many.job import GradeOptions
from packproof.grading.replies import graded_reply, prompt_of
from packproof.grading.tasks.task import task_of, tasks

__all__ = ["PackedKernelTaskset"]


class PackedKernelData(vf.TaskData):  # type: ignore[misc]
    """One problem."""

    task: str
    """Its name, as `packproof grade --tasks` lists it."""


class PackedKernelConfig(vf.TaskConfig):  # type: ignore[misc]
    """How replies are graded; the fields of `GradeOptions`."""

    device: str | None = None
    secret: str | None = None
    timed: bool = True
    isolate: bool = True


class PackedKernelTask(vf.Task[PackedKernelData, vf.State, PackedKernelConfig]):  # type: ignore[misc]
    """A problem with the reward of its grade."""

    @vf.reward  # type: ignore[untyped-decorator]
    async def graded(self, trace: vf.Trace) -> float:
        """The reward of `packproof grade` for the last reply; 0 without code. Raises PackproofError if unjudged."""
        config = self.config
        options = GradeOptions(config.device, config.secret, timed=config.timed, isolate=config.isolate)
        document = await graded_reply(task_of(self.data.task), trace.last_reply, options)
        return 0.0 if document is None else float(document["measured"]["reward"])


class PackedKernelSetConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Which problems there are."""

    task: PackedKernelConfig = PackedKernelConfig()
    level: str | None = None
    """easy, medium or hard; None for all."""


class PackedKernelTaskset(vf.Taskset[PackedKernelTask, PackedKernelSetConfig]):  # type: ignore[misc]
    """packproof's problems."""

    def load(self) -> Iterator[PackedKernelTask]:
        """The tasks, in the order of `packproof grade --tasks`."""
        for task in tasks().values():
            if self.config.level in (None, task.level):
                data = PackedKernelData(name=task.name, task=task.name, prompt=prompt_of(task))
                yield PackedKernelTask(data, self.config.task)
