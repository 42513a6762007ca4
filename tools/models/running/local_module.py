"""A module in this process: makes the calls of the laws, with the modes and hooks around each."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from packproof.base.light_torch import DispatchMode, vector_jacobian_product
from packproof.models.laws.losses import loss_in
from packproof.models.running import culprits, mode_culprits
from packproof.models.running.steps import run_step
from packproof.models.subjects.choices import Choice, TieBreaker
from packproof.models.subjects.conventions import CONVENTIONS, Convention
from packproof.models.subjects.copies import copy_module
from packproof.models.subjects.modes import Mode, compile_module, compiler_settings, module_in_mode
from packproof.models.subjects.pack import ModuleSizes, Pack
from packproof.models.subjects.refusals import ModuleRefused, NoGradient, failed_call
from packproof.models.subjects.tested_module import (
    CallResult,
    ModuleCall,
    ModuleFacts,
    ParameterFacts,
    Step,
    StepPart,
    TieOrder,
)
from packproof.models.subjects.watch import watch_embedding

PickOutput = Callable[[Any], Tensor]


class LocalModule:
    """A TestedModule in this process.

    module: in its mode and precision.
    pick_output: picks the compared output from what forward returns.
    facts: None to read them from the module.
    """

    def __init__(
        self, module: nn.Module, pick_output: PickOutput, mode: Mode | None = None, facts: ModuleFacts | None = None
    ) -> None:
        self.module, self.pick_output, self.mode = module, pick_output, mode or Mode()
        self.facts = facts or facts_of(module)
        self._open_call: _OpenCall | None = None
        self._sum: dict[str, Tensor] = {}

    def copy(
        self, dtype: torch.dtype | None = None, mode: Mode | None = None, *, dropout: bool = False
    ) -> "LocalModule":
        module = module_in_mode(self.module, mode, dropout=dropout) if mode else copy_module(self.module)
        facts = replace(self.facts, dtype=dtype) if dtype else self.facts
        return LocalModule(module.to(dtype) if dtype else module, self.pick_output, mode or self.mode, facts)

    def uncompiled(self) -> "LocalModule":
        return LocalModule(self.module, self.pick_output, replace(self.mode, compiled=False), self.facts)

    def to_device(self, device: str) -> "LocalModule":
        if device == self.facts.device:
            return self
        return LocalModule(self.module.to(device), self.pick_output, self.mode, replace(self.facts, device=device))

    def start_clock(self, seconds: float) -> None:
        """No process can end a call of its own."""

    def forward(self, call: ModuleCall) -> CallResult:
        self._open_call = None  # its graph takes memory
        ties = _tie_breaker(call.x.shape[1], call.ties) if call.ties else None
        detector = _LowPrecisionDetector() if call.looks_for_low_precision else None  # type: ignore[no-untyped-call]
        with (
            torch.set_grad_enabled(bool(call.leaf)),
            self._token_leaves(call) as (x, leaves),
            ties or nullcontext(),
            detector or nullcontext(),
        ):
            out = self.picked(self.return_value(call, x), call)
        if call.leaf == "tokens" and not leaves:
            raise NoGradient("no nn.Embedding got the tokens, so that no gradient reaches them; give inputs= of floats")
        if call.leaf:
            self._open_call = _OpenCall(out, call.leaf, leaves, ties)
        return CallResult(
            out.detach(),
            out.requires_grad,
            tuple(ties.choices) if ties else (),
            ties.ties if ties else 0,
            detector.has_low_precision if detector else False,
        )

    @contextmanager
    def _token_leaves(self, call: ModuleCall) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """The input, and the leaf that holds the gradient at the tokens: the input itself, or the output of the first
        embedding of the ids, in the list once that was called."""
        if call.leaf != "tokens":
            yield call.x, []
        elif call.x.is_floating_point():
            leaf = call.x.detach().clone().requires_grad_()
            yield leaf, [leaf]
        else:
            with watch_embedding(self.module, call.x) as leaves:
                yield call.x, leaves

    def return_value(self, call: ModuleCall, x: Tensor, arguments: Mapping[str, Any] | None = None) -> Any:
        arguments = self.arguments(call) if arguments is None else arguments
        try:
            with self.mode.randomness(x.device, call.seed):
                return self._forward(x if call.convention.batched else x[0], **arguments)
        except (Exception, SystemExit) as error:
            raise failed_call(error, breaks_on_convention=partial(self._breaks_on_convention, call)) from error

    def _breaks_on_convention(self, call: ModuleCall) -> bool:
        """Whether the arguments are to blame: the user wrote them for this module, which takes its tokens without."""
        if CONVENTIONS.get(call.convention.name) is call.convention:
            return False  # it may be one that the module does not take
        try:
            with torch.no_grad():
                self._forward(call.x)
        except Exception:
            return False
        return True

    def picked(self, return_value: Any, call: ModuleCall) -> Tensor:
        return loss_in(return_value, call.pack.tokens) if call.picks == "loss" else self.pick_output(return_value)

    def arguments(self, call: ModuleCall) -> dict[str, Any]:
        """Raises ModuleRefused if forward does not take a required one."""
        arguments = self._boundary_arguments(call.convention, call.pack)
        if call.without_boundaries:
            others = self._boundary_arguments(call.convention, call.pack.without_boundaries())
            arguments |= {name: others.get(name) for name in call.without_boundaries}
        device = self.facts.device
        return arguments | {n: v.to(device) if isinstance(v, Tensor) else v for n, v in call.further.items()}

    def _boundary_arguments(self, convention: Convention, pack: Pack) -> dict[str, Any]:
        own_pack = replace(pack, device=self.facts.device, dtype=self.facts.dtype)
        arguments = dict(convention.arguments(own_pack))
        if self.facts.takes_any_keyword:
            return arguments
        unsupported = [name for name in arguments if name not in self.facts.arguments]
        if missing := [name for name in unsupported if name not in convention.optional]:
            raise ModuleRefused(f"forward takes no {', '.join(missing)}")
        return {name: value for name, value in arguments.items() if name not in unsupported}

    @cached_property
    def _forward(self) -> Callable[..., Any]:
        return compile_module(self.module) if self.mode.compiled else self.module

    def backward(self, cotangent: Tensor) -> Mapping[str, Tensor]:
        call = self._open_call
        assert call, "no call with a leaf came before"
        if call.leaf == "tokens":
            (gradient,) = self._differentiate(call, call.leaves, cotangent)
            return {} if gradient is None else {"tokens": gradient[0]}
        parameters = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        if not (parameters and call.output.requires_grad):
            return {}
        gradients = self._differentiate(call, list(parameters.values()), cotangent)
        return {name: grad for name, grad in zip(parameters, gradients, strict=True) if grad is not None}

    def start_sum(self) -> None:
        self._sum = {}

    def add_gradients(self, cotangent: Tensor) -> None:
        for name, gradient in self.backward(cotangent).items():
            self._sum[name] = self._sum[name] + gradient if name in self._sum else gradient

    def summed_gradients(self) -> Mapping[str, Tensor]:
        gradients, self._sum = self._sum, {}
        return gradients

    def _differentiate(
        self, call: "_OpenCall", leaves: Sequence[Tensor], cotangent: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Raises ModuleRefused or ModuleCrashed if the backward pass raises an error."""
        cotangent = cotangent.reshape(call.output.shape).to(call.output)
        if call.ties:
            call.ties.in_forward_pass = False
        try:
            with call.ties or nullcontext(), compiler_settings() if self.mode.compiled else nullcontext():
                return vector_jacobian_product([call.output], leaves, [cotangent], retain_graph=call.leaf == "tokens")
        except Exception as error:
            raise failed_call(error, "in the backward pass, ") from error

    def step(self, parts: Sequence[StepPart], *, repeats: tuple[Choice | None, ...] | None = None) -> Step:
        self._open_call = None
        return run_step(self, parts, repeats=repeats)

    def copy_buffers(self, source: "LocalModule") -> None:
        values = dict(source.module.named_buffers())
        with torch.no_grad():
            for name, buffer in self.module.named_buffers():
                if name in values and values[name].shape == buffer.shape:
                    buffer.copy_(values[name])

    def freeze(self, numbers: tuple[int, ...]) -> None:
        for number, parameter in enumerate(self.module.parameters()):
            if number in numbers:
                parameter.requires_grad_(False)

    def decay(self, factor: float) -> None:
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.mul_(factor if parameter.dim() > 1 else 1.0)

    def perturb(self, relative: float, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.module.parameters():
                share = 2 * torch.rand(parameter.shape, generator=generator) - 1
                parameter.mul_(1 + relative * share.to(parameter.device, parameter.dtype))

    def changing_arguments(self, convention: Convention, pack: Pack) -> tuple[str, ...]:
        others = self._boundary_arguments(convention, pack.without_boundaries())
        arguments = self._boundary_arguments(convention, pack)
        return tuple(n for n, v in arguments.items() if not isinstance(v, bool) and v is not others.get(n))

    def leaking_module(self, call: ModuleCall, changed_x: Tensor, document: int) -> tuple[str, ...]:
        return culprits.lines_of(culprits.first_leaking_module(self, call, changed_x, document))

    def leaking_backward(self, call: ModuleCall, pair: tuple[int, int], seed: int) -> tuple[str, ...]:
        return culprits.lines_of(culprits.first_leaking_backward(self, call, pair, seed))

    def differing_module(self, call: ModuleCall, document: int, roundings: float) -> tuple[str, ...]:
        return culprits.lines_of(culprits.first_differing_module(self, call, document, roundings))

    def mode_culprit(
        self, plain: "LocalModule", parts: Sequence[StepPart], plain_parts: Sequence[StepPart], tolerance: float
    ) -> tuple[str, ...]:
        return tuple(mode_culprits.culprit_lines(plain, plain_parts, self, parts, tolerance))


class _OpenCall:
    """The last call, whose graph is kept."""

    def __init__(self, output: Tensor, leaf: str, leaves: list[Tensor], ties: TieBreaker | None) -> None:
        self.output, self.leaf, self.leaves, self.ties = output, leaf, leaves, ties


class _LowPrecisionDetector(DispatchMode):
    """Detects any computation in a lower precision than float64."""

    supports_higher_order_operators = True  # such as flex attention
    has_low_precision = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            self.has_low_precision |= isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
        return out


def _tie_breaker(tokens: int, order: TieOrder) -> TieBreaker:
    return TieBreaker(tokens, order.reference, lambda number, _: order.allowed[number], order.rows)


def facts_of(module: nn.Module) -> ModuleFacts:
    """The properties of a module, read without a call."""
    parameters = list(module.named_parameters())
    floats = [p for _, p in parameters if p.is_floating_point()]
    forward = inspect.signature(module.forward).parameters
    embedding = next((m for m in module.modules() if isinstance(m, nn.Embedding)), None)
    return ModuleFacts(
        type(module).__name__,
        floats[0].dtype if floats else torch.float32,
        str(floats[0].device) if floats else "cpu",
        tuple(forward),
        any(p.kind is p.VAR_KEYWORD for p in forward.values()),
        embedding.num_embeddings if embedding else None,
        tuple(ParameterFacts(name, p.dim(), p.requires_grad) for name, p in parameters),
        {name: type(part).__name__ for name, part in module.named_modules()},
        tuple(name for name, _ in module.named_buffers()),
        ModuleSizes.of(module),
    )
