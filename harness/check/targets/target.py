"""From a request to its kernels: each opened in its own process, with its op, promises and domain."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from packproof.base.axes import parse
from packproof.base.errors import UsageError
from packproof.base.names import require_known
from packproof.base.wording import printable
from packproof.harness.check.request import CheckRequest
from packproof.harness.check.targets.builtin_kernels import BUILTIN_KERNELS, BuiltinKernel
from packproof.harness.check.targets.quarantine import Quarantine, launched_domain, quarantine_terms
from packproof.harness.check.targets.reference_trial import try_laws, try_reference
from packproof.harness.check.targets.settlement import settle
from packproof.harness.process import Worker, differentiate_apart
from packproof.harness.process.naming import Location, address, kernel_address
from packproof.properties.cases import MAX_AXIS_SIZE, Space
from packproof.properties.contracts import Term
from packproof.properties.declarations import (
    DEFAULT_DTYPES,
    Declaration,
    check_signature,
    custom_op,
    fits,
    parse_declaration,
    with_required_inputs,
)
from packproof.properties.ops import OPS, Op
from packproof.properties.snippets import PLACEHOLDER, PastedLines

INSTANCE_PROPERTIES = (
    "reference",
    "strides",
)  # decided by the wrapper; all else is checked on the op that owns the kernels
_BUILTIN_OPS = {
    kernel.target: kernel.op for kernel in BUILTIN_KERNELS.values()
}  # for a builtin kernel named as a target


@dataclass(frozen=True)
class CheckTarget:
    """A kernel to check, as its request describes."""

    request: CheckRequest
    kernel: str | Callable[..., Any]
    """The function, or its name as a target."""
    name: str
    """For printing; see `address`."""
    op: Op
    op_name: str
    """Name of the op in a replay file."""
    declared: Declaration
    """Promises, dtypes and domain, as declared by the kernel or set by the request."""
    builtin: BuiltinKernel | None = None
    """Set for a kernel of packproof's own."""
    unpromised: str = ""
    """Word for the unpromised property under test; "" for a plain check."""
    empty_packs: bool = True
    """Whether packs without tokens are drawn for every property, or only for properties whose law names them."""
    terms: tuple[Term, ...] = ()
    """The terms in force, of the caller and of the kernel."""
    conflicts: tuple[Term, ...] = ()
    """The kernel's terms that loosen its contract."""
    misfit: str = ""
    """Why no Triton kernel is interpreted here; "" if they are."""
    quarantine: tuple[Quarantine, ...] = ()
    """What is not launched of it."""
    walls: Mapping[str, bool] = field(default_factory=dict)
    """Whether each wall between a kernel and the machine holds around its process."""

    @cached_property
    def address(self) -> str:
        """The name that finds the kernel again; `name` is for printing."""
        return kernel_address(self.kernel)

    @property
    def pasted(self) -> PastedLines:
        """The kernel in lines to paste."""
        return pasted_lines(self.name, self.request.op, self.declared)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return self.request.dtypes or self.declared.dtypes

    @property
    def plainest_dtype(self) -> str:
        """The dtype of cases past thresholds: fp32, or else the first."""
        return "float32" if "float32" in self.dtypes else self.dtypes[0]

    @property
    def gradients(self) -> bool:
        return self.declared.gradients and self.op.differentiable and not self.request.forward_only

    @property
    def missing_features(self) -> list[str]:
        """Features of the op missing in this kernel."""
        slack = [] if self.declared.domain.allows_slack else ["slack"]
        return [*self.missing_names, *slack]

    @property
    def missing_names(self) -> list[str]:
        """The op's optional inputs and options absent from its signature."""
        return self.space(DEFAULT_DTYPES[0]).missing_names

    @property
    def unjudged_defaults(self) -> list[str]:
        """The op's required inputs that the kernel may omit, without a value for the reference."""
        names = [n for n, spec in self.op.inputs.items() if not parse(spec).optional and n not in self.op.neutral]
        return [n for n in names if n in (self.declared.parameters or ()) and n not in self.declared.required]

    def space(self, dtype: str) -> Space:
        """The case space of this kernel at a dtype."""
        return Space(
            self.op,
            dtype,
            self.declared.promises,
            self.declared.parameters,
            domain=self.declared.domain,
            mixed=self.declared.mixed,
            float32=self.declared.float32,
            narrow=self.declared.narrow,
            on_gpu=self.request.device == "cuda",
            fixed=self.declared.fixed,
            required=self.declared.required,
        )

    def worker(self, deadline: float = math.inf) -> Worker:
        """A process for the kernel, with the request's time limit for one call, and no call after `deadline`."""
        return worker_for(self.request, self.kernel, deadline)


def worker_for(request: CheckRequest, kernel: str | Callable[..., Any], deadline: float = math.inf) -> Worker:
    return Worker(
        kernel, request.device, request.time_limit, draw_configs=request.chooses_configurations, until=deadline
    )


def open_targets(request: CheckRequest) -> Iterator[CheckTarget]:
    """The kernel named by the request, or packproof's own kernels of its op. Raises UsageError if there is none."""
    if request.target is not None:
        yield open_target(request)
        return
    selected_kernels = [k for k in BUILTIN_KERNELS.values() if request.op in (None, k.op) and k.runs_on(request.device)]
    if not selected_kernels:
        op_names = ", ".join(dict.fromkeys(k.op for k in BUILTIN_KERNELS.values()))
        raise UsageError(f"op: packproof has no kernel for {request.op!r}, only for {op_names}; name a target to check")
    for builtin in selected_kernels:
        yield open_target(_request_for(builtin, request), builtin)


