"""Whether a GPU is fit to be timed: no other process uses it, and it does not slow itself down."""

import shutil
import subprocess
import time
from collections.abc import Iterator

from packproof.base.errors import PackproofError, UsageError
from packproof.bench.kernels.results import Event, LayoutFinished

# bits of nvidia-smi's clocks_event_reasons.active. A limit of power, or of clocks that someone set, is not among them.
_SLOWDOWNS = {
    0x08: "a slowdown by the hardware",
    0x20: "heat, by the driver",
    0x40: "heat, by the hardware",
    0x80: "a brake of the power supply",
}
_MOST_UTILIZATION = 5  # percent, with nothing of this process running
_IDLE_SECONDS = 1.2  # nvidia-smi's figure is of up to a second


class GpuState:
    """Reads the state of a GPU before a bench, and after each layout.

    name: as in CUDA_VISIBLE_DEVICES.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, event: Event) -> None:
        """Raise PackproofError if the GPU slowed itself down while a layout was timed."""
        if not isinstance(event, LayoutFinished):
            return
        if reasons := list(_reasons(self._query("clocks_event_reasons.active"))):
            layout = event.results[0].layout.name
            raise PackproofError(
                f"--json: GPU {self._name} ran slower at {layout} because of {', '.join(reasons)}: the table ends "
                "before it; let the GPU cool, and run the bench again"
            )

    def require_unshared(self) -> None:
        """Raise UsageError if the GPU is at work before anything was launched."""
        time.sleep(_IDLE_SECONDS)
        utilization = self._query("utilization.gpu").partition(" ")[0]
        if utilization.isdigit() and int(utilization) > _MOST_UTILIZATION:
            raise UsageError(
                f"--json: GPU {self._name} is at work {utilization} % of the time before the first call: another "
                "process uses it, and times would be wrong; wait for its end, choose another with "
                "CUDA_VISIBLE_DEVICES, or leave --json out"
            )

    def _query(self, field: str) -> str:
        """The value of a field of nvidia-smi; "" without it."""
        tool = shutil.which("nvidia-smi")
        if tool is None:
            return ""
        command = [tool, f"--id={self._name}", f"--query-gpu={field}", "--format=csv,noheader"]
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        return process.stdout.strip() if process.returncode == 0 else ""


def _reasons(bits: str) -> Iterator[str]:
    """The slowdowns in the text of a mask, such as 0x0000000000000040."""
    mask = int(bits, 16) if bits.startswith("0x") else 0
    return (text for bit, text in _SLOWDOWNS.items() if mask & bit)
