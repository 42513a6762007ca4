"""Compile one form of an op many times, each in a process with another heap: compile_again.py MODULE FORM TARGET TIMES.

Triton's passes iterate over tables by address, so whether a form compiles can depend on where objects lie in memory.
"""

import ctypes
import importlib
import os
import random
import sys

from packproof.harness.tiers.compile.resources import compile_and_measure


def main(module: str, form: str, target: str, times: int) -> None:
    (variant,) = [v for v in importlib.import_module(module).variants() if v.name == form]
    os.environ["TRITON_ALWAYS_COMPILE"] = "1"
    failed = 0
    for k in range(times):
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            rng = random.Random(k)
            for _ in range(2000):
                ctypes.CDLL(None).malloc(rng.choice((16, 32, 48, 64, 96, 128, 256, 512, 1024, 4096, 70000)))
            try:
                compile_and_measure(variant, target)
                os._exit(0)
            finally:
                os._exit(1)
        failed += os.waitpid(child, 0)[1] != 0
    print(failed)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
