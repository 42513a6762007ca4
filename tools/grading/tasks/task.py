"""A task: a contract, its reference, a correct and an incorrect solution, all made of a row of the table."""

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Literal

from packproof import museum
from packproof.base.errors import UsageError
from packproof.base.names import require_known
from packproof.grading.tasks.table import ROWS, TaskRow
from packproof.properties.contracts import Contract, ContractFile, contract_text
from packproof.properties.ops import OPS

Level = Literal["easy", "medium", "hard"]

_MUSEUM = "packproof.museum"
_DTYPES: Mapping[str, tuple[Literal["fp32", "bf16", "fp16"], ...]] = {
    "easy": ("fp32",),
    "medium": ("fp32", "bf16"),
    "hard": ("fp32", "bf16", "fp16"),
}
_DOMAIN = ("tokens <= 131072", "sequences <= 4096")  # past them a correct loop over sequences is too slow to be judged


@dataclass(frozen=True)
class GradingTask:
    """A packed problem."""

    name: str
    """Op, pass and level: "ssd-backward-hard"."""
    op: str
    gradients: bool
    """Whether gradients are asked for."""
    level: str
    """How much is asked for.
    - easy: fp32, and required inputs alone;
    - medium: bf16, too, and all inputs and options of the correct solution;
    - hard: fp16, too, and the same bits in each call.
    """
    right: str
    """A correct solution, as "module:function"."""
    wrong: str
    """An incorrect one."""

    @property
    def reference(self) -> str:
        """The op's reference, as "module:function"."""
        return f"{OPS[self.op].reference.__module__}:{OPS[self.op].reference.__name__}"

    @property
    def contract(self) -> Contract:
        """Its terms: in the usual error budget of the op."""
        usual = Contract.for_op(OPS[self.op])
        promises = replace(usual.promises, deterministic=self.level == "hard")
        takes = () if self.level == "easy" else self._arguments_of_right
        return replace(
            usual,
            takes=takes,
            domain=_DOMAIN,
            gradients=self.gradients,
            dtypes=_DTYPES[self.level],
            promises=promises,
            profile="quick",
        )

    @property
    def contract_file(self) -> ContractFile:
        """The contract as if of a file."""
        digest = hashlib.sha256(contract_text(self.contract).encode()).hexdigest()
        return ContractFile(f"task {self.name}", digest, self.contract)

    @property
    def _arguments_of_right(self) -> tuple[str, ...]:
        """The optional inputs and options of the correct solution."""
        module, _, name = self.right.partition(":")
        op, parameters = OPS[self.op], inspect.signature(getattr(import_module(module), name)).parameters
        optional = [name for name, spec in op.inputs.items() if spec.endswith("?")]
        return tuple(name for name in (*optional, *op.options) if name in parameters)


@cache
def tasks() -> Mapping[str, GradingTask]:
    """All tasks, by name."""
    made = [task for row in ROWS for task in _tasks_of(row)]
    return {task.name: task for task in made}


def task_of(name: str) -> GradingTask:
    """The task of this name. Raises UsageError with the nearest one."""
    return tasks()[require_known("task", name, tasks(), "packproof grade --tasks")]


def terms_of_grade(contract: ContractFile | None, task: str | None) -> ContractFile:
    """The contract of a grade: its own, or that of a task. Raises UsageError for both or none of them."""
    if (contract is None) == (task is None):
        raise UsageError("contract: a grade has either a contract or the name of a task")
    return contract or task_of(str(task)).contract_file


def task_lines(name: str | None = None) -> Iterator[str]:
    """One line for each task; of a single one its solutions and its contract."""
    if name is None:
        yield from (f"{task.name:<44} {task.reference}" for task in tasks().values())
        return
    task = task_of(name)
    yield f"reference  {task.reference}"
    yield f"right      {task.right}"
    yield f"wrong      {task.wrong}"
    yield contract_text(task.contract).rstrip()


def _tasks_of(row: TaskRow) -> list[GradingTask]:
    entries, right = museum.entries(), f"{_MUSEUM}.{row.right}"
    passes = {"forward": row.wrong_forward, "backward": row.wrong_backward}
    return [
        GradingTask(f"{row.op}-{name}-{level}", row.op, name == "backward", level, right, entries[wrong].kernel)
        for name, wrong in passes.items()
        if wrong
        for level in row.levels
    ]
