"""An adapted call as lines of torch: what each convention does to the arguments, and to what the kernel returns.

The lines begin from the op's tensors, so that gradients are those of the op. What a convention makes of the offsets
and of slots alone is written as values.
"""

import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packproof.adapters.adapter import Adapter
from packproof.adapters.conversions import (
    WIDTH_POWERS,
    Conversion,
    L2Norm,
    Scaled,
    base2_log,
    conversion_text,
    natural_log,
)
from packproof.adapters.draft_windows import Tree
from packproof.adapters.pages import Pages
from packproof.adapters.pool_slots import DraftBuffer, NullSlot, PagedSlots, SlotPerDraft
from packproof.adapters.tensor_axes import AxisOrder
from packproof.adapters.tokens import Batched, Gaps, Packed, Padded, Tokens, token_axis
from packproof.base.errors import UsageError

SPREAD = '''def spread(x, rows, count, fill):
    """`count` rows: those of x at `rows`, `fill` elsewhere."""
    out = torch.full((count, *x.shape[1:]), fill, dtype=x.dtype, device=x.device)
    return out.index_copy(0, rows, x[: len(rows)])
'''
_SPREAD_TOKENS = (Padded, Tree, Gaps, Pages)
WRITTEN = (Packed, Batched, *_SPREAD_TOKENS, NullSlot, PagedSlots, SlotPerDraft, DraftBuffer)


@dataclass(frozen=True)
class RowPlaces:
    """Rows that a convention puts at places of its own, with a fill between them."""

    rows: Tensor
    """The place of each row, in the flattened leading axes."""
    shape: tuple[int, ...]
    """The leading axes."""

    @classmethod
    def of(cls, to: Callable[[Tensor], Tensor], shape: Sequence[int]) -> "RowPlaces":
        """Where rows of this shape go: their numbers, from 1 on, are sent the same way."""
        numbers = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64).view(*shape)
        places = to(numbers).nan_to_num(0)
        return cls(places.flatten().argsort(stable=True)[places.numel() - int((places > 0).sum()) :], places.shape)


