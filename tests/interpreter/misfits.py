"""`python -m tests.interpreter.misfits`: what packproof says of Tritons that it cannot repair, as JSON.

Each is tried in a fork, since a process repairs its interpreter once.
"""

import importlib
import json
import sys
from multiprocessing import get_context

import torch
from triton.runtime import interpreter as shipped

from packproof.base.errors import PackproofError
from packproof.interpreter import in_use, repair
from tests.interpreter.triton_numerics import _cast_kernel

NO_PRODUCTS = "del shipped.InterpreterBuilder.create_dot"
NO_LAUNCHES = "del shipped.GridExecutor"
OTHER_FLOATS = "repair.floats.repair = lambda: None"
NO_AUTOTUNER = "sys.modules['triton.runtime.autotuner'] = None; del sys.modules[repair.__name__]"


def installed(sabotage: str) -> str:
    """The refusal of `repair.install()`."""
    _sabotage(sabotage)
    try:
        repair.install()
    except PackproofError as error:
        return str(error)
    return ""


def kernel_imported(sabotage: str) -> str:
    """The refusal of an import of one of packproof's kernels."""
    _sabotage(sabotage)
    try:
        importlib.import_module("packproof.kernels.ssd")
    except PackproofError as error:
        return str(error)
    return ""


def other_kernel_called(sabotage: str) -> list[str]:
    """The misfit, once it was looked for, and the refusal of a call of a third-party kernel."""
    _sabotage(sabotage)
    in_use.repair_or_refuse()
    try:
        _cast_kernel[(1,)](torch.ones(4), torch.ones(4), B=4)
    except in_use.UnfitInterpreterError as error:
        return [in_use.misfit(), str(error)]
    return [in_use.misfit(), ""]


def _sabotage(statement: str) -> None:
    exec(statement, {"shipped": shipped, "repair": repair, "sys": sys})


ATTEMPTS = {
    installed: (NO_PRODUCTS, OTHER_FLOATS),
    kernel_imported: (NO_PRODUCTS,),
    other_kernel_called: (NO_PRODUCTS, NO_LAUNCHES, OTHER_FLOATS, NO_AUTOTUNER),
}


def main() -> None:
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        answers = {
            attempt.__name__: dict(zip(sabotages, pool.map(attempt, sabotages, chunksize=1), strict=True))
            for attempt, sabotages in ATTEMPTS.items()
        }
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
