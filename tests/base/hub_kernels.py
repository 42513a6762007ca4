"""A kernel package as the hub builds it, written to a folder: a convolution that forgets where sequences start."""

import json
from pathlib import Path

SOURCE = """
import torch
from torch.nn import functional

def conv(x, weight, bias=None, *, cu_seqlens, activation=None):
    rows = functional.pad(x.T[None], (weight.shape[1] - 1, 0))
    y = functional.conv1d(rows, weight[:, None], bias, groups=weight.shape[0])[0].T
    return functional.silu(y) if activation == "silu" else y
"""
INIT = "from . import layers\nfrom ._ops import conv\n\n__all__ = ['conv', 'layers']\n"
METADATA = {
    "name": "conv-kernel",
    "id": "_conv_kernel_5ca1aec",
    "version": 1,
    "license": "Apache-2.0",
    "python-depends": [],
    "backend": {"type": "cpu"},
    "digest": {"algorithm": "sha256", "files": {}},
}
COMMIT = "8ac69fc5" * 5


def write_build(variant: Path, package: str = "") -> Path:
    """A build of the kernel. package: the folder of an older build, which has its files below that of the variant."""
    folder = variant / package
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(INIT)
    (folder / "_ops.py").write_text(SOURCE)
    (folder / "layers.py").write_text("")
    if not package:
        (folder / "metadata.json").write_text(json.dumps(METADATA))
    return folder


def write_cached(cache: Path, kind: str = "kernels", *, commit: str = COMMIT, reference: str = "v1") -> Path:
    """A snapshot of owner/conv-kernel in the cache of the hub, with one build and one branch. Returns its folder."""
    repository = cache / f"{kind}--owner--conv-kernel"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / reference).write_text(commit)
    write_build(repository / f"snapshots/{commit}/build/torch-universal")
    return repository / "snapshots" / commit
