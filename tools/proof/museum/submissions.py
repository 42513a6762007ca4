"""Kernels as they are handed in to a judge: correct, wrong and hostile ones, with the exit codes that each may get."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from packproof.museum import controls, entries
from packproof.museum.rogues import Rogue
from packproof.museum.rogues import entries as rogue_entries

_RUNNING_SUM = "packproof.proof.museum.rogues:RUNNING_SUM"
_QUICK_OPS = ("causal_conv1d", "rope", "rope_qk")
_FOR_ALL = ("reference", "packing")  # what every kernel is held to, whatever it promises
_HUNGRY = "packproof.proof.museum.hungry_kernels"
_REPORTED = "computed by: "  # a finding in the report, which decides nothing without --only-own-kernels
_PASS, _FAILURE, _WRONG_CALL, INCONCLUSIVE = 0, 1, 2, 4

Kind = Literal["correct", "wrong", "rogue", "hungry"]


@dataclass(frozen=True)
class Submission:
    """One check of a kernel."""

    name: str
    kind: Kind
    target: str
    op: str
    properties: tuple[str, ...]
    exit_codes: tuple[int, ...]
    """Those of its check that are right."""

    def options(self) -> list[str]:
        """The options of `packproof check`."""
        properties = [word for name in self.properties for word in ("--property", name)]
        return [self.target, "--op", self.op, "--dtype", "fp32", "--profile", "quick", *properties]


def submissions(seed: int) -> Iterator[Submission]:
    """Submissions without end, kind after kind; which of a kind, this seed decides."""
    generator = random.Random(seed)
    kinds = [*(_correct(), _wrong(), _rogues()) * 8, _hungry()]  # a hungry one takes a minute
    while True:
        for kind in kinds:
            yield generator.choice(kind)


def _correct() -> list[Submission]:
    """Those that need no wider budget than the usual one, and no longer than others."""
    return [
        Submission(c.id, "correct", c.kernel, c.op, _FOR_ALL, (_PASS,))
        for c in controls().values()
        if c.op in _QUICK_OPS and not {"cumsum", "state_entry"} & {*c.promises}
    ]


def _wrong() -> list[Submission]:
    return [
        Submission(e.id, "wrong", e.kernel, e.op, e.properties[:1], (_FAILURE,))
        for e in entries().values()
        if e.op in _QUICK_OPS
        and e.properties[0] in _FOR_ALL
        and e.dtype == "float32"
        and e.gradients
        and not e.needs_gpu
    ]


def _rogues() -> list[Submission]:
    """Those whose values are correct may pass: what they do to others is seen around them, or the report has it."""
    any_code = (_PASS, _FAILURE, _WRONG_CALL, INCONCLUSIVE)
    return [
        Submission(r.id, "rogue", r.kernel, _RUNNING_SUM, r.properties, any_code if _may_pass(r) else any_code[1:])
        for r in rogue_entries().values()
        if r.op == "running_sum" and r.kind != "model" and r.contract is None
    ]


def _may_pass(rogue: Rogue) -> bool:
    return bool(rogue.harms or rogue.undefended or rogue.detected.startswith(_REPORTED))


def _hungry() -> list[Submission]:
    names = ("takes_all_memory", "starts_all_processes", "starts_all_sessions")
    return [
        Submission(name, "hungry", f"{_HUNGRY}:{name}", _RUNNING_SUM, ("reference",), (_FAILURE, INCONCLUSIVE))
        for name in names
    ]
