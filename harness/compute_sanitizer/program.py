"""The program that runs under compute-sanitizer: calls of a kernel, one after the other, each announced in a line.

python -m packproof.harness.compute_sanitizer.program CALLS MODULE FILE PATH DEVICE
"""

import json
import sys
import time
from pathlib import Path

from packproof.harness.execution.execute import InProcess
from packproof.harness.targets.location import Location
from packproof.harness.worker.wire import Decoder, call_of
from packproof.properties.call import KernelFault, Refused

SAYS = "packproof "
_PAUSE = (
    0.1  # the sanitizer prints from another process: what it has to say of a call comes before the next is announced
)


def main(calls: str, module: str, file: str, path: str, device: str) -> None:
    """Run every call of the file, in which frames of `wire` lie one behind the other. A fault ends the run."""
    function = Location(module, file, path).load()
    runner = InProcess(function, device, fence_bytes=0)  # the sanitizer knows allocations, and not what lies in them
    decoder = Decoder()
    decoder.feed(Path(calls).read_bytes())
    while frame := decoder.take():
        _say(call=frame.number)
        try:
            runner.run(call_of(frame))
        except Refused:
            _say(refused=frame.number)
        except KernelFault as fault:
            _say(fault=fault.kind, text=str(fault))
            return
        time.sleep(_PAUSE)
    _say(done=True)


def _say(**words: object) -> None:
    print(f"\n{SAYS}{json.dumps(words)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
