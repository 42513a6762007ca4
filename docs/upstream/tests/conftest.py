"""Lets these tests run on a CPU too; on a GPU it does nothing.

Triton's interpreter takes the place of its compiler, and a tuner takes its first configuration in place of the fastest.
mamba-ssm is imported from a checkout whose extension is not built: its Python and its Triton are all that is tested.
"""

import contextlib
import importlib.util
import os
import sys
import types

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    from triton.runtime.autotuner import Autotuner

    Autotuner.prune_configs = lambda self, call: self.configs[:1]
    Autotuner.do_bench = lambda self, call, quantiles: call() or [1.0] * 3
    torch.cuda.device = lambda index: contextlib.nullcontext()
    torch.cuda.is_bf16_supported = lambda: True  # cut-cross-entropy asks; the interpreter has every dtype
    if importlib.util.find_spec("fla"):
        import fla.utils

        fla.utils.device = "cpu"

package = importlib.util.find_spec("mamba_ssm")
if package is not None and importlib.util.find_spec("selective_scan_cuda") is None:
    sys.modules["selective_scan_cuda"] = types.ModuleType("selective_scan_cuda")
    parent = types.ModuleType(
        "mamba_ssm"
    )  # without what its __init__ imports: models, and the extension of another one
    parent.__path__ = list(package.submodule_search_locations)
    sys.modules["mamba_ssm"] = parent