@dataclass
class CallLines:
    """One call of an adapted kernel, to be written."""

    adapter: Adapter
    arguments: Mapping[str, Any]
    """The op's inputs, options and offsets."""
    outputs: Mapping[str, int]
    """The outputs of this call, with the number of their axes."""
    wrt: Collection[str]
    """The inputs by which the call is differentiated."""
    literal: Callable[[Tensor], str]
    """Writes a tensor."""

    def __post_init__(self) -> None:
        self._require_data()
        adapter, offsets = self.adapter, (self.arguments["cu_seqlens"], self.arguments.get("cu_seqlens_k"))
        named = {n: x for n, x in self.arguments.items() if n not in ("cu_seqlens", "cu_seqlens_k")}
        self._op_arguments = {**adapter.fixed, **named}
        self._inputs, more = adapter.kernel_inputs(self._op_arguments, *offsets)
        self._more = {**adapter.metadata_values(self._op_arguments, *offsets), **adapter.given, **more()}

    def read_tensors(self) -> Iterator[str]:
        """The op's inputs from which the lines begin."""
        return (n for n in self.adapter.op.inputs if self._written_from(n) is not None)

    def lines(self, kernel: str) -> Iterator[str]:
        """The arguments, the call of the kernel by this name, and the op's outputs."""
        texts = {**{n: _plain(x, n) for n, x in self.adapter.kernel_signature.kernel_defaults.items()}}
        for name in self.adapter.kernel_signature.op_arguments:
            yield from self._input_lines(name, texts)
        for name, value in {**self._inputs, **self._more}.items():
            if name not in texts or name in self._more:
                yield from self._value_line(name, value, texts)
        positional = [texts.pop(name) for name in self.adapter.kernel_signature.positional_arguments]
        yield f"returned = {kernel}({', '.join([*positional, *(f'{name}={text}' for name, text in texts.items())])})"

    def output_lines(self) -> Iterator[str]:
        """The op's outputs, of what the kernel returned."""
        adapter = self.adapter
        overwritten = [f"kernel_{adapter.kernel_name(n)}" for n in adapter.op.inputs if n in adapter.in_place]
        if overwritten:
            yield f"returned = ({', '.join(overwritten)},) if returned is None else returned"
        yield "returned = returned if isinstance(returned, tuple | list) else (returned,)"
        if adapter.updated_pools:
            pools = [f"kernel_{adapter.kernel_name(n)}" for n in adapter.updated_pools]
            yield f"returned = (*returned[:{len(adapter.op.outputs) - len(pools)}], {', '.join(pools)})"
        yield f"{', '.join(self.outputs)}, *_ = returned"
        for name, axes in self.outputs.items():
            yield from self._back_lines(name, axes)

    def _require_data(self) -> None:
        """Raises UsageError for a part of the convention that is code."""
        adapter = self.adapter
        for argument, layout in (("tokens", adapter.tokens), ("keys", adapter.keys), ("slots", adapter.slots)):
            if layout is not None and type(layout) not in WRITTEN:
                raise UsageError(f"{argument}={layout} moves more than rows, and is code")
        for name in (*self.wrt, *self.outputs):
            if self._has_own_conversion(name):
                raise UsageError(f"converted {name!r} is {conversion_text(adapter.converted[name])}, which is code")
        module = getattr(adapter.function, "__module__", None) or ""
        if module.startswith("packproof.adapters"):
            raise UsageError(f"it calls the kernel by {module}:{adapter.function.__qualname__}, which is code")

    def _has_own_conversion(self, name: str) -> bool:
        function = self.adapter.converted.get(name)
        return function is not None and not _converted(function, name)

    def _written_from(self, name: str) -> Tensor | None:
        """The tensor that an argument is made of by lines; None if it is written as a value, or is absent."""
        x = self._op_arguments.get(name)
        is_written = name in self.adapter.kernel_signature.op_arguments and not self._has_own_conversion(name)
        return x if is_written and isinstance(x, Tensor) and x.is_floating_point() else None

    def _input_lines(self, name: str, texts: dict[str, str]) -> Iterator[str]:
        """One of the op's inputs, as the kernel takes it."""
        x, adapter, argument = self._written_from(name), self.adapter, self.adapter.kernel_name(name)
        if x is None:
            return
        text, order = name, adapter.axis_orders.get(name)
        if name in adapter.converted:
            text = f"converted_{name}"
            rows = len(x) if adapter.is_per_token(name) else None
            yield from self._conversion_lines(adapter.converted[name], name, text, rows)
        if order is not None and x.ndim == len(order.op_axes):
            text += _order_text(order)
            x = order.to(x)
        if adapter.is_per_token(name):
            spread = yield from self._spread_lines(name, f"{argument}_rows")
            text = self._laid_out(name, text, x, spread, argument)
        if name in adapter.in_place:
            text += ".clone()"
        if adapter.slots and name in {before for before, _ in adapter.op.pools}:
            spread = self._slot_spread(name)
            yield f"{argument}_rows = {self.literal(spread.rows)}"
            text = _spread_text(text, f"{argument}_rows", spread, x.shape[self._slot_axes :], math.nan, self._slot_axes)
        texts[argument] = text if text == name else f"kernel_{argument}"
        if text != name:
            yield f"kernel_{argument} = {text}"

    def _value_line(self, name: str, value: Any, texts: dict[str, str]) -> Iterator[str]:
        """An argument that is written as it is."""
        if isinstance(value, Tensor):
            texts[name] = f"kernel_{name}"
            yield f"kernel_{name} = {self.literal(value)}{self._made_of(name)}"
        else:
            texts[name] = _plain(value, name)

    def _made_of(self, name: str) -> str:
        """A comment on metadata."""
        make: Any = self.adapter.metadata.get(name)
        while hasattr(make, "make"):
            make = make.make
        text = getattr(make, "__name__", "")
        return f"  # {text} of the offsets" if text and text != name else ""

    def _conversion_lines(self, function: Conversion, name: str, result: str, rows: int | None) -> Iterator[str]:
        """The values of a tensor as the kernel takes them, or as the op does.

        rows: those of the pack, of a tensor along the tokens; slack stays as it is.
        """
        n, x = self._tokens_in_sequences(name), "wide"
        yield f"wide = {name}.to(torch.promote_types({name}.dtype, torch.float32))"
        if rows is not None and n < rows:
            yield f"inside = (torch.arange({rows}, device=wide.device) < {n}).view(-1, *[1] * (wide.ndim - 1))"
            yield "tokens = torch.where(inside, wide, 1)"
            x = "tokens"
        text = _converted(function, x)
        text = f"torch.where(inside, {text}, wide)" if x != "wide" else f"({text})"
        yield f"{result} = {text}.to({name}.dtype)"

    def _offsets(self, name: str) -> Tensor:
        of_keys = self.adapter.is_per_key(name) and self.arguments.get("cu_seqlens_k") is not None
        offsets: Tensor = self.arguments["cu_seqlens_k" if of_keys else "cu_seqlens"]
        return offsets

    def _tokens_in_sequences(self, name: str) -> int:
        return int(self._offsets(name)[-1])

    def _layout(self, name: str) -> Tokens:
        keys = self.adapter.keys
        return keys if keys is not None and self.adapter.is_per_key(name) else self.adapter.tokens

    def _spread_lines(self, name: str, rows: str) -> Generator[str, None, RowPlaces | None]:
        """The places of the rows of one tensor, if its layout has places of its own. Returns them."""
        layout, offsets = self._layout(name), self._offsets(name)
        if not isinstance(layout, _SPREAD_TOKENS):
            return None
        spread = RowPlaces.of(lambda numbers: layout.to(numbers, offsets, 0), (self._tokens_in_sequences(name),))
        yield f"{rows} = {self.literal(spread.rows)}"
        return spread

    def _laid_out(self, name: str, text: str, x: Tensor, spread: RowPlaces | None, argument: str) -> str:
        layout = self._layout(name)
        if spread is None:
            text += ".unsqueeze(0)" * isinstance(layout, Batched)
            first, ndim = (1, x.ndim + 1) if isinstance(layout, Batched) else (0, x.ndim)
            return text + _moved(first, _axis(layout, ndim))
        assert isinstance(layout, _SPREAD_TOKENS)
        outside = self.adapter.op.outside_value(name, self._op_arguments)
        fill = layout.fill if outside is None else outside
        text = _spread_text(text, f"{argument}_rows", spread, x.shape[1:], fill)
        text += _moved(1, _axis(layout, x.ndim + len(spread.shape) - 1))
        return text + ".contiguous()" * isinstance(layout, Pages)

    @property
    def _slot_axes(self) -> int:
        """The leading axes of the op's pool that its slots count."""
        return 2 if isinstance(self.adapter.slots, SlotPerDraft) else 1

    def _slot_spread(self, name: str) -> RowPlaces:
        slots = self.adapter.slots
        assert slots is not None
        return RowPlaces.of(slots.to, self._op_arguments[name].shape[: self._slot_axes])

    def _back_lines(self, name: str, axes: int) -> Iterator[str]:
        """One output of the kernel as the op's."""
        adapter, text, order = self.adapter, name, self.adapter.axis_orders.get(name)
        if adapter.is_per_token(name):
            spread = yield from self._spread_lines(name, f"{name}_rows")
            text = self._packed(name, len(order.kernel_axes) if order else axes, spread)
        pool = {after: before for before, after in adapter.op.pools}.get(name)
        if adapter.slots and pool:
            spread = self._slot_spread(pool)
            shape = self._op_arguments[pool].shape[: self._slot_axes]
            text += f".flatten(0, {len(spread.shape) - 1})" * (len(spread.shape) > 1)
            text += f"[{adapter.kernel_name(pool)}_rows]" + f".unflatten(0, {tuple(shape)})" * (len(shape) > 1)
        text += _back_order_text(order) if order else ""
        if text != name:
            yield f"{name} = {text}"
        if name in adapter.converted:
            rows = adapter.row_counts(self._op_arguments)[0] if adapter.is_per_token(name) else None
            yield from self._conversion_lines(adapter.converted[name], name, name, rows)

    def _packed(self, name: str, axes: int, spread: RowPlaces | None) -> str:
        """An output along the tokens as (t, ...), with zeros in slack."""
        layout = self._layout(name)
        if spread is None:
            first, ndim = (1, axes + 1) if isinstance(layout, Batched) else (0, axes)
            return name + _moved(_axis(layout, ndim), first) + ".squeeze(0)" * isinstance(layout, Batched)
        text = name + _moved(_axis(layout, axes + len(spread.shape) - 1), 1)
        text += f".flatten(0, {len(spread.shape) - 1})" * (len(spread.shape) > 1) + f"[{name}_rows]"
        slack = self.adapter.row_counts(self._op_arguments)[0] - len(spread.rows)
        return f"functional.pad({text}, ({'0, 0, ' * (axes - 1)}0, {slack}))" if slack else text


