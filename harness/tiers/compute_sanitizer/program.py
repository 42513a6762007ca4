"""The program run under compute-sanitizer: calls of a kernel, one after another, each announced in a line.

python -m packproof.harness.tiers.compute_sanitizer.program CALLS MODULE FILE PATH DEVICE
"""

import json
import sys
import time
from pathlib import Path

from packproof.base.errors import KernelFault
from packproof.harness.process import Decoder, decode_call
from packproof.harness.process.execution import InProcess
from packproof.harness.process.naming import Location
from packproof.properties.calling import Refusal

PREFIX = "packproof "
_PAUSE = 0.1  # the sanitizer prints from another process: its reports must arrive before the next announcement


def main(calls_file: str, module: str, file: str, path: str, device: str) -> None:
    """Run every call of the file, a sequence of frames of `wire`. A fault ends the run."""
    function = Location(module, file, path).load()
    runner = InProcess(
        function, device, fence_bytes=0
    )  # the sanitizer checks allocations, not the canaries inside them
    decoder = Decoder()
    decoder.feed(Path(calls_file).read_bytes())
    while frame := decoder.take():
        _announce(call=frame.number)
        try:
            runner.run(decode_call(frame))
        except Refusal:
            _announce(refused=frame.number)
        except KernelFault as fault:
            _announce(fault=fault.kind, text=str(fault))
            return
        time.sleep(_PAUSE)
    _announce(done=True)


def _announce(**fields: object) -> None:
    print(f"\n{PREFIX}{json.dumps(fields)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
