"""The types of ops with an option for a second result. References and kernels have them by `errors.typed_as`.

Type checkers read this file, Python never does. tests/refs/test_overloads.py compares its parameters with the ops'.
"""

# fmt: off

from typing import Literal, overload

from torch import Tensor

Activation = Literal["silu"] | None
Result = Tensor | tuple[Tensor, Tensor]


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *, cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None, softcap: float = 0.0,
    return_lse: Literal[False] = False,
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *, cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None, softcap: float = 0.0,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *, cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None, softcap: float = 0.0,
    return_lse: bool,
) -> Result: ...

@overload
def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, initial_states: Tensor | None = None,
    activation: Activation = None, return_final_states: Literal[False] = False,
) -> Tensor: ...
@overload
def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, initial_states: Tensor | None = None,
    activation: Activation = None, return_final_states: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, initial_states: Tensor | None = None,
    activation: Activation = None, return_final_states: bool,
) -> Result: ...

@overload
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, qk_l2norm: bool = False, beta_sigmoid: bool = False,
    cu_seqlens: Tensor, scale: float | None = None, initial_states: Tensor | None = None,
    return_final_states: Literal[False] = False,
) -> Tensor: ...
@overload
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, qk_l2norm: bool = False, beta_sigmoid: bool = False,
    cu_seqlens: Tensor, scale: float | None = None, initial_states: Tensor | None = None,
    return_final_states: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, qk_l2norm: bool = False, beta_sigmoid: bool = False,
    cu_seqlens: Tensor, scale: float | None = None, initial_states: Tensor | None = None, return_final_states: bool,
) -> Result: ...

@overload
def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, *, qk_l2norm: bool = False, beta_sigmoid: bool = False, cu_seqlens: Tensor,
    scale: float | None = None, initial_states: Tensor | None = None, return_final_states: Literal[False] = False,
) -> Tensor: ...
@overload
def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, *, qk_l2norm: bool = False, beta_sigmoid: bool = False, cu_seqlens: Tensor,
    scale: float | None = None, initial_states: Tensor | None = None, return_final_states: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, *, qk_l2norm: bool = False, beta_sigmoid: bool = False, cu_seqlens: Tensor,
    scale: float | None = None, initial_states: Tensor | None = None, return_final_states: bool,
) -> Result: ...

@overload
def kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, *, qk_l2norm: bool = False, beta_sigmoid: bool = False, cu_seqlens: Tensor,
    scale: float | None = None, initial_states: Tensor | None = None, return_final_states: Literal[False] = False,
) -> Tensor: ...
@overload
def kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, *, qk_l2norm: bool = False, beta_sigmoid: bool = False, cu_seqlens: Tensor,
    scale: float | None = None, initial_states: Tensor | None = None, return_final_states: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, *, qk_l2norm: bool = False, beta_sigmoid: bool = False, cu_seqlens: Tensor,
    scale: float | None = None, initial_states: Tensor | None = None, return_final_states: bool,
) -> Result: ...

def delta_rule_chunked(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, chunk: int = 64, qk_l2norm: bool = False,
    beta_sigmoid: bool = False, cu_seqlens: Tensor, scale: float | None = None, initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Result: ...

def gated_delta_rule_chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, *, chunk: int = 64, qk_l2norm: bool = False, beta_sigmoid: bool = False,
    cu_seqlens: Tensor, scale: float | None = None, initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Result: ...

def kda_chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, *, chunk: int = 64, qk_l2norm: bool = False, beta_sigmoid: bool = False,
    cu_seqlens: Tensor, scale: float | None = None, initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Result: ...

@overload
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, scale: float | None = None,
    initial_states: Tensor | None = None, return_final_states: Literal[False] = False,
) -> Tensor: ...
@overload
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, scale: float | None = None,
    initial_states: Tensor | None = None, return_final_states: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, scale: float | None = None,
    initial_states: Tensor | None = None, return_final_states: bool,
) -> Result: ...

@overload
def simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, cu_seqlens: Tensor, scale: float | None = None,
    initial_states: Tensor | None = None, return_final_states: Literal[False] = False,
) -> Tensor: ...
@overload
def simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, cu_seqlens: Tensor, scale: float | None = None,
    initial_states: Tensor | None = None, return_final_states: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, cu_seqlens: Tensor, scale: float | None = None,
    initial_states: Tensor | None = None, return_final_states: bool,
) -> Result: ...

@overload
def retention(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, *, cu_seqlens: Tensor, scale: float | None = None,
    initial_states: Tensor | None = None, return_final_states: Literal[False] = False,
) -> Tensor: ...
@overload
def retention(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, *, cu_seqlens: Tensor, scale: float | None = None,
    initial_states: Tensor | None = None, return_final_states: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def retention(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, *, cu_seqlens: Tensor, scale: float | None = None,
    initial_states: Tensor | None = None, return_final_states: bool,
) -> Result: ...

def linear_attention_chunked(
    q: Tensor, k: Tensor, v: Tensor, *, chunk: int = 64, cu_seqlens: Tensor, scale: float | None = None,
    initial_states: Tensor | None = None, return_final_states: bool = False,
) -> Result: ...

def simple_gla_chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, chunk: int = 64, cu_seqlens: Tensor, scale: float | None = None,
    initial_states: Tensor | None = None, return_final_states: bool = False,
) -> Result: ...

def retention_chunked(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, *, chunk: int = 64, cu_seqlens: Tensor,
    scale: float | None = None, initial_states: Tensor | None = None, return_final_states: bool = False,
) -> Result: ...

@overload
def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    delta_bias: Tensor | None = None, *, delta_softplus: bool = False, cu_seqlens: Tensor,
    initial_states: Tensor | None = None, return_final_states: Literal[False] = False,
) -> Tensor: ...
@overload
def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    delta_bias: Tensor | None = None, *, delta_softplus: bool = False, cu_seqlens: Tensor,
    initial_states: Tensor | None = None, return_final_states: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    delta_bias: Tensor | None = None, *, delta_softplus: bool = False, cu_seqlens: Tensor,
    initial_states: Tensor | None = None, return_final_states: bool,
) -> Result: ...

@overload
def ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    dt_bias: Tensor | None = None, *, dt_softplus: bool = False, cu_seqlens: Tensor,
    initial_states: Tensor | None = None, return_final_states: Literal[False] = False,
) -> Tensor: ...
@overload
def ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    dt_bias: Tensor | None = None, *, dt_softplus: bool = False, cu_seqlens: Tensor,
    initial_states: Tensor | None = None, return_final_states: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    dt_bias: Tensor | None = None, *, dt_softplus: bool = False, cu_seqlens: Tensor,
    initial_states: Tensor | None = None, return_final_states: bool,
) -> Result: ...

@overload
def ssd_chunked(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    dt_bias: Tensor | None = None, *, chunk: int = 64, dt_softplus: bool = False, cu_seqlens: Tensor,
    initial_states: Tensor | None = None, return_final_states: Literal[False] = False,
) -> Tensor: ...
@overload
def ssd_chunked(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    dt_bias: Tensor | None = None, *, chunk: int = 64, dt_softplus: bool = False, cu_seqlens: Tensor,
    initial_states: Tensor | None = None, return_final_states: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def ssd_chunked(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    dt_bias: Tensor | None = None, *, chunk: int = 64, dt_softplus: bool = False, cu_seqlens: Tensor,
    initial_states: Tensor | None = None, return_final_states: bool,
) -> Result: ...
