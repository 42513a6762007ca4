"""How each operator propagates an error: the rules of `running_error`.

A rule takes the analysis (`error` and `magnitude` of an operand), the operator's result z, and its arguments. It
returns E of the output, or a list where there are several outputs.
"""

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any, Protocol

import torch
from torch import Tensor

from packproof.refs.errors import UsageError

UNDERFLOW = 2.0**-100
SPREAD = 1 / 8  # measured: partial sums of n terms of one sign round by SPREAD √n times their sum
aten = torch.ops.aten

# E goes where the value goes: the operator itself on E
LINEAR = frozenset(
    (  # noqa: SIM905
        "clone _to_copy copy cat stack index index_select gather where repeat flip roll tril triu constant_pad_nd "
        "select_backward slice_backward diagonal_backward embedding index_put _unsafe_index_put _index_put_impl "
        "scatter scatter_add index_add index_copy slice_scatter select_scatter as_strided_scatter masked_fill "
        "masked_scatter sum cumsum mean repeat_interleave contiguous fill neg abs nan_to_num new_zeros _unsafe_view "
        "split_with_sizes_copy unfold_backward trace zero alias_copy expand_copy view_copy put masked_scatter_backward "
        "avg_pool2d avg_pool2d_backward replication_pad1d replication_pad1d_backward"
    ).split()
)
SUMS = frozenset({"sum", "cumsum", "mean"})


class Analysis(Protocol):
    def error(self, x: Tensor | float) -> Tensor: ...
    def magnitude(self, x: Tensor | float) -> Tensor: ...


Rule = Callable[..., Any]
Slope = Callable[[Tensor, Tensor], Tensor]


def no_rule(operator: Any) -> str:
    """The error text for an operator without a rule."""
    return (
        f"the error bound of the reference cannot be derived: no rule is known for torch's {operator}; write the "
        "reference with other operators, or declare `absolute`"
    )


def size(x: Any) -> Tensor:
    """|x| of a tensor or number in float64; zero where x is infinite, since that is a mask."""
    x = x.double() if isinstance(x, Tensor) else torch.as_tensor(x, dtype=torch.float64)
    return torch.where(torch.isfinite(x), x.abs(), 0.0)


def rounding_of_sums(name: str, args: Any, out: Tensor) -> float:
    """The rounding of a sum of n terms, as a multiple of its terms."""
    x = args[0]
    n = x.shape[args[1]] if name == "cumsum" and x.ndim else x.numel() / max(out.numel(), 1)
    return SPREAD * sqrt(max(n - 1, 0))


def _add(at: Analysis, z: Tensor, x: Any, y: Any, alpha: float = 1) -> Tensor:
    return at.error(x) + abs(alpha) * at.error(y)


def _mul(at: Analysis, z: Tensor, x: Any, y: Any) -> Tensor:
    return at.magnitude(x) * at.error(y) + at.magnitude(y) * at.error(x)


def _div(at: Analysis, z: Tensor, x: Any, y: Any, rounding_mode: Any = None) -> Tensor:
    return (at.error(x) + at.magnitude(x) / size(y) * at.error(y)) / size(y)


