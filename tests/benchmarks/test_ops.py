"""Every op under pytest-benchmark: the time of its implementations and of their checks. None for an incorrect one.

Times are wall-clock, until the GPU has finished: `packproof bench` measures the GPU's own time.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import pytest
import torch

from packproof.adapters.peers.registry import PEERS
from packproof.bench.kernels.bench import prepare_runs
from packproof.bench.kernels.implementations import REFERENCE, Implementation, builtin_name, implementations
from packproof.bench.kernels.layouts import TOKENS, named_layouts
from packproof.bench.kernels.proof import prove
from packproof.bench.kernels.results import SizeProof
from packproof.bench.kernels.settings import Setting, setting
from packproof.bench.kernels.timing import Run
from packproof.harness.check.targets.builtin_kernels import BUILTIN_KERNELS
from packproof.properties.ops.catalogue import OPS

DEVICE, DTYPE = ("cuda", "bfloat16") if torch.cuda.is_available() else ("cpu", "float32")
[LAYOUT] = named_layouts(["L2"], TOKENS if DEVICE == "cuda" else 2048)
OURS = [(own.op, builtin_name(own)) for own in BUILTIN_KERNELS.values() if own.runs_on(DEVICE)]
REFERENCES = [(op, REFERENCE) for op in OPS]
# Triton kernels are interpreted on a CPU, and the reference takes minutes on a GPU
TIMED = [*OURS, *((peer.op, peer.name) for peer in PEERS.values())] if DEVICE == "cuda" else REFERENCES
PROVEN = TIMED if DEVICE == "cuda" else [*OURS, *REFERENCES]


@cache
def group(op: str) -> tuple[Setting, dict[str, Implementation]]:
    [(declared, found)] = implementations((), op, None, DEVICE)
    return setting(declared, DEVICE, {}, None), {implementation.name: implementation for implementation in found}


def proof(op: str, name: str) -> SizeProof:
    chosen, found = group(op)
    return prove(found[name], chosen, DTYPE, DEVICE, seed=0)


@lru_cache(maxsize=1)
def candidate(op: str, name: str) -> Run | SizeProof | str:
    """What can be timed, or the reason why not."""
    found = proof(op, name)
    if not found.may_be_timed:
        return found
    chosen, of_op = group(op)
    started = prepare_runs([of_op[name]], chosen.sample(OPS[op], LAYOUT, DTYPE, seed=0), DEVICE)
    return started.runs.get(name) or started.verdicts[name]


def require_correct(found: SizeProof) -> None:
    """Fails for an incorrect implementation, skips one that is missing."""
    assert found.status != "failed", found.text
    if not found.examples and found.status != "unpacked":
        pytest.skip(found.text)


@pytest.mark.parametrize(("op", "name"), PROVEN)
def test_proof(benchmark: Any, op: str, name: str) -> None:
    benchmark.group = "proof"
    group(op)
    found = benchmark.pedantic(proof, args=(op, name), rounds=1)
    require_correct(found)
    benchmark.extra_info.update(tier=found.tier, examples=found.examples)


@pytest.mark.parametrize("name_of_pass", ["forward", "backward", "both"])
@pytest.mark.parametrize(("op", "name"), TIMED)
def test_pass(benchmark: Any, op: str, name: str, name_of_pass: str) -> None:
    benchmark.group = f"{op}, {name_of_pass}"
    found = candidate(op, name)
    if isinstance(found, SizeProof):
        require_correct(found)
    assert isinstance(found, Run), found
    passes: dict[str, Callable[..., Any]] = {
        "forward": found.forward,
        "backward": found.backward,
        "both": lambda: found.backward(found.forward()),
    }
    setup = (lambda: ((found.forward(),), {})) if name_of_pass == "backward" else None
    benchmark.pedantic(waited(passes[name_of_pass]), setup=setup, rounds=10, warmup_rounds=1)


def waited(work: Callable[..., Any]) -> Callable[..., Any]:
    """The work, and the wait until the GPU has finished it."""

    def call(*arguments: Any) -> None:
        work(*arguments)
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    return call