def _request_for(builtin: BuiltinKernel, request: CheckRequest) -> CheckRequest:
    """The request for one kernel. In a full check on a CPU, a kernel that launches another op's is tested less.

    Then only the properties decided by its own wrapper are checked.
    """
    checks_everything = request.op is None and request.properties is None and request.device == "cpu"
    return replace(request, properties=INSTANCE_PROPERTIES) if builtin.instance_of and checks_everything else request


def open_target(
    request: CheckRequest, builtin: BuiltinKernel | None = None, worker: Worker | None = None
) -> CheckTarget:
    """Import the kernel in its own process; settle op and promises. Raises UsageError if target or op makes no sense.

    worker: the kernel's process, if already begun. It ends here: each unit of the plan uses a process of its own.
    """
    kernel = builtin.target if builtin else request.target
    assert kernel is not None
    name = printable(kernel_address(kernel))
    contract_op = _op_of_contract(request)  # before the kernel runs, which could write its file
    with worker or worker_for(request, kernel) as process:
        description, misfit, walls = process.describe(), printable(process.misfit), process.walls
    declared = builtin.declaration(request.device) if builtin else parse_declaration(description, name)
    if request.promises is not None:
        declared = replace(declared, promises=request.promises)
    requested_op = builtin.op if builtin else request.op or _BUILTIN_OPS.get(name)
    brings_op = requested_op is None and declared.op == ""
    if brings_op:  # imported here
        requested_op = kernel if isinstance(kernel, str) else custom_op(kernel)
    op = contract_op or resolve_op(requested_op, declared, name)
    if op not in OPS.values():
        differentiate_apart(partial(_try_op, op, request))
    check_signature(op, declared, name, pasted_lines(name, requested_op, declared))
    settlement = settle(request, op, with_required_inputs(op, declared), brings_op=brings_op)
    quarantine = request.expected.quarantine_of(name, request.device)
    declared = settlement.declared.restricted_to(launched_domain(quarantine))
    _check_domain(op, declared, request.contract.path if request.contract else name)
    op_name = requested_op if isinstance(requested_op, str) else _op_address(op, kernel)
    terms, conflicts = (*settlement.terms, *quarantine_terms(quarantine)), settlement.conflicts
    return CheckTarget(
        request,
        kernel,
        name,
        op,
        op_name,
        declared,
        builtin,
        terms=terms,
        conflicts=conflicts,
        misfit=misfit,
        walls=walls,
        quarantine=quarantine,
    )


def _try_op(op: Op, request: CheckRequest) -> None:
    try_reference(op)
    try_laws(op, request.laws.values())


def resolve_op(op: str | Op | None, declared: Declaration, target: str) -> Op:
    """The op to check a target as."""
    if declared.conventions and isinstance(op, str) and op in OPS and op != declared.op:
        declared_text = repr(declared.op) if declared.op else "an op of its own"
        raise UsageError(
            f"{target}: op is {op!r}, but it is an adapter of {declared_text}, which it is checked as; leave op out"
        )
    requested_op = op if op is not None else declared.op
    if isinstance(requested_op, Op):
        return requested_op
    if not requested_op:
        raise UsageError(f"{target}: which op is it? {_ops_text(declared)}, or module:NAME of an Op of your own")
    if ":" in requested_op:
        return _import_op(requested_op)
    return OPS[require_known("op", requested_op, OPS, "packproof list")]


def pasted_lines(name: str, requested_op: str | Op | None, declared: Declaration) -> PastedLines:
    """The kernel in lines to paste."""
    if isinstance(requested_op, Op):
        requested_op = requested_op.name if requested_op in OPS.values() else address(requested_op) or PLACEHOLDER
    op_text = requested_op if requested_op and declared.op is None else ""
    return PastedLines(name, op_text, declared=declared.by_author)


def _ops_text(declared: Declaration) -> str:
    """The ops that the arguments of a kernel fit. The user decides: silu(x) has the arguments of hadamard(x)."""
    fitting_ops = [name for name, op in OPS.items() if fits(op, declared)]
    if len(fitting_ops) == 1:
        return f"Its arguments fit one: --op {fitting_ops[0]}"
    return f"Its arguments fit {', '.join(fitting_ops)}: name one" if fitting_ops else f"Name one: {', '.join(OPS)}"


def _op_of_contract(request: CheckRequest) -> Op | None:
    """The op of a contract, whatever a kernel brings or declares; None without a contract."""
    return resolve_op(request.contract.contract.op, Declaration(), request.contract.path) if request.contract else None


def _import_op(name: str) -> Op:
    """A user's Op, or the op of a user's kernel, from "package.module:NAME" or "path/file.py:NAME"."""
    value = Location.parse(name).find()
    op = value if isinstance(value, Op) else custom_op(value)
    if op is None:
        raise UsageError(
            f"op: {name!r} is a {type(value).__name__}, expected a packproof.Op, or a kernel declared with one"
        )
    return op


def _op_address(op: Op, kernel: str | Callable[..., Any]) -> str:
    """The name by which a replay finds an op: its own, its address, or that of a kernel that brings it."""
    if op in OPS.values():
        return op.name
    return address(op) or (address(kernel) if custom_op(kernel) is op else "") or op.name


def _check_domain(op: Op, declared: Declaration, name: str) -> None:
    """Raises UsageError if no case can be drawn inside the domain."""
    declared.domain.check(op, name)
    if not declared.dtypes:
        raise UsageError(f"{name}: domain: none of its dtypes is in it: {'; '.join(declared.domain.texts)}")
    if not any(Space(op, dtype, declared.promises, domain=declared.domain).plain_sizes for dtype in declared.dtypes):
        raise UsageError(
            f"{name}: domain: no sizes of {op.name} up to {MAX_AXIS_SIZE:,} were found in it: "
            f"{'; '.join(declared.domain.texts)}"
        )