def _function(slope: Slope, tiny: float = 0.0) -> Rule:
    """f(x): |f'(x)| Ex + |f(x)|."""

    def rule(at: Analysis, z: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        e = slope(x.double(), z.double()).abs() * at.error(x)
        return torch.where(at.error(x) == 0, 0.0, e) + size(z) + torch.where(torch.isfinite(x), tiny, 0.0)

    return rule


def _power(at: Analysis, z: Tensor, x: Any, p: Any) -> Tensor:
    """x^p; either may be a number: |p x^(p-1)| Ex + |z log x| Ep."""
    e = size(z)
    if isinstance(x, Tensor):
        slope: Tensor = p * x.double().pow(p - 1)
        e = e + slope.abs() * at.error(x)
    if isinstance(p, Tensor):
        e = e + size(size(z) * size(x).log()) * at.error(p)  # x = 0: its logarithm is infinite, and x^p exact
    return e


def _silu_slope(x: Tensor, z: Any = None) -> Tensor:
    s = x.sigmoid()
    return s * (1 + x * (1 - s)).abs()


def _softplus(at: Analysis, z: Tensor, x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return (x * beta).sigmoid() * at.error(x) + size(z) + UNDERFLOW


def _larger(at: Analysis, z: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(torch.where(x == z, at.error(x), 0.0), torch.where(y == z, at.error(y), 0.0))


def _extreme(choose: Callable[..., Tensor]) -> Rule:
    def rule(at: Analysis, z: Tensor, x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
        return torch.where(x == choose(x, dim, True), at.error(x), 0.0).amax(dim, keepdim)

    return rule


def _max_along(at: Analysis, z: Any, x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    return _larger(at, z, x, dim) if isinstance(dim, Tensor) else _middle(at, z, x, dim, keepdim)


def _selected(at: Analysis, z: Any, x: Tensor, dim: int = -1, keepdim: bool = True) -> list[Tensor]:
    """For an operator with values and indices along an axis: the error of the selected elements."""
    index = z[1] if keepdim or not x.ndim else z[1].unsqueeze(dim)
    e = at.error(x).gather(dim, index)
    return [e if keepdim or not x.ndim else e.squeeze(dim)]


def _sort(at: Analysis, z: Any, x: Tensor, dim: int = -1, descending: bool = False, **_: Any) -> list[Tensor]:
    return _selected(at, z, x, dim)


def _topk(at: Analysis, z: Any, x: Tensor, k: int, dim: int = -1, *_: Any, **__: Any) -> list[Tensor]:
    return _selected(at, z, x, dim)


def _extreme_so_far(at: Analysis, z: Any, x: Tensor, dim: int) -> list[Tensor]:
    return _selected(at, z, x, dim)


def _kth(at: Analysis, z: Any, x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> list[Tensor]:
    return _selected(at, z, x, dim, keepdim)


def _middle(at: Analysis, z: Any, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """median and mode. Without an axis there is no index: the largest error of all elements equal to the result."""
    if dim is None:
        return torch.where(x == z, at.error(x), 0.0).amax()
    return _selected(at, z, x, dim, keepdim)


def _scatter_reduce(
    at: Analysis, z: Tensor, x: Tensor, dim: int, index: Tensor, source: Tensor, how: str, **kwargs: Any
) -> Tensor:
    """Sum or mean of the errors; for extremes, the error of the selected elements. A product has no rule."""
    if how in ("sum", "mean"):
        return torch.scatter_reduce(at.error(x), dim, index, at.error(source), how, **kwargs)
    if how == "prod":
        raise UsageError(no_rule(f"scatter_reduce with {how!r}"))
    e = torch.where(source.double() == z.double().gather(dim, index), at.error(source), 0.0)
    return torch.where(x == z, at.error(x), 0.0).scatter_reduce(dim, index, e, "amax")


def _product(at: Analysis, z: Tensor, x: Tensor, y: Tensor) -> Tensor:
    mx, my = at.magnitude(x), at.magnitude(y)
    spread = SPREAD * sqrt(max(x.shape[-1] - 1, 0))
    return torch.matmul(mx, at.error(y)) + torch.matmul(at.error(x), my) + torch.matmul(mx, my) * spread


def _add_product(at: Analysis, z: Tensor, c: Any, x: Tensor, y: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    return at.error(c) * abs(beta) + _product(at, z, x, y) * abs(alpha)


def _sigmoid_backward(at: Analysis, z: Tensor, g: Tensor, y: Tensor) -> Tensor:  # g y (1 - y)
    u = 1 - y
    return size(y * u) * at.error(g) + at.magnitude(g) * (size(u) * at.error(y) + size(y) * (at.error(y) + 1))


def _tanh_backward(at: Analysis, z: Tensor, g: Tensor, y: Tensor) -> Tensor:
    return size(1 - y * y) * at.error(g) + at.magnitude(g) * (1 + 2 * size(y) * at.error(y))


def _softplus_backward(at: Analysis, z: Tensor, g: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    s = (x * beta).sigmoid()
    return s * at.error(g) + at.magnitude(g) * (s * (1 - s) * abs(beta) * at.error(x) + s + UNDERFLOW)


def _silu_backward(at: Analysis, z: Tensor, g: Tensor, x: Tensor) -> Tensor:
    """g s (1 + x (1 - s)). 1 - s has the full rounding error of the sigmoid s, and it enters times x."""
    s, e_x = x.sigmoid(), at.error(x)
    e_s = s * (1 - s) * e_x + s + UNDERFLOW
    terms = 1 + x.abs() * (1 - s)
    e = e_s * terms + s * ((1 - s) * e_x + x.abs() * e_s) + s * terms
    return s * terms * at.error(g) + at.magnitude(g) * e


def _variance(
    at: Analysis, z: Tensor, x: Tensor, dim: Any = None, correction: Any = 1, keepdim: bool = False
) -> Tensor:
    dim = tuple(range(x.ndim)) if dim is None else dim
    off = (x - x.mean(dim, keepdim=True)).double()
    e = at.error(x) + at.error(x).mean(dim, keepdim=True)
    n = off.numel() / max(z.numel(), 1) - (1 if correction is None else float(correction))
    return (2 * off.abs() * e).sum(dim, keepdim=keepdim) / max(n, 1) + size(z)


def _running_products(x: Tensor, e: Tensor, dim: int) -> Tensor:
    """E of x[0] x[1] ... x[i], for each i along an axis of |x| and E."""
    p, total, errors = torch.ones_like(e.select(dim, 0)), torch.zeros_like(e.select(dim, 0)), []
    for a, b in zip(x.unbind(dim), e.unbind(dim), strict=True):
        total, p = total * a + p * b, p * a
        errors.append(total)
    return torch.stack(errors, dim)


def _prod(at: Analysis, z: Tensor, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    if not x.numel():
        return size(z)
    dim = dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim
    if not isinstance(dim, int):
        return _running_products(size(x).flatten(), at.error(x).flatten(), 0)[-1].reshape(z.shape)
    if not x.ndim:
        return at.error(x)
    e = _running_products(size(x), at.error(x), dim).select(dim, -1)
    return e.unsqueeze(dim) if keepdim else e


def _cumprod(at: Analysis, z: Tensor, x: Tensor, dim: int, **_: Any) -> Tensor:
    return _running_products(size(x), at.error(x), dim) if x.numel() and x.ndim else at.error(x)


def _logcumsumexp(at: Analysis, z: Tensor, x: Tensor, dim: int) -> Tensor:
    """Each term has the weight exp(x - z), its share of the sum so far, and the rounding of its exponential."""
    if not x.ndim:
        return at.error(x) + size(z)
    terms, sums, e = (t.movedim(dim, -1) for t in (x.double(), z.double(), at.error(x)))
    shares = (terms[..., None, :] - sums[..., None]).exp().nan_to_num(0.0).tril()  # -inf - -inf: no term so far
    return (shares * (e + 1)[..., None, :]).sum(-1).movedim(-1, dim) + size(z)


def _convolution(at: Analysis, z: Tensor, x: Tensor, w: Tensor, b: Tensor | None, *args: Any) -> Tensor:
    f = aten.convolution.default
    e: Tensor = f(size(x), at.error(w), None, *args) + f(at.error(x), size(w), None, *args)
    e = e + f(size(x), size(w), None, *args) * (SPREAD * sqrt(max(w[0].numel() - 1, 0)))
    return e if b is None else e + at.error(b).view(1, -1, *[1] * (x.ndim - 2))


def _convolution_backward(at: Analysis, z: Any, g: Tensor, x: Tensor, w: Tensor, *args: Any) -> list[Tensor]:
    f = aten.convolution_backward.default
    parts = f(at.error(g).clone(), size(x), size(w), *args), f(size(g), at.error(x).clone(), at.error(w).clone(), *args)
    spread = 1 + SPREAD * sqrt(g.numel())
    return [a + spread * b for a, b in zip(*parts, strict=True) if a is not None]


def _clamp(at: Analysis, z: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return torch.where(x == z, at.error(x), size(z))


def _remainder(at: Analysis, z: Tensor, x: Any, y: Any) -> Tensor:
    """x - k y, k a whole number."""
    return at.error(x) + (size(x) / size(y)).ceil() * at.error(y)


def _hypot(at: Analysis, z: Tensor, x: Tensor, y: Tensor) -> Tensor:
    e = size(x) * at.error(x) + size(y) * at.error(y)
    return torch.where(e == 0, 0.0, e / size(z)) + size(z)


def _atan2(at: Analysis, z: Tensor, x: Tensor, y: Tensor) -> Tensor:
    e = size(y) * at.error(x) + size(x) * at.error(y)
    return torch.where(e == 0, 0.0, e / (x * x + y * y)) + size(z)


def _zero(at: Analysis, z: Tensor, x: Tensor, **_: Any) -> Tensor:
    return torch.zeros_like(size(z))


_LOG_2, _LOG_10 = 0.6931471805599453, 2.302585092994046
_FUNCTIONS: Mapping[str, Rule] = {
    "exp": _function(lambda x, z: z, UNDERFLOW),
    "exp2": _function(lambda x, z: _LOG_2 * z, UNDERFLOW),
    "expm1": _function(lambda x, z: z + 1),
    "log": _function(lambda x, z: 1 / x),
    "log2": _function(lambda x, z: 1 / (_LOG_2 * x)),
    "log1p": _function(lambda x, z: 1 / (1 + x)),
    "sqrt": _function(lambda x, z: 0.5 / z),
    "rsqrt": _function(lambda x, z: 0.5 * z**3),
    "reciprocal": _function(lambda x, z: z * z),
    "sigmoid": _function(lambda x, z: z * (1 - z), UNDERFLOW),
    "tanh": _function(lambda x, z: 1 - z * z),
    "erf": _function(lambda x, z: 1.1283791670955126 * (-x * x).exp()),
    "erfc": _function(lambda x, z: 1.1283791670955126 * (-x * x).exp(), UNDERFLOW),
    "log10": _function(lambda x, z: 1 / (_LOG_10 * x)),
    "sin": _function(lambda x, z: x.cos()),
    "cos": _function(lambda x, z: x.sin()),
    "tan": _function(lambda x, z: 1 + z * z),
    "asin": _function(lambda x, z: (1 - x * x).rsqrt()),
    "acos": _function(lambda x, z: (1 - x * x).rsqrt()),
    "atan": _function(lambda x, z: 1 / (1 + x * x)),
    "sinh": _function(lambda x, z: x.cosh()),
    "cosh": _function(lambda x, z: x.sinh()),
    "asinh": _function(lambda x, z: (1 + x * x).rsqrt()),
    "acosh": _function(lambda x, z: (x * x - 1).rsqrt()),
    "atanh": _function(lambda x, z: 1 / (1 - x * x)),
    "silu": _function(_silu_slope, UNDERFLOW),
    "softplus": _softplus,
    "relu": lambda at, z, x: torch.where(x > 0, at.error(x), 0.0),
}
RULES: Mapping[str, Rule] = {
    **_FUNCTIONS,
    **dict.fromkeys(("add", "sub", "rsub"), _add),
    **dict.fromkeys(("mm", "bmm", "mv", "dot"), _product),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), _add_product),
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin"), _larger),
    **dict.fromkeys(("max", "min"), _max_along),
    **dict.fromkeys(("cummax", "cummin"), _extreme_so_far),
    **dict.fromkeys(("median", "nanmedian", "mode"), _middle),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), _clamp),
    **dict.fromkeys(("sgn", "sign", "floor", "ceil", "round", "trunc"), _zero),
    **dict.fromkeys(("fmod", "remainder"), _remainder),
    "scatter_reduce": _scatter_reduce,
    "sort": _sort,
    "topk": _topk,
    "kthvalue": _kth,
    "atan2": _atan2,
    "hypot": _hypot,
    "logcumsumexp": _logcumsumexp,
    "mul": _mul,
    "div": _div,
    "pow": _power,
    "amax": _extreme(torch.amax),
    "amin": _extreme(torch.amin),
    "prod": _prod,
    "cumprod": _cumprod,
    "var": _variance,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "sigmoid_backward": _sigmoid_backward,
    "tanh_backward": _tanh_backward,
    "softplus_backward": _softplus_backward,
    "silu_backward": _silu_backward,
}
# backward passes of functions: the factor of the incoming gradient's terms
SLOPES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sigmoid_backward": lambda y: size(y * (1 - y)),
    "tanh_backward": lambda y: size(1 - y * y),
    "softplus_backward": torch.sigmoid,
    "silu_backward": _silu_slope,
}
