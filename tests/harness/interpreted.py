"""Runs the cases of modules in Triton's interpreter: `python interpreted.py MODULE...` prints their outcomes as JSON.

A MODULE lies beside this file and lists its cases, functions by name, in CASES. The outcome of a case is "ok" or the
error that it raised, as "SomeError: its text".
"""

import importlib
import json
import sys
from collections.abc import Callable

from packproof.harness.interpreter import repair


def outcome(case: Callable[[], None]) -> str:
    try:
        case()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


if __name__ == "__main__":
    modules = [importlib.import_module(name) for name in sys.argv[1:]]
    repair.install()
    repair.install()  # the second changes nothing
    print(json.dumps({name: outcome(case) for module in modules for name, case in module.CASES.items()}))
