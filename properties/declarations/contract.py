"""The contract of a check: all that its caller fixes. What a kernel declares beyond it is a term of its own.

A contest ships one as a file. Every kernel is judged by it, whatever the kernel declares.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from packproof.base.errors import UsageError
from packproof.base.files import parse_json, read_bytes
from packproof.base.names import long_dtype, require_known
from packproof.base.records import parse_record, to_row
from packproof.base.signatures import SIGNATURES
from packproof.properties.cases.domain import Domain
from packproof.properties.declarations.declaration import Declaration, needed_inputs
from packproof.properties.declarations.implication import call_outside
from packproof.properties.declarations.promises import Promises
from packproof.properties.declarations.terms import Subject, Term
from packproof.properties.ops.op import Op

OWN_OP = "an Op of its own, with its reference and budget"
WRITER = "packproof contract"
_MOST_BYTES = 1 << 20
_TERMS_BY_DTYPE_OR_GRADIENTS = ({"dtype"}, {"gradients"})  # conditions that have a term of their own
_SWITCHES = ("deterministic", "isolated", "capturable", "compilable")

Dtype = Literal["fp64", "fp32", "bf16", "fp16"]
ProfileName = Literal["quick", "standard", "thorough"]


@dataclass(frozen=True)
class Contract:
    """The terms of a caller."""

    op: str
    """The name of an op of packproof, "module:NAME" or "path/file.py:NAME"."""
    domain: tuple[str, ...] = ()
    """Conditions on the calls that a kernel has to support. Without any, it has to support every call of the op."""
    gradients: bool = True
    """Whether gradients are judged."""
    dtypes: tuple[Dtype, ...] = ("fp32", "bf16", "fp16")
    """The dtypes of tokens."""
    promises: Promises = field(default_factory=Promises)
    """What every kernel has to keep, such as `deterministic`, and how far its error budget goes: `compute`, `cumsum`
    with `chunk`, and `saved_outputs`.
    """
    profile: ProfileName = "standard"
    """The least profile of a check."""
    own_kernels_only: bool = False
    """Whether library and reference calls are forbidden."""

    @classmethod
    def for_op(cls, op: Op) -> "Contract":
        """The default contract of an op: all of its calls, in the budget of its usual kernels.

        Those of matrix products with decays may form each decay as a difference of cumulative sums.
        """
        promises = Promises(compute=op.usual_compute, cumsum=op.matmul and op.has_decays)
        return cls(op.name, gradients=op.differentiable, promises=promises)


@dataclass(frozen=True)
class ContractFile:
    """A contract, and the file that it was read from."""

    path: str
    """As the caller named it."""
    digest: str
    """SHA-256 of its bytes, as `sha256sum` prints it."""
    contract: Contract

    @classmethod
    def read(cls, path: str) -> "ContractFile":
        """Raises UsageError, with the path and the field, for a file that cannot be read or is no contract."""
        try:
            data = read_bytes(Path(path), _MOST_BYTES)  # once: its digest is that of what is read
            contract = parse_record(Contract, parse_json(data, path, WRITER), path, WRITER)
            _require_names(contract)
        except OSError as error:
            raise UsageError(f"contract: {path}: {error.strerror or error}") from None
        except UsageError as error:
            raise UsageError(f"contract: {path}: {str(error).removeprefix(f'{path}: ')}") from None
        return cls(path, hashlib.sha256(data).hexdigest(), contract)

    @property
    def title(self) -> str:
        """The file and the start of its digest, for one line."""
        return f"{Path(self.path).name} (sha256 {self.digest[:12]})"


def _require_names(contract: Contract) -> None:
    """Raises UsageError for an unknown op, a domain that cannot be read, or no dtype."""
    if ":" not in contract.op:
        require_known("op", contract.op, SIGNATURES, "packproof list")
    if not contract.dtypes:
        raise UsageError("dtypes is empty, so that nothing would be checked")
    Domain.of(contract.domain)


def contract_text(contract: Contract) -> str:
    """The contents of its file."""
    return json.dumps(to_row(contract), indent=1) + "\n"


def contract_terms(file: ContractFile) -> tuple[Term, ...]:
    """The terms that a contract fixes."""
    contract = file.contract
    promises = [f"{name}={value!r}" for name, value in to_row(contract.promises).items() if value not in (None, False)]
    texts: list[tuple[Subject, Sequence[str]]] = [
        ("contract", [file.title]),
        ("op", [contract.op]),
        ("domain", contract.domain),
        ("gradients", [] if contract.gradients else ["no gradients"]),
        ("dtypes", contract.dtypes),
        ("promises", promises),
    ]
    return tuple(Term(subject, text, "contract") for subject, entries in texts for text in entries)


def own_terms(op: Op, declared: Declaration, caller: Contract, missing: Sequence[str]) -> tuple[Term, ...]:
    """What a kernel declares beyond the terms of its caller: less to judge, or more allowed.

    missing: the inputs and options of the op that the kernel does not take.
    """
    domain = Domain.of(caller.domain)
    terms = (
        *_input_terms(op, declared, domain, missing),
        *_domain_terms(op, declared, domain),
        *_gradient_terms(op, declared, caller),
        *_dtype_terms(declared, caller),
        *_promise_terms(op, declared.promises, caller.promises),
    )
    return tuple(Term(subject, text, "kernel", against) for subject, text, against in terms)


def own_op_terms(declared: Declaration, op_name: str) -> tuple[Term, ...]:
    """An op that a kernel declares beside the one of its contract. One of the contract's own file may be the same."""
    if ":" in op_name or declared.op in (None, op_name):
        return ()
    return (Term("op", declared.op or OWN_OP, "kernel", op_name),)


