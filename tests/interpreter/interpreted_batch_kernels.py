"""packproof's own kernels in batches: the bits of one program after another, forward and backward."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from packproof import kernels
from packproof.interpreter import repair
from packproof.interpreter.batch.launch import BatchingSanitizer
from packproof.interpreter.memory_guard import Guard
from packproof.interpreter.sanitizer import Sanitizer
from tests.sweeps import sweep

repair.install()

LENGTHS = (33, 1, 0, 7)
N_TOKENS = sum(LENGTHS)
CU_SEQLENS = torch.tensor([0, *LENGTHS]).cumsum(0).int()

Inputs = Mapping[str, Tensor]


def _normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _rope(dtype: torch.dtype) -> tuple[Inputs, dict[str, Any]]:
    cosines, sines = _normal(1, 33, 5, dtype=dtype), _normal(2, 33, 5, dtype=dtype)
    return {"x": _normal(0, N_TOKENS, 3, 11, dtype=dtype), "cos": cosines, "sin": sines}, {}


def _causal_conv1d(dtype: torch.dtype) -> tuple[Inputs, dict[str, Any]]:
    x, weight, bias = _normal(0, N_TOKENS, 19, dtype=dtype), _normal(1, 19, 4, dtype=dtype), _normal(2, 19, dtype=dtype)
    states = _normal(3, len(LENGTHS), 19, 3, dtype=dtype)
    inputs = {"x": x, "weight": weight, "bias": bias, "initial_states": states}
    return inputs, {"activation": "silu", "return_final_states": True}


def _selective_scan(dtype: torch.dtype) -> tuple[Inputs, dict[str, Any]]:
    u, delta, z = _normal(0, N_TOKENS, 7, dtype=dtype), _normal(1, N_TOKENS, 7, dtype=dtype), _normal(2, N_TOKENS, 7)
    inputs = {"u": u, "delta": delta.abs() / 10, "A": -_normal(3, 7, 4).abs(), "z": z.to(dtype), "D": _normal(6, 7)}
    return inputs | {"B": _normal(4, N_TOKENS, 4, dtype=dtype), "C": _normal(5, N_TOKENS, 4, dtype=dtype)}, {}


def _ssd(dtype: torch.dtype) -> tuple[Inputs, dict[str, Any]]:
    inputs = {"x": _normal(0, N_TOKENS, 2, 19, dtype=dtype), "dt": _normal(1, N_TOKENS, 2, dtype=dtype).abs() / 10}
    inputs |= {"A": -_normal(2, 2).abs(), "D": _normal(5, 2), "dt_bias": _normal(6, 2) / 10}
    inputs |= {"B": _normal(3, N_TOKENS, 2, 3, dtype=dtype), "C": _normal(4, N_TOKENS, 2, 3, dtype=dtype)}
    return inputs, {"dt_softplus": True, "return_final_states": True}


def _attention(dtype: torch.dtype) -> tuple[Inputs, dict[str, Any]]:
    inputs = {"q": _normal(0, N_TOKENS, 4, 17, dtype=dtype), "k": _normal(1, N_TOKENS, 2, 17, dtype=dtype)}
    return inputs | {"v": _normal(2, N_TOKENS, 2, 19, dtype=dtype)}, {"causal": True, "window_size": (9, 0)}


CALLS: Mapping[str, Callable[[torch.dtype], tuple[Inputs, dict[str, Any]]]] = {
    "rope": _rope,
    "causal_conv1d": _causal_conv1d,
    "selective_scan": _selective_scan,
    "ssd": _ssd,
    "attention": _attention,
}


def _results(op: str, inputs: Inputs, options: Mapping[str, Any], sanitizer: Sanitizer) -> list[Tensor]:
    """Outputs, and gradients of the inputs."""
    with Guard(), sanitizer:
        returned = getattr(kernels, op)(**inputs, cu_seqlens=CU_SEQLENS, **options)
        outputs = [y for y in (returned if isinstance(returned, tuple) else (returned,)) if y is not None]
        cotangents = [_normal(9, *y.shape, dtype=y.dtype) for y in outputs]
        wrt = [leaf for leaf in inputs.values() if leaf.requires_grad]
        gradients = torch.autograd.grad(outputs, wrt, cotangents)
    return [y.detach() for y in (*outputs, *gradients)]


FP32, BF16 = torch.float32, torch.bfloat16
SAMPLE = [("causal_conv1d", FP32), ("ssd", BF16)]


@sweep("op, dtype", SAMPLE, rest=[(op, dtype) for op in CALLS for dtype in (FP32, BF16)])
def test_a_batch_has_the_bits_of_one_program_after_another(op: str, dtype: torch.dtype) -> None:
    inputs, options = CALLS[op](dtype)
    constant = ("cos", "sin")
    inputs = {name: value.requires_grad_(name not in constant) for name, value in inputs.items()}
    wanted = _results(op, inputs, options, Sanitizer(inputs.values(), order="reverse"))
    together = BatchingSanitizer(inputs.values())
    got = _results(op, inputs, options, together)
    assert all(torch.equal(w.view(torch.uint8), g.view(torch.uint8)) for w, g in zip(wanted, got, strict=True))
    assert together.batches == together.launches > 0
