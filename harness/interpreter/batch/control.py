"""Control flow of a rewritten kernel: what its programs agree on runs once, what they differ on runs under a mask.

The functions are called by the code that `rewrite` makes. A condition that differs runs both branches, each under its
mask, and merges what they assign; a loop runs until its last program has ended.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import triton.language as tl

from packproof.harness.interpreter.batch.programs import (
    UNDEFINED,
    Flags,
    Unsupported,
    programs,
    select,
    to_tensor,
)
from packproof.harness.interpreter.types import Handle, core

__all__ = ["all_of", "any_of", "branch", "choose", "leave", "loop", "negation", "snapshot", "to_tensor", "while_loop"]

Values = tuple[Any, ...]


def snapshot(variables: Mapping[str, Any], names: Sequence[str]) -> Values:
    return tuple([variables.get(name, UNDEFINED) for name in names])


def _merged(flags: Flags, new: Values, old: Values) -> Values:
    return tuple([select(flags, n, o) for n, o in zip(new, old, strict=True)])


class branch:  # noqa: N801  (an if statement)
    """`if test`: `then` and `orelse` say which branches run, `split` that both do, each for its programs.

    jumps: a branch leaves a loop or returns a value. ends: the first branch ends with `return`.
    """

    __slots__ = ("_before", "flags", "orelse", "split", "then")

    def __init__(self, test: Any, jumps: bool = False, ends: bool = False) -> None:
        true = test.handle.data if isinstance(test, core.tensor) else np.array([bool(test)])
        agreed = programs.agreed(true)
        # some programs of the function leave it here, although all active ones do
        self.split = agreed is None or bool(ends and agreed and programs.active is not programs.entered)
        if not self.split:
            self.then = bool(agreed)
            self.orelse = not self.then
            return
        if jumps:
            raise Unsupported("break, continue or a returned value under a condition that differs")
        self.then = self.orelse = True
        self._before = programs.active
        self.flags = programs.active = programs.flags(true)

    def turn(self) -> None:
        """The other branch begins."""
        rest = ~self.flags
        programs.resume(rest if self._before is None else rest & self._before)

    def end(self, then: Values = (), orelse: Values = ()) -> Values:
        """What the variables are after both branches."""
        programs.resume(self._before)
        return _merged(self.flags, then, orelse)

    def leave(self) -> bool:
        """The programs of the first branch have returned. Whether all have."""
        programs.returned(self.flags)
        programs.resume(programs.entered)
        alive = not programs.idle()
        programs.resume(self._before)
        return not alive


def leave() -> None:
    """A `return` inside of a loop or a condition: of all programs, or of none."""
    if programs.active is not programs.entered:
        raise Unsupported("return inside of a condition that differs")


class loop:  # noqa: N801  (a for statement)
    """`for ... in range(...)`, where each program has bounds of its own; it runs until the last one has ended.

    Where a bound differs the counter is an int32 of each program, as it is when compiled, else a Python int. fixed: the
    loop has to run alike in all programs, since it is left early, or its counter is used after it.
    """

    __slots__ = ("_active", "_before", "_bounds", "_counting", "_fixed", "_whole", "split")

    def __init__(self, fixed: bool, first: Any, last: Any, step: Any = 1) -> None:
        self._bounds = [_bound(value) for value in (first, last, step)]
        self._before, self._fixed, self._whole = programs.active, fixed, True
        self.split = not all(type(value) is int for value in self._bounds)

    def __iter__(self) -> Iterator[Any]:
        if not self.split:
            yield from [] if programs.idle() else range(*self._bounds)
            return
        if self._fixed:
            raise Unsupported("a loop that differs between programs, and is left early or whose counter is used later")
        self._counting = type(self._bounds[0]) is not int or type(self._bounds[2]) is not int
        programs.counting += self._counting
        first, last, step = (value if type(value) is int else value.astype(np.int64) for value in self._bounds)
        count = np.broadcast_to(np.maximum(0, -((first - last) // step)), (programs.count,))
        if self._before is not None:
            count = np.where(self._before, count, 0)
        for k in range(int(count.max())):
            active = count > k
            if programs.gone is not None:
                active &= ~programs.gone
                if not active.any():
                    return
            self._active = programs.active = active
            self._whole = bool((active if self._before is None else active == self._before).all())
            yield _counter(first + k * step)

    def merge(self, before: Values, after: Values) -> Values:
        """What the variables are after an iteration of some programs."""
        return after if self._whole else _merged(self._active, after, before)

    def end(self) -> None:
        if self.split:
            programs.counting -= self._counting
            programs.resume(self._before)


def _bound(value: Any) -> Any:
    """An int, or an array of ints that differ."""
    if isinstance(value, core.tensor):
        agreed = programs.agreed(value.handle.data)
        return int(agreed) if agreed is not None else programs.everywhere(value.handle.data)
    return operator.index(getattr(value, "value", value))


def _counter(at: Any) -> Any:
    if isinstance(at, int):
        return at
    if at.min() < 0 or at.max() >= 2**31:  # a Python int divides otherwise, and does not wrap
        raise Unsupported("a counter below 0 or above 2**31 that differs between programs")
    return core.tensor(Handle(at.astype(np.int32), tl.int32), tl.int32)


class while_loop:  # noqa: N801  (a while statement)
    """`while test`: runs until the last program has ended. fixed: as of `loop`."""

    __slots__ = ("_before", "_fixed", "flags", "split")

    def __init__(self, fixed: bool) -> None:
        self.split, self._before, self._fixed = False, programs.active, fixed

    def test(self, value: Any) -> bool:
        if programs.idle():
            return False
        if isinstance(value, core.tensor):
            agreed = programs.agreed(value.handle.data)
            if agreed is None:
                if self._fixed:
                    raise Unsupported("break, continue or return in a loop that differs between programs")
                self.split = True
                programs.active = programs.flags(value.handle.data)
            else:
                value = agreed
        if self.split and programs.active is not None:
            self.flags = programs.active
        return self.split if isinstance(value, core.tensor) else bool(value)

    def merge(self, before: Values, after: Values) -> Values:
        return _merged(self.flags, after, before)

    def end(self) -> None:
        if self.split:
            programs.resume(self._before)


def choose(test: Any, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
    """`then if test else orelse`."""
    case = branch(test)
    if not case.split:
        return then() if case.then else orelse()
    chosen = then()
    case.turn()
    other = orelse()
    return case.end((chosen,), (other,))[0]


def all_of(value: Any, *rest: Callable[[], Any]) -> Any:
    """`value and ...`."""
    for other in rest:
        value = choose(value, other, lambda value=value: value)  # type: ignore[misc]
    return value


def any_of(value: Any, *rest: Callable[[], Any]) -> Any:
    """`value or ...`."""
    for other in rest:
        value = choose(value, lambda value=value: value, other)  # type: ignore[misc]
    return value


def negation(value: Any) -> Any:
    """`not value`."""
    if isinstance(value, core.tensor) and programs.agreed(value.handle.data) is None:
        return core.tensor(Handle(~value.handle.data.astype(bool), tl.int1), tl.int1)
    return not value