_Sides = Iterator[tuple[Subject, str, str]]


def _input_terms(op: Op, declared: Declaration, domain: Domain, missing: Sequence[str]) -> _Sides:
    fixed_to = {name: values[0] for name, values in op.options.items()} | dict(declared.fixed)
    for name in dict.fromkeys([*missing, *declared.fixed]):
        condition = Domain.of(f"{name} == {fixed_to[name]!r}" if name in fixed_to else f"not {name}")
        if call_outside(condition.conditions[0], op, domain) is not None:
            yield "inputs", f"{name}={fixed_to[name]!r} alone" if name in declared.fixed else f"no {name}", name


def _domain_terms(op: Op, declared: Declaration, domain: Domain) -> _Sides:
    kernel_domain = declared.domain & needed_inputs(op, declared)
    for condition in kernel_domain.conditions:
        if condition in domain.conditions or condition.names in _TERMS_BY_DTYPE_OR_GRADIENTS:
            continue
        if condition.names == {"slack"} and not Domain((condition,)).allows_slack:
            if domain.allows_slack:
                yield "slack", "no slack", "rows past the last sequence"
        elif (call := call_outside(condition, op, domain)) is not None:
            values = ", ".join(f"{name} = {value!r}" for name, value in call.items())
            yield "domain", condition.text, f"calls outside of it, as with {values}"


def _gradient_terms(op: Op, declared: Declaration, caller: Contract) -> _Sides:
    if caller.gradients and op.differentiable and not declared.gradients:
        yield "gradients", "no gradients", "gradients"


def _dtype_terms(declared: Declaration, caller: Contract) -> _Sides:
    if absent := [dtype for dtype in caller.dtypes if long_dtype(dtype) not in declared.dtypes]:
        yield "dtypes", f"no {', '.join(absent)}", ", ".join(absent)


def _promise_terms(op: Op, kernel: Promises, caller: Promises) -> _Sides:
    compute = caller.compute or op.usual_compute
    if kernel.compute not in (None, "fp32", compute):
        yield "promises", f'compute="{kernel.compute}"', f'compute="{compute}"'
    for name in ("cumsum", "saved_outputs"):
        if getattr(kernel, name) and not getattr(caller, name):
            yield "promises", f"{name}=True", f"{name}=False"
    if _has_larger_chunk(kernel, caller):
        yield "promises", f"chunk={kernel.chunk}", f"chunk={caller.chunk}"


def _has_larger_chunk(kernel: Promises, caller: Promises) -> bool:
    """Whether the kernel's sums go over more tokens than the caller allows."""
    if not (kernel.cumsum and caller.cumsum and caller.chunk):
        return False
    return kernel.chunk is None or kernel.chunk > caller.chunk


def under_contract(op: Op, declared: Declaration, contract: Contract) -> Declaration:
    """The declaration by which a kernel is judged: of its own, only its arguments and what asks more of it."""
    return replace(
        declared,
        promises=_judged_promises(declared.promises, contract.promises),
        gradients=contract.gradients,
        dtypes=tuple(map(long_dtype, contract.dtypes)),
        domain=Domain(),
    ).restricted_to(Domain.of(contract.domain) & needed_inputs(op, declared))


def _judged_promises(kernel: Promises, contract: Promises) -> Promises:
    """The budget of the contract, and the guarantees of both."""
    larger_chunk = _has_larger_chunk(replace(kernel, cumsum=True), contract)
    tiles = contract if kernel.chunk is None or larger_chunk else kernel
    guarantees: dict[str, Any] = {
        name: getattr(kernel, name) or getattr(contract, name) for name in (*_SWITCHES, "state_entry")
    }
    return replace(
        contract,
        grid=contract.grid if contract.independent else kernel.grid or contract.grid,
        chunk=tiles.chunk,
        segment=tiles.segment,
        **guarantees,
    )
