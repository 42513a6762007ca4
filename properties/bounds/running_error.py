"""Error bounds of a float64 reference, computed while it runs: B of the error budget for ops without a magnitude op.

Running error analysis (Wilkinson; Higham, Accuracy and Stability of Numerical Algorithms, 3.3) to first order. Each
value has two companions. E is the error of any evaluation of the same formula, in units of roundoff. M is the sum of
the absolute terms of a sum of products, or |f(x)| after a function. A new tensor (input, constant, incoming gradient)
has E = M = |value|: its condition enters, so the bound holds for algorithms other than the reference's too. Operators
then propagate both (rules in `error_rules`):

    x + y   E = Ex + Ey              M = Mx + My
    x y     E = Mx Ey + My Ex        M = Mx My
    f(x)    E = |f'(x)| Ex + |f(x)|  M = |f(x)|       exponentials: + 2^-100, their underflow in fp32

Sums, gathers and scatters act on E and M as on values. A sum of n terms, also of products, adds √n / 8 times its terms
for the rounding of partial sums of one sign. M is not |x|: where the product of two cancelling sums is formed, a kernel
may sum the products of their terms instead. Views, in-place writes and saved tensors need no rule, since E and M belong
to storages. Gradients need none either: autograd's formulas consist of the same operators. With K = 8 the bound held
for correct kernels of ten ops, in six orders of summation and four regimes of data each (worst case: 4.3).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel

from packproof.base.errors import UsageError
from packproof.base.light_torch import DispatchMode
from packproof.properties.bounds.error_rules import LINEAR, RULES, SLOPES, SUMS, finite_abs, no_rule, rounding_of_sums

K = TypeVar("K")

_MIN_SWEEP_SIZE = 4096  # before shadows of freed storages are dropped


class RunningError(DispatchMode):
    """Inside this mode, torch's operators on floating-point tensors also compute E and M.

    floor: an additional error of each result: the underflow of a value stored in a dtype of small range.

    Raises UsageError for an operator without a rule that does not decompose into others.
    """

    def __init__(self, floor: float = 0.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._floor = floor
        self._shadows: dict[int, tuple[StorageWeakRef, Tensor, Tensor]] = {}
        self._sweep_at = _MIN_SWEEP_SIZE

    def error(self, x: Tensor | float) -> Tensor:
        """E of a tensor or number, in units of roundoff."""
        return self._shadow_view(x, 1)

    def magnitude(self, x: Tensor | float) -> Tensor:
        """M: the sum of the absolute terms of a sum of products; |value| where a function was applied."""
        return self._shadow_view(x, 2)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::").removeprefix("prims::")
        if func._schema.is_mutable and not (name.startswith("empty") or func._overloadname.endswith("out")):
            return self._run_in_place(name, func, args, kwargs)
        float_inputs = [x for x in _values(args, kwargs) if isinstance(x, Tensor) and x.is_floating_point()]
        out = func(*args, **kwargs)
        input_storages = {x.untyped_storage()._cdata for x in float_inputs}
        results = out if isinstance(out, tuple | list) else [out]
        new_outputs = [y for y in results if isinstance(y, Tensor) and y.is_floating_point()]
        new_outputs = [y for y in new_outputs if y.untyped_storage()._cdata not in input_storages]
        if "empty" in name:
            for y in new_outputs:
                self._set_shadow(y, torch.zeros((), dtype=torch.float64), None)
            return out
        if not new_outputs or name.endswith("_like") or name.startswith("new_") or not (float_inputs or name in LINEAR):
            return out  # a view, or constants, which begin at E = M = |value|
        if name in RULES or name in LINEAR:
            self._propagate(name, func, args, kwargs, out, new_outputs)
        else:
            return self._run_decomposition(func, args, kwargs)
        return out

    def _propagate(self, name: str, func: Any, args: Any, kwargs: Any, out: Any, new_outputs: Sequence[Tensor]) -> None:
        """Set E and M of an operator's new outputs."""
        if name in RULES:
            errors = RULES[name](self, out, *args, **kwargs)
        else:
            errors = self._apply_to_shadow(name, func, args, kwargs, self.error)
            if name in SUMS:
                errors = errors + rounding_of_sums(name, args, out) * self._apply_to_shadow(
                    name, func, args, kwargs, self.magnitude
                )
        terms = self._terms(name, func, args, kwargs)
        error_list = errors if isinstance(errors, tuple | list) else [errors]
        term_list = terms if isinstance(terms, tuple | list) else [terms] * len(new_outputs)
        for y, e, m in zip(new_outputs, error_list, term_list, strict=False):
            self._set_shadow(y, e + self._floor if self._floor else e, m)

    def _terms(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:  # noqa: PLR0911
        """M of the output; None for |value|."""
        M = self.magnitude
        if name in ("add", "sub", "rsub"):
            return M(args[0]) + abs(kwargs.get("alpha", 1)) * M(args[1])
        if name == "mul":
            return M(args[0]) * M(args[1])
        if name == "div":
            return M(args[0]) / finite_abs(args[1])
        if name in ("mm", "bmm", "mv", "dot"):
            return torch.matmul(M(args[0]), M(args[1]))
        if name in ("addmm", "baddbmm", "addmv"):
            product = torch.matmul(M(args[1]), M(args[2]))
            return abs(kwargs.get("beta", 1)) * M(args[0]) + abs(kwargs.get("alpha", 1)) * product
        if name == "scatter_reduce" and args[4] in ("sum", "mean"):
            return self._apply_to_shadow(name, func, args, kwargs, M)
        if name in SLOPES:
            return M(args[0]) * SLOPES[name](args[1])
        return self._apply_to_shadow(name, func, args, kwargs, M) if name in LINEAR else None

    def _run_in_place(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Run x.f_(...) as x.copy_(x.f(...)), for the value, E and M."""
        if not name.endswith("_"):  # it writes to another argument, as rrelu_with_noise does to its noise
            raise UsageError(no_rule(func))
        target = args[0]
        if not target.is_floating_point() or torch.Tag.inplace_view in func.tags:  # squeeze_: other strides, no values
            return func(*args, **kwargs)
        if name == "copy_":
            e, m = (quantity(args[1]).expand(target.shape).clone() for quantity in (self.error, self.magnitude))
        elif name in ("zero_", "fill_"):
            e = m = finite_abs(args[1] if len(args) > 1 else 0.0).expand(target.shape).clone()
        else:
            with self:  # torch disables a mode inside its own dispatch: enter it again
                out = getattr(getattr(torch.ops.aten, name.removesuffix("_")), func._overloadname)(*args, **kwargs)
            e, m = self.error(out).clone(), self.magnitude(out).clone()
            func, args, kwargs = torch.ops.aten.copy_.default, (target, out), {}
        func(*args, **kwargs)
        self._set_shadow(target, e, m)
        return target

    def _run_decomposition(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run the operator's decomposition inside the mode."""
        try:
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
            decomposition = decomposition_table.get(func)
            if decomposition is None or "prims" in str(decomposition):
                raise UsageError(no_rule(func))
            with self:
                return decomposition(*args, **kwargs)
        except RecursionError:  # it consists of itself
            raise UsageError(no_rule(func)) from None

    def _apply_to_shadow(self, name: str, func: Any, args: Any, kwargs: Any, quantity: Callable[[Any], Tensor]) -> Any:
        """The operator applied to E or M. Numbers, such as the value of masked_fill, enter by their magnitude."""
        if name in ("_to_copy", "neg", "abs", "nan_to_num"):
            return quantity(args[0]).clone()

        def to_quantity(x: Any) -> Any:
            if isinstance(x, Tensor):
                return quantity(x).clone() if x.is_floating_point() else x
            return float(finite_abs(x)) if isinstance(x, float) else x

        arguments = [_map_values(to_quantity, x) for x in args]
        keywords = {name: _map_values(to_quantity, x) for name, x in kwargs.items()}
        if "alpha" in keywords:
            keywords["alpha"] = abs(keywords["alpha"])
        keywords.pop("dtype", None)
        return func(*arguments, **keywords)

    def _shadow(self, t: Tensor) -> tuple[StorageWeakRef, Tensor, Tensor]:
        storage = t.untyped_storage()
        entry = self._shadows.get(storage._cdata)
        if entry is None:
            flat = torch.empty(0, dtype=t.dtype).set_(storage)
            weak_storage = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # no other storage gets its address
            magnitude = finite_abs(flat)
            entry = self._shadows[storage._cdata] = (weak_storage, magnitude, magnitude.clone())
            if len(self._shadows) > self._sweep_at:
                self._shadows = {k: v for k, v in self._shadows.items() if not v[0].expired()}  # type: ignore[no-untyped-call]
                self._sweep_at = max(_MIN_SWEEP_SIZE, 2 * len(self._shadows))
        return entry

    def _shadow_view(self, x: Tensor | float, index: int) -> Tensor:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return finite_abs(x)
        shadow = self._shadow(x)[index]
        assert isinstance(shadow, Tensor)
        return torch.as_strided(shadow, x.shape, x.stride(), x.storage_offset())

    def _set_shadow(self, t: Tensor, e: Tensor, m: Tensor | None) -> None:
        terms = finite_abs(t) if m is None else torch.maximum(m.nan_to_num(nan=0.0, posinf=float("inf")), finite_abs(t))
        self._shadow_view(t, 1).copy_(torch.where(torch.isnan(e), 0.0, e))  # NaN is 0 * inf: no error enters
        self._shadow_view(t, 2).copy_(terms)


# an operator's arguments are values or lists of values: torch's trees, of any depth, take longer


def _values(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    for x in (*args, *kwargs.values()):
        if isinstance(x, list | tuple):
            yield from x
        else:
            yield x


def _map_values(function: Callable[[Any], Any], x: Any) -> Any:
    return [function(y) for y in x] if isinstance(x, list | tuple) else function(x)


def run_with_error_bounds(
    run: Callable[[], Mapping[K, Tensor]], floor: float = 0.0
) -> tuple[Mapping[K, Tensor], dict[K, Tensor]]:
    """The tensors returned by `run`, and E of each, by key. floor: as in `RunningError`."""
    mode = RunningError(floor)
    with mode, sdpa_kernel(SDPBackend.MATH):  # as the equation: a fused kernel hides its operators
        values = run()
    return values, {name: mode.error(x).clone() for name, x in values.items()}
