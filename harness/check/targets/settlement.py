"""What a kernel is judged by: the terms of its caller, and those that it declares itself."""

from collections.abc import Iterator
from dataclasses import dataclass

from packproof.base.names import short_dtype
from packproof.base.records import to_row
from packproof.harness.check.request import CheckRequest
from packproof.properties.cases import Domain, Space
from packproof.properties.contracts import (
    OWN_OP,
    Contract,
    Term,
    contract_terms,
    own_op_terms,
    own_terms,
    under_contract,
)
from packproof.properties.declarations import DEFAULT_DTYPES, Declaration, Promises, needed_inputs
from packproof.properties.ops import Op


@dataclass(frozen=True)
class Settlement:
    """The declaration in force, and the terms on both sides."""

    declared: Declaration
    """By which the kernel is judged."""
    terms: tuple[Term, ...]
    """In force: those of the caller or its contract and, without a contract, the kernel's own."""
    conflicts: tuple[Term, ...] = ()
    """Terms of the kernel that loosen the contract. They are not in force, and fail the check."""


def settle(request: CheckRequest, op: Op, declared: Declaration, *, brings_op: bool) -> Settlement:
    """Compare the kernel's declaration with what its caller asks for.

    brings_op: whether the op is one of the kernel's own.
    """
    missing = Space(op, DEFAULT_DTYPES[0], declared.promises, declared.parameters).missing_names
    asked_domain, asked_terms = Domain.of(request.domain), tuple(_asked_terms(request))
    if request.contract is not None:
        contract = request.contract.contract
        request.contract.require_fit(op)
        own = (*own_op_terms(declared, contract.op), *own_terms(op, declared, contract, missing))
        allowed = tuple(term for term in own if term.subject == "inputs" and term.against not in contract.takes)
        judged = under_contract(op, declared, contract).restricted_to(asked_domain)
        terms = (*contract_terms(request.contract), *asked_terms, *allowed)
        return Settlement(judged, terms, tuple(term for term in own if term not in allowed))
    op_terms = (Term("op", OWN_OP, "kernel"),) if brings_op else ()
    terms = (*asked_terms, *op_terms, *own_terms(op, declared, _asked(request, op), missing))
    return Settlement(declared.restricted_to(asked_domain & needed_inputs(op, declared)), terms)


def _asked(request: CheckRequest, op: Op) -> Contract:
    """The options of a caller without a contract, as one. Dtypes that are asked for are judged in any case."""
    return Contract(
        op.name,
        request.domain,
        gradients=not request.forward_only,
        dtypes=() if request.dtypes else ("fp32", "bf16", "fp16"),
        promises=request.promises or Promises(),
    )


def _asked_terms(request: CheckRequest) -> Iterator[Term]:
    """What the options ask for. Under a contract they can only ask for less."""
    contract = request.contract.contract if request.contract else None
    dtypes = tuple(map(short_dtype, request.dtypes or ()))
    if contract is None and request.op is not None:
        yield Term("op", request.op if isinstance(request.op, str) else request.op.name, "caller")
    for text in request.domain:
        yield Term("domain", text, "caller")
    for dtype in dtypes if contract is None or len(dtypes) < len(contract.dtypes) else ():
        yield Term("dtypes", dtype, "caller")
    if request.forward_only:
        yield Term("gradients", "no gradients", "caller")
    for name, value in to_row(request.promises).items() if request.promises else ():
        if value not in (None, False):
            yield Term("promises", f"{name}={value!r}", "caller")
    for law in request.properties or ():
        yield Term("properties", law if isinstance(law, str) else law.name, "caller")
    if request.sanitizer is not None:
        yield Term("properties", f"under {request.sanitizer}", "caller")
