"""Kernels that narrow or loosen by their declaration what they are judged by; each is incorrect outside of it."""

import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import packproof
from packproof import Promises
from packproof.properties.ops.catalogue import OPS
from packproof.refs import causal_conv1d as reference


def declared(wrong: Any = None, **terms: Any) -> Any:
    """A convolution with this declaration; twice the correct values where `wrong(x, weight, arguments)` holds."""

    @packproof.kernel(**{"op": "causal_conv1d", **terms})
    def conv(
        x: Any,
        weight: Any,
        bias: Any = None,
        *,
        cu_seqlens: Any,
        initial_states: Any = None,
        activation: Any = None,
        return_final_states: bool = False,
    ) -> Any:
        is_wrong = wrong is not None and wrong(x, weight, cu_seqlens)
        options = {"activation": activation, "return_final_states": return_final_states}
        return reference(
            2 * x if is_wrong else x, weight, bias, cu_seqlens=cu_seqlens, initial_states=initial_states, **options
        )

    return conv


def _zeros(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    cu_seqlens: Any,
    initial_states: Any = None,
    activation: Any = None,
    return_final_states: bool = False,
) -> Any:
    y = reference(x, weight, bias, cu_seqlens=cu_seqlens, initial_states=initial_states, return_final_states=True)
    zeros = tuple(0 * part for part in y)
    return zeros if return_final_states else zeros[0]


narrow = declared(lambda x, weight, _: x.shape[1] != 1 or weight.shape[1] != 1, domain="d == 1; w == 1")
without_gradients = declared(gradients=False)
without_slack = declared(lambda x, _, cu_seqlens: len(x) > cu_seqlens[-1], slack=False)
in_fp32 = declared(lambda x, *_: x.dtype != x.new_empty(0).float().dtype, dtypes=("fp32",))
in_tf32 = declared(promises=Promises(compute="tf32"))
with_cumsum = declared(promises=Promises(cumsum=True))
with_saved_outputs = declared(promises=Promises(saved_outputs=True))
with_huge_chunks = declared(promises=Promises(chunk=4096))
own_op = packproof.kernel(op=replace(OPS["causal_conv1d"], reference=_zeros))(_zeros)
strict = declared(promises=Promises("token", compute="fp32", deterministic=True, isolated=True))


@packproof.kernel(op="causal_conv1d", fixed={"activation": "silu"})
def silu_alone(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    cu_seqlens: Any,
    initial_states: Any = None,
    return_final_states: bool = False,
) -> Any:
    options: dict[str, Any] = {"activation": "silu", "return_final_states": return_final_states}
    return reference(x, weight, bias, cu_seqlens=cu_seqlens, initial_states=initial_states, **options)


def without_bias(x: Any, weight: Any, *, cu_seqlens: Any, activation: Any = None) -> Any:
    return reference(x, weight, cu_seqlens=cu_seqlens, activation=activation)


def plain(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    cu_seqlens: Any,
    initial_states: Any = None,
    activation: Any = None,
    return_final_states: bool = False,
) -> Any:
    options: dict[str, Any] = {"activation": activation, "return_final_states": return_final_states}
    return reference(x, weight, bias, cu_seqlens=cu_seqlens, initial_states=initial_states, **options)


def refusing(x: Any, weight: Any, bias: Any = None, *, cu_seqlens: Any, **options: Any) -> Any:
    """Narrows its domain without a declaration."""
    if x.shape[1] != 1:
        raise ValueError("only d == 1")
    return plain(x, weight, bias, cu_seqlens=cu_seqlens, **options)


def excusing(x: Any, weight: Any, bias: Any = None, *, cu_seqlens: Any, **options: Any) -> Any:
    """The same by an exception with which packproof excuses an adapter."""
    if x.shape[1] != 1:
        raise packproof.base.errors.OutsideConvention("a batch of this size")
    return plain(x, weight, bias, cu_seqlens=cu_seqlens, **options)


def short_of_memory(x: Any, weight: Any, bias: Any = None, *, cu_seqlens: Any, **options: Any) -> Any:
    """Allows its process half a gigabyte more, and at one size asks for four."""
    if x.shape[1] == 5:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 29), resource.getrlimit(resource.RLIMIT_AS)[1]))
        torch.empty(1 << 30)
    return plain(x, weight, bias, cu_seqlens=cu_seqlens, **options)


def without_backward(x: Any, weight: Any, bias: Any = None, *, cu_seqlens: Any, **options: Any) -> Any:
    """Narrows its gradients without a declaration."""
    if x.requires_grad:
        raise NotImplementedError("no gradients")
    return plain(x, weight, bias, cu_seqlens=cu_seqlens, **options)
