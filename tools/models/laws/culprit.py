"""The module where a leak or a difference begins, as lines of a failure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

LEAK_HEADING = "first module that leaks: "
DIFFERENCE_HEADING = "first module that differs from the document alone: "
MODE_HEADING = "first module that differs from plain training: "


@dataclass(frozen=True)
class Culprit:
    """The module where a leak or a difference begins, and the boundary arguments on their way to it."""

    module: str
    """Its name in the model, "" for the model itself."""
    kind: str
    """Its class."""
    received_arguments: tuple[str, ...]
    """The boundary arguments that reached it."""
    last_receivers: Mapping[str, str]
    """For each boundary argument that did not reach it, the innermost enclosing module that received it."""
    heading: str = LEAK_HEADING

    def lines(self) -> Iterator[str]:
        name = self.module or "the model itself"
        yield f"{self.heading}{name} ({self.kind})"
        if self.received_arguments:
            yield f"    it received {', '.join(self.received_arguments)}"
        for argument, receiver in self.last_receivers.items():
            location = "is not passed on by any module" if receiver == "" else f"was last seen in {receiver}"
            yield f"    {argument} {location}"


def module_in(lines: Iterable[str]) -> str:
    """The module, and its class, in lines with those of a culprit; "" if they name none."""
    headings = (LEAK_HEADING, DIFFERENCE_HEADING, MODE_HEADING)
    return next((line.removeprefix(heading) for line in lines for heading in headings if line.startswith(heading)), "")
