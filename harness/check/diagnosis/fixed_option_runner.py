"""A runner that asks a kernel for one value of an option, to see whether it computes another."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from packproof.properties.calling import Call, Result, Runner


class FixedOptionRunner:
    """A runner that keeps one option of the kernel at the value of the failing call, whatever a call asks for."""

    def __init__(self, runner: Runner, name: str, options: dict[str, Any]) -> None:
        self._runner, self._name, self._options = runner, name, options
        self.device = runner.device

    def run(self, call: Call) -> Result:
        original_option = {self._name: self._options[self._name]} if self._name in self._options else {}
        other_options = {name: value for name, value in call.options.items() if name != self._name}
        return self._runner.run(replace(call, options={**other_options, **original_option}))

    @property
    def time_limit(self) -> float:
        return self._runner.time_limit

    def printed_lines(self) -> list[str]:
        return self._runner.printed_lines()

    def restart(self) -> None:
        self._runner.restart()

    def with_short_timeout(self) -> AbstractContextManager[None]:
        return self._runner.with_short_timeout()