def _axis(layout: Tokens, ndim: int) -> int:
    """The axis of tokens in a tensor of the kernel."""
    return token_axis(torch.empty([0] * ndim), getattr(layout, "axis", 1))


def _moved(source: int, destination: int) -> str:
    return f".movedim({source}, {destination})" if source != destination else ""


def _spread_text(text: str, rows: str, spread: RowPlaces, rest: Sequence[int], fill: float, leading: int = 1) -> str:
    flat = f"{text}.flatten(0, {leading - 1})" if leading > 1 else text
    text = f"spread({flat}, {rows}, {math.prod(spread.shape)}, {fill!r})"
    return f"{text}.view({', '.join(map(str, (*spread.shape, *rest)))})" if len(spread.shape) > 1 else text


def _order_text(order: AxisOrder) -> str:
    axes = [order.op_axes.index(a) for a in order.kernel_axes if a in order.op_axes]
    units = [f".unsqueeze({i})" for i, a in enumerate(order.kernel_axes) if a not in order.op_axes]
    return f".permute({', '.join(map(str, axes))}){''.join(units)}.contiguous()"


def _back_order_text(order: AxisOrder) -> str:
    units = [i for i, a in enumerate(order.kernel_axes) if a not in order.op_axes]
    axes = [a for a in order.kernel_axes if a in order.op_axes]
    squeezed = f".squeeze({tuple(units)})" if units else ""
    return f"{squeezed}.permute({', '.join(str(axes.index(a)) for a in order.op_axes)})"


def _converted(function: Conversion, x: str) -> str:
    """The conversion of a tensor; "" for a function that is neither packproof's nor torch's."""
    if function is base2_log:
        return f"{x} * {1 / math.log(2)!r}"
    if function is natural_log:
        return f"{x} * {math.log(2)!r}"
    if isinstance(function, L2Norm):
        return f"{x} * torch.rsqrt({x}.square().sum(-1, keepdim=True) + {function.eps!r})"
    if isinstance(function, Scaled):
        power = WIDTH_POWERS.get(str(function.factor))
        return f"{x} * {function.factor!r}" if power is None else f"{x} * max({x}.shape[-1], 1) ** {power}"
    functions = {"torch": vars(torch), "functional": vars(functional)}
    named = (
        f"{module}.{n}({x})" for module, names in functions.items() for n, value in names.items() if value is function
    )
    return next(named, "")


def _plain(value: Any, name: str) -> str:
    """A value as its text. Raises UsageError for one that is not data."""
    if isinstance(value, tuple | list):
        items = ", ".join(_plain(item, name) for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items}{',' * (len(value) == 1)})"
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return repr(value)
    raise UsageError(f"the kernel's argument {name!r} is {value!r}, which is not data")
