"""Counts the work of the host in a call: compilations, tuning, and reads of tensors, each with its line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import arg_tree_leaves

from packproof.base.light_torch import DispatchMode
from packproof.base.provenance.host_work import HostWork, WorkKind, checks_arguments
from packproof.harness.process.execution.host_work.allocations import note
from packproof.harness.process.execution.host_work.reads import COPIES, HostTensors, reading_operator, watch_methods
from packproof.harness.process.execution.host_work.waits import watch_waits
from packproof.harness.process.execution.provenance.arithmetic import TORCH_NAMESPACES
from packproof.harness.process.execution.provenance.ownership import Ownership
from packproof.interpreter import watch_specialisations


class HostWatch(DispatchMode):
    """Records the work of the host inside `watch`."""

    supports_higher_order_operators = True

    def __init__(self, ownership: Ownership, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ownership, self._device = ownership, device
        self._host = HostTensors(device)
        self._is_paused = self._has_read = False
        self._items: dict[HostWork, None] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @property
    def work(self) -> tuple[HostWork, ...]:
        """The recorded work, each piece once."""
        return tuple(self._items)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Record the work of the host inside."""
        graphs = _compiled_graphs()
        launches = watch_specialisations(self._record, lambda: self._paused(True), lambda: self._paused(False))
        with watch_waits(self._device) as waits, launches, watch_methods(self._record_read, self._host), self:
            yield
        if not self._has_read:  # else these are its waits, of which the line is known, or an adapter's
            self._items.update((HostWork("reads", f"by {name}"), None) for name in waits())
        for number in range(graphs, _compiled_graphs()):
            self._record("compiles", "a graph of torch.compile", f"number={number}")

    @contextmanager
    def _paused(self, is_paused: bool) -> Iterator[None]:
        """The work of Triton's interpreter on the host is a GPU's."""
        before, self._is_paused = self._is_paused, is_paused
        try:
            yield
        finally:
            self._is_paused = before

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_paused or not isinstance(op, torch._ops.OpOverload):
            return op(*args, **kwargs)
        if op.namespace not in TORCH_NAMESPACES:
            return self.run_registered(op, args, kwargs)
        if name := reading_operator(op, args, kwargs, self._host):
            self._record_read(name)
        result = op(*args, **kwargs)
        if op.overloadpacket.__name__ in COPIES and self._ownership.is_of_adapter(sys._getframe(1)):
            self._host.add(result)
            self._has_read |= self._device.type == "cuda"  # also to the device, torch waits until it has copied
        self._host.follow(op, args, kwargs, result)
        note(arg_tree_leaves(result))
        return result

    def _record(self, kind: WorkKind, name: str, key: str) -> None:
        self._items.setdefault(HostWork(kind, name, key))

    def _record_read(self, name: str) -> None:
        frame = sys._getframe(1)
        is_check = checks_arguments() and self._device.type == "cpu"  # on a GPU these are made without values
        if self._is_paused or is_check:
            return
        self._has_read = True
        if not self._ownership.is_of_adapter(frame):
            caller, node = self._ownership.caller(frame), torch._C._current_autograd_node()
            line = caller.line or caller.reference or ("" if node is None else f"autograd's {node.name()}")
            self._items.setdefault(HostWork("reads", name, line=line))


def _compiled_graphs() -> int:
    """The number of graphs compiled by torch.compile in this process."""
    if "torch._dynamo.utils" not in sys.modules:
        return 0
    return int(sys.modules["torch._dynamo.utils"].counters["stats"]["unique_graphs"])
