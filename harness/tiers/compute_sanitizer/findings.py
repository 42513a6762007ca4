"""Reads the output of NVIDIA's compute-sanitizer: findings of memcheck, racecheck and initcheck, by kernel.

A report is a block of lines that begin with "=========", the first with one space after it and the others with more:

    ========= Invalid __global__ write of size 4 bytes
    =========     at _scan_kernel+0x160 in scan.py:41
    =========     by thread (0,0,0) in block (2,0,0)
    =========     Access to 0x7f1f2c000800 is out of bounds
    =========     Saved host backtrace up to driver entry point at kernel launch time

    ========= Error: Race reported between Write access at reduce(int *)+0xf0 in sum.cu:12
    =========     and Read access at reduce(int *)+0xd0 in sum.cu:12 [32 hazards]
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_BLOCK = re.compile(r"^=========( ?)( *)(.*)$")
_TITLE = re.compile(
    r"Invalid |Misaligned |Uninitialized |Error: Race reported|Race reported|Error: Potential|Barrier error"
    r"|Host API memory access error|Malloc/Free|Stack overflow|Fatal |Internal Memcheck"
)
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: |RACECHECK SUMMARY: \d+ hazards? displayed \()(\d+) error")
# newer versions print "kernel+0x160 in file:41", older ones "0x160 in file:41:kernel" or "0x160 in kernel"
_LOCATION_FORMS = (
    re.compile(r"^(?P<kernel>.+?)\+0x[0-9a-f]+(?: in (?P<line>\S.*:\d+))?$"),
    re.compile(r"^0x[0-9a-f]+ in (?:(?P<line>\S.*:\d+):)?(?P<kernel>.+)$"),
)


@dataclass(frozen=True)
class Finding:
    """One report of the sanitizer."""

    title: str
    """The kind of error, such as "Invalid __global__ write of size 4 bytes"."""
    kernel: str = ""
    """Name of the kernel without arguments, or ""."""
    line: str = ""
    """File and line of its source; "" if the program was built without line information."""
    details: tuple[str, ...] = ()
    """Further lines of the report: thread, address."""

    @property
    def text(self) -> str:
        """The finding in one line."""
        kernel_text = f" in {self.kernel}" if self.kernel else ""
        return f"{self.title}{kernel_text}" + (f" ({self.line})" if self.line else "")


def findings(output: Iterable[str]) -> Iterator[Finding]:
    """The findings in the output lines of a run. Other output is skipped."""
    title, body = "", list[str]()
    for text in output:
        match = _BLOCK.match(text.rstrip())
        if match and match[2]:
            body.append(match[3])
            continue
        if title:
            yield _parse_finding(title, body)
        title, body = (match[3] if match and _TITLE.match(match[3]) else ""), []
    if title:
        yield _parse_finding(title, body)


def error_count(output: Iterable[str]) -> int | None:
    """The number of errors in the summary, without warnings. None without a summary: the run did not finish."""
    counts = [int(match[1]) for text in output if (match := _SUMMARY.search(text))]
    return counts[-1] if counts else None


def _parse_finding(title: str, body: list[str]) -> Finding:
    head, _, location = title.partition(" access at ")
    if not location:
        head, location = title, next((text.removeprefix("at ") for text in body if text.startswith("at ")), "")
    kernel, line = _parse_location(location)
    details = []
    for text in body:
        if text.startswith("Saved host backtrace"):
            break
        if not text.startswith("at ") and text:
            details.append(text)
    return Finding(head.removeprefix("Error: "), kernel, line, tuple(details))


def _parse_location(text: str) -> tuple[str, str]:
    """The kernel and its line from "kernel(int *)+0x70 in file.cu:41" and its older forms."""
    access = re.sub(r" \[\d+ hazards?\]$", "", text)
    for form in _LOCATION_FORMS:
        if match := form.match(access):
            return _strip_arguments(match["kernel"]), match["line"] or ""
    return _strip_arguments(access), ""


def _strip_arguments(name: str) -> str:
    """`void f<(bool)0>(int *)` as `f<(bool)0>`."""
    if name.endswith(")"):
        depth = 0
        for k in range(len(name) - 1, -1, -1):
            depth += {")": 1, "(": -1}.get(name[k], 0)
            if depth == 0:
                name = name[:k]
                break
    return name.removeprefix("void ").strip()
