"""The cases that a kernel can have, and the golden ones among them, for the known failures."""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import cycle
from typing import Any

from packproof.base.axes import parse, role
from packproof.properties.cases.case import CUTS, REGIMES, STRONG_GATES, Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.fitting import fit_case, fit_sizes
from packproof.properties.cases.layouts import (
    BOUNDARY_CLASSES,
    DEFAULT_CHUNK,
    DEFAULT_WIDTH,
    Lengths,
    WindowLayout,
    boundary_classes,
    critical_lengths,
    golden_key_layouts,
    golden_layouts,
    golden_segment_layouts,
    golden_window_layouts,
    key_classes,
    second_packing_lengths,
)
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.op import Op

Sizes = Mapping[str, int | str]

_GOLDEN_REGIMES = ("normal", "one-hot", "normal", "long decay", "wide", "hard decay", "normal", "cancelling")
_STRONG_GATES_INDEX = (
    2  # for ops with decays, in place of a normal regime: a chunk and a token, and many short sequences
)
_PLAIN_LAYOUTS = (3, 5, 6, 7, 8, 11)
_PARTIAL_LAYOUTS = (4, 5, 6, 14)  # small ones, with and without slack
CROWDED_LENGTHS = (1, 4096, 0, 4095)  # tokens for so many programs that a sum over them has partial sums of every kind


