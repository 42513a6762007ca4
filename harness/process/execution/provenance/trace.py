"""Who computes a call: the launches and the operators of torch, forward and backward, each with the line that called
it.

A dispatch mode sees the operators, also those of autograd's threads and inside of an operator that is registered with
torch. It sees none of other threads, of numpy or of a compiled extension; `departures` sees what leaves for the first
two.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from packproof.base.light_torch import DispatchMode
from packproof.base.provenance.computed import Computed, Computer, Pass
from packproof.harness.process.execution.provenance.arithmetic import TORCH_NAMESPACES, computes, has_floats
from packproof.harness.process.execution.provenance.departures import Departures
from packproof.harness.process.execution.provenance.integers import Integers
from packproof.harness.process.execution.provenance.launches import watch_launches
from packproof.harness.process.execution.provenance.ownership import Ownership

_SUM = "aten::add"  # with which autograd adds the gradients of a tensor that is used twice


class Trace(DispatchMode):
    """Records who computes while it is entered."""

    supports_higher_order_operators = True

    def __init__(self, ownership: Ownership) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ownership = ownership
        self._items: dict[Computed, None] = {}
        self._integers = Integers()
        self._n_records = 0  # with repetitions
        self.during: Pass = "forward"

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @property
    def computed(self) -> tuple[Computed, ...]:
        """What was recorded: launches first, each kernel and operator once for a line and a pass."""
        return tuple(sorted(self._items, key=lambda item: not item.is_launch))

    @contextmanager
    def watch(self, during: Pass) -> Iterator[None]:
        """Record a pass."""
        self.during = during
        departures = Departures(self._ownership, lambda name: self._record_operator("outside", name))
        with watch_launches(self._record_launch), departures.watch(), self:
            yield

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(op, torch._ops.OpOverload):
            return op(*args, **kwargs)
        if op.namespace not in TORCH_NAMESPACES:
            return self._run_registered(op, args, kwargs)
        if computes(op, args, kwargs) or self._integers.compute(op, args, kwargs):
            self._record_operator("torch", f"{op.namespace}::{op.overloadpacket.__name__}")
        result = op(*args, **kwargs)
        self._integers.follow(op, args, kwargs, result)
        return result

    def _run_registered(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator that is registered with torch: what it calls is recorded, else the operator itself."""
        n_records = self._n_records
        result = self.run_registered(op, args, kwargs)
        if self._n_records == n_records and has_floats(args, kwargs):
            self._record_operator("operator", op.name())
        return result

    def _record_launch(self, kind: Computer, name: str, file: str) -> bool:
        caller = self._ownership.caller(sys._getframe(1))
        kind = "reference" if caller.reference else kind if file else "extension"
        is_own = not caller.reference and self._ownership.owns(file)
        self._record(Computed(kind, name, self.during, is_own, caller.line))
        return True

    def _record_operator(self, kind: Computer, name: str) -> None:
        caller = self._ownership.caller(sys._getframe(1))
        line, node = caller.line, torch._C._current_autograd_node()
        if caller.reference:
            kind, name = "reference", caller.reference
        elif caller.converts:
            return
        elif not caller.line and self.during == "backward":
            if node is None or name == _SUM:
                return  # autograd's own sums and packproof's incoming gradients
            line = f"autograd's {node.name()}"
        self._record(Computed(kind, name, self.during, kind == "operator", line))

    def _record(self, item: Computed) -> None:
        self._items.setdefault(item)
        self._n_records += 1


def unseen_passes(computed: Iterable[Computed], passes: Iterable[Pass]) -> Iterator[Computed]:
    """A record for each pass in which nothing was seen that computes."""
    seen = {item.during for item in computed}
    yield from (Computed("nothing", "that packproof sees", during) for during in passes if during not in seen)


@contextmanager
def idle_launches(ownership: Ownership) -> Iterator[None]:
    """The kernel's own launches do nothing inside."""
    with watch_launches(lambda kind, name, file: not ownership.owns(file)):
        yield