@dataclass(frozen=True)
class Space:
    """All valid cases of one kernel at one dtype."""

    op: Op
    """The op that the kernel implements."""
    dtype: str
    """Dtype of the tokens, by its long name."""
    promises: Promises
    """The kernel's promises: they scale the layouts."""
    parameters: Collection[str] | None = None
    """The kernel's argument names; None for all of the op's."""
    max_tokens: int = 400
    """Most tokens of a drawn pack."""
    domain: Domain = Domain()  # noqa: RUF009  (frozen)
    """The supported calls: every case lies in it."""
    mixed: bool = True
    """Inputs with the same choice of forms, such as B and C of a scan, may differ in form in one call."""
    float32: Collection[str] = ()
    """Inputs allowed in fp32 beside tokens of 16 bits."""
    narrow: Collection[str] = ()
    """Inputs allowed in 16 bits although they are usually fixed to fp32."""
    on_gpu: bool = False
    """The kernel runs on a GPU, so cases of model sizes are included."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values of options that the kernel does not take."""
    required: Collection[str] | None = None
    """The kernel's arguments without a default; None where all are required."""

    @property
    def sizes(self) -> tuple[Sizes, ...]:
        return (*self.plain_sizes, *self.model_sizes)

    @cached_property
    def plain_sizes(self) -> tuple[Sizes, ...]:
        """The op's sizes, each moved to the nearest in the domain."""
        return fit_sizes(self.op, self.domain, self.op.sizes, self.dtype)

    @cached_property
    def model_sizes(self) -> tuple[Sizes, ...]:
        return fit_sizes(self.op, self.domain, self.op.model_sizes, self.dtype) if self.on_gpu else ()

    def fit(self, case: Case) -> Case | None:
        """The nearest case in the kernel's domain, or None. It gets a second packing where none is near without."""
        if not self.domain:
            return case
        nearest = fit_case(self.op, self.domain, case)
        is_lost = nearest is None or (case.n_tokens and not nearest.n_tokens)
        if is_lost and self.packs_keys and case.key_lengths is None:
            return fit_case(self.op, self.domain, case.replace(key_lengths=case.lengths))
        return nearest

    @property
    def regimes(self) -> tuple[str, ...]:
        return tuple(r for r in REGIMES if r != STRONG_GATES or self.op.has_decays)

    @property
    def golden_regimes(self) -> tuple[str, ...]:
        """The regimes of the golden layouts, in order and repeated."""
        first_regimes, last_regimes = _GOLDEN_REGIMES[:_STRONG_GATES_INDEX], _GOLDEN_REGIMES[_STRONG_GATES_INDEX + 1 :]
        return (*first_regimes, STRONG_GATES, *last_regimes) if self.op.has_decays else _GOLDEN_REGIMES

    @property
    def chunk(self) -> int:
        return self.promises.chunk or DEFAULT_CHUNK

    @property
    def segment_layouts(self) -> tuple[Lengths, ...]:
        """Golden layouts at the ends of segments, if the kernel has segments of several chunks."""
        return golden_segment_layouts(self.promises.handover, self.chunk)

    @property
    def window_layouts(self) -> tuple[WindowLayout, ...]:
        """Golden layouts for the windows of the op, if the kernel takes them."""
        reach = self.op.reach
        return golden_window_layouts(self.chunk) if reach and self._takes(reach) and reach not in self.fixed else ()

    @property
    def key_layouts(self) -> tuple[tuple[Lengths, Lengths], ...]:
        """Golden layouts of few tokens and many keys, if the kernel takes keys with offsets of their own."""
        return golden_key_layouts(self.chunk) if self.packs_keys else ()

    @property
    def optional_inputs(self) -> list[str]:
        """The op's optional inputs among the kernel's parameters."""
        return [n for n, spec in self.op.inputs.items() if parse(spec).optional and self._takes(n)]

    @property
    def omittable_inputs(self) -> list[str]:
        """The op's required inputs that the kernel has a default for, with a neutral value for the reference."""
        return [n for n in self.op.neutral if self._takes(n) and n not in (self.required or self.op.inputs)]

    @property
    def float32_sets(self) -> tuple[tuple[str, ...], ...]:
        """The sets of inputs in fp32 in one call: none, the shared ones, and all allowed ones."""
        if self.dtype not in ("bfloat16", "float16"):
            return ((),)
        allowed_inputs = tuple(n for n in self.op.inputs if n in self.float32 and self._takes(n))
        shared_inputs = tuple(
            n for n in allowed_inputs if all(role(axes) == "shared" for axes in parse(self.op.inputs[n]).alternatives)
        )
        return tuple(dict.fromkeys(((), shared_inputs, allowed_inputs)))

    @property
    def narrow_sets(self) -> tuple[tuple[str, ...], ...]:
        """The sets of narrow inputs in one call: none, or all allowed ones.

        In fp16 none: the gradient of a parameter is a sum over tokens, too large for fp16 where decays are long.
        """
        if self.dtype in ("float64", "float16"):
            return ((),)
        return tuple(dict.fromkeys(((), tuple(n for n in self.op.inputs if n in self.narrow and self._takes(n)))))

    @property
    def options(self) -> dict[str, tuple[Any, ...]]:
        """The values of each option; only the first, its default, for an option that the kernel does not take."""
        option_values = {k: values if self._takes(k) else values[:1] for k, values in self.op.options.items()}
        return {**option_values, **{k: (value,) for k, value in self.fixed.items()}}

    @property
    def drawn_options(self) -> dict[str, tuple[Any, ...]]:
        """`options`; the option of windows also has windows that end with tiles, and windows with one end."""
        half, reach = self.chunk // 2, self.op.reach
        extra_windows = (
            (*(w.reach for w in self.window_layouts if w.reach), (half, -1), (-1, half)) if self.window_layouts else ()
        )
        return {k: (*values, *extra_windows) if k == reach else values for k, values in self.options.items()}

    @property
    def summed_inputs(self) -> list[str]:
        """The kernel's inputs with a gradient that is a sum over all tokens."""
        shared_inputs = [
            n for n, spec in self.op.inputs.items() if all(role(a) == "shared" for a in parse(spec).alternatives)
        ]
        return [n for n in shared_inputs if n not in self.op.constants and self._takes(n)]

    @property
    def slack_counts(self) -> tuple[int, ...]:
        """Numbers of slack rows past the last sequence."""
        return (0, 1, self.chunk) if self.domain.allows_slack else (0,)

    @property
    def missing_names(self) -> list[str]:
        """The op's inputs and options missing from the kernel's parameters."""
        names = [*self.op.inputs, *(["cu_seqlens_k"] if self.op.packs_keys else []), *self.op.options]
        return [n for n in names if not self._takes(n)]

    @property
    def packs_keys(self) -> bool:
        """Whether the kernel takes a second packing."""
        return self.op.packs_keys and self._takes("cu_seqlens_k")

    @cached_property
    def frees_keys(self) -> bool:
        """Whether the kernel takes fewer lengths of tokens than of keys, as a decode kernel does.

        Then the keys have the lengths that are drawn for the tokens of other kernels.
        """
        lengths = [n for n in critical_lengths(self.chunk, DEFAULT_WIDTH) if n]
        return self.packs_keys and not all(map(self.domain.allows_query_length, lengths))

    def key_lengths(self, lengths: Lengths, kind: int | None) -> Lengths | None:
        """Lengths of a second packing.

        lengths: those that were drawn for the tokens.
        kind: the first kind of `second_packing_lengths`; None: no second packing, unless keys are free.
        """
        if not self.packs_keys or (kind is None and not self.frees_keys):
            return None
        return lengths if kind is None else second_packing_lengths(lengths, kind, self.chunk)

    @property
    def form_counts(self) -> dict[str, int]:
        """Number of axis specs of each input with several."""
        counts = {n: len(parse(spec).alternatives) for n, spec in self.op.inputs.items()}
        return {n: k for n, k in counts.items() if k > 1}

    def form_source(self, name: str) -> str:
        """The input whose form this one takes: the first with the same specs, or itself where forms are mixed."""
        same_specs = (n for n in self.form_counts if self.op.inputs[n].rstrip("?") == self.op.inputs[name].rstrip("?"))
        return name if self.mixed else next(same_specs)

    def width(self, sizes: Sizes) -> int:
        return int(sizes[self.op.window]) if self.op.window else DEFAULT_WIDTH

    def boundary_classes(self, case: Case) -> frozenset[str]:
        """The boundary classes of a case of this space, with those of its keys where keys are free."""
        of_keys = key_classes(case.key_lengths or case.lengths, self.chunk) if self.frees_keys else frozenset[str]()
        return of_keys | boundary_classes(case.lengths, self.chunk, self.width(dict(case.sizes)))

    @cached_property
    def possible_classes(self) -> frozenset[str]:
        """The boundary classes that the domain allows."""
        if not self.domain:
            return frozenset(BOUNDARY_CLASSES)
        return frozenset[str]().union(*map(self.boundary_classes, golden_cases(self)))

    @property
    def takes_cuts(self) -> bool:
        """Whether the kernel cuts packs over ranks itself."""
        return CUTS in (self.parameters or ())

    def passed(self, present: Collection[str], names: Collection[str]) -> tuple[str, ...]:
        """Those of the names that are inputs of a call with these optional inputs."""
        return tuple(n for n in names if n in present or not parse(self.op.inputs[n]).optional)

    def _takes(self, name: str) -> bool:
        return self.parameters is None or name in self.parameters or name in self.fixed

    def known_options(self, options: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
        """The options known to the kernel, in the form of a case."""
        return tuple((k, self.fixed.get(k, v)) for k, v in options.items() if self._takes(k))


def golden_cases(space: Space, seed: int = 0) -> Iterator[Case]:
    """Every golden layout with all optional inputs and options of the kernel; then some with fewer.

    Some are plain, with none. Some lack one optional input; of these the first two also come without options. Each case
    is moved into the kernel's domain, or omitted where none is near.

    seed: changes the data only.
    """
    if space.plain_sizes:
        unfitted_cases = _unfitted_golden_cases(space, seed)
        yield from dict.fromkeys(c for c in map(space.fit, unfitted_cases) if c) if space.domain else unfitted_cases


def _unfitted_golden_cases(space: Space, seed: int) -> Iterator[Case]:
    def case_at(k: int, size_list: Sequence[Sizes], *, rich: bool) -> Case:
        size = dict(size_list[k % len(size_list)])
        return golden_case(space, k, golden_layouts(space.chunk, space.width(size))[k], size, seed, rich=rich)

    layout_numbers = range(len(golden_layouts()))
    for sizes in filter(None, (space.plain_sizes, space.model_sizes)):
        rich_cases = (case_at(k, sizes, rich=True) for k in layout_numbers)
        yield from (
            c for c in rich_cases if c.n_tokens or c.slack
        )  # a property whose law names empty packs draws them itself
        for k, lengths in enumerate(space.segment_layouts):
            case = golden_case(space, k, lengths, dict(sizes[k % len(sizes)]), seed, rich=True)
            yield case.replace(regime="long decay")  # with shorter decays a segment forgets the entering state
    plain_cases = (
        case_at(k, space.plain_sizes[:1], rich=False)
        for k in (layout_numbers if space.on_gpu else _plain_layouts(space))
    )
    yield from (c for c in plain_cases if c.n_tokens)
    for k, window in enumerate(space.window_layouts):
        yield _window_case(space, k, window, seed)
    for k, (lengths, keys) in enumerate(space.key_layouts):
        yield golden_case(space, k, lengths, space.plain_sizes[0], seed, rich=False).replace(key_lengths=keys)
    default_options = space.known_options({name: values[0] for name, values in space.options.items()})
    for i, (k, name) in enumerate(zip(cycle(_PARTIAL_LAYOUTS), space.optional_inputs)):
        # sizes that do not fill a kernel's blocks may take another path
        case = case_at(k, [space.plain_sizes[(3 - i % 2) % len(space.plain_sizes)]], rich=True).without(name)
        if i > 0 or case.options == default_options:
            yield case
        if i < 2 and case.options != default_options:  # twice, so that each optional input comes without options once
            yield replace(case, options=default_options)
    for k, name in enumerate(space.omittable_inputs):
        for rich in (True, False):
            yield _omitting(space.op, case_at(_PARTIAL_LAYOUTS[k % 2], space.plain_sizes, rich=rich), name)


def _omitting(op: Op, case: Case, name: str) -> Case:
    """The case without a required input, nor the parameters and the option of the function applied to it.

    A gate before its softplus has a rate and a bias: none is neutral beside a gate of zero.
    """
    parameter = op.draws.get(name, "").partition("|")[2]
    for other, draw_kind in op.draws.items():
        if parameter and (other == parameter or draw_kind.partition("|")[2] == parameter) and other != name:
            case = case.without(other)
    if parameter in op.options:
        case = case.with_option(parameter, op.options[parameter][0])
    return replace(case.without(name), omitted=(*case.omitted, name))


def _plain_layouts(space: Space) -> list[int]:
    """The plain layouts of no window: a case with a window is otherwise plain."""
    layouts, window_lengths = golden_layouts(space.chunk), [window.lengths for window in space.window_layouts]
    return [k for k in _PLAIN_LAYOUTS if layouts[k] not in window_lengths]


def _window_case(space: Space, k: int, window: WindowLayout, seed: int) -> Case:
    """The kth golden window: a plain case with all outputs."""
    op = space.op
    plain_case = golden_case(space, k, window.lengths, space.plain_sizes[0], seed, rich=False)
    option_changes: dict[str, Any] = dict.fromkeys(op.on_request.values(), True)
    if op.reach and window.reach is not None:
        option_changes[op.reach] = window.reach
    elif isinstance(op.causal, str):
        option_changes[op.causal] = True
    options = space.known_options({**{n: v[0] for n, v in op.options.items()}, **option_changes})
    keys = window.keys or space.key_lengths(window.lengths, None) if space.packs_keys else None
    return replace(plain_case, options=options, key_lengths=keys, regime="normal")


def golden_case(space: Space, k: int, lengths: Lengths, size: Sizes, seed: int = 0, *, rich: bool) -> Case:
    """The kth case of a kind: k chooses the forms of the inputs, the options, the regime and the seed.

    rich: with every optional input, slack and non-default options; a second packing for odd k. Else with none of these.
    """
    rng = random.Random(k)
    forms = _forms(space, k) if rich else dict.fromkeys(space.form_counts, 0)
    options = {n: v[(1 + k % (len(v) - 1)) if rich and len(v) > 1 else 0] for n, v in space.options.items()}
    keys = space.key_lengths(lengths, k // 2 if k % 2 else None) if rich else None
    present = tuple(space.optional_inputs) if rich else ()
    return Case(
        lengths=lengths,
        dtype=space.dtype,
        sizes=tuple(size.items()),
        slack=space.slack_counts[k % len(space.slack_counts)] if rich else 0,
        present=present,
        float32=space.passed(present, space.float32_sets[k % len(space.float32_sets)]),
        narrow=space.passed(present, space.narrow_sets[k % len(space.narrow_sets)]),
        axes=tuple(forms.items()),
        options=space.known_options(options),
        regime=space.golden_regimes[k % len(_GOLDEN_REGIMES)],
        seed=rng.randrange(4) + 4 * seed,
        key_lengths=keys,
    )


def _forms(space: Space, k: int) -> dict[str, int]:
    """The number of the axis spec of each input in the kth case: bit i of a counter decides for the ith input.

    The counter grows by one with each case, so that inputs differ in form. It grows by one more with every fourth case:
    sizes repeat after four, so each size meets every combination of forms.
    """
    inputs, number = list(space.form_counts), 3 + k + k // 4
    return {n: (number >> inputs.index(space.form_source(n))) % space.form_counts[n] for n in inputs}
