"""A kernel's own terms: its declaration beyond the terms of its caller; and the declaration under a contract."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from packproof.base.names import long_dtype
from packproof.properties.cases.domain import Domain
from packproof.properties.contracts.contract import Contract
from packproof.properties.contracts.implication import call_outside
from packproof.properties.contracts.terms import Subject, Term
from packproof.properties.declarations.declaration import Declaration, needed_inputs
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.op import Op

OWN_OP = "an Op of its own, with its reference and budget"
_HAVE_OTHER_TERMS = ({"dtype"}, {"gradients"})  # conditions on these alone
_LARGEST_CHUNK = 1024  # layouts grow with it: those of a larger one leave out the usual lengths
_SWITCHES = ("deterministic", "isolated", "capturable", "steady", "compilable")

_Sides = Iterator[tuple[Subject, str, str]]  # of a term: the kernel's, and what its caller asks for


def own_terms(op: Op, declared: Declaration, caller: Contract, missing: Sequence[str]) -> tuple[Term, ...]:
    """The terms of a kernel's declaration by which less is judged, or more allowed, than its caller asks for.

    missing: inputs and options of the op without a parameter of the kernel.
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
    """The term of an op other than the contract's. An Op of the contract's own file may be the kernel's too."""
    if ":" in op_name or declared.op in (None, op_name):
        return ()
    return (Term("op", declared.op or OWN_OP, "kernel", op_name),)


def _input_terms(op: Op, declared: Declaration, domain: Domain, missing: Sequence[str]) -> _Sides:
    defaults = {name: values[0] for name, values in op.options.items()}
    for name in missing:
        if name not in declared.fixed and _leaves_out_calls(name, defaults, op, domain):
            yield "inputs", f"no {name}", name
    for name, value in declared.fixed.items():
        if _leaves_out_calls(name, declared.fixed, op, domain):
            yield "options", f"{name}={value!r} alone", f"every {name}"


def _leaves_out_calls(name: str, values: Mapping[str, Any], op: Op, domain: Domain) -> bool:
    """Whether the domain has calls with an input, or with another value of an option."""
    [condition] = Domain.of(f"{name} in ({values[name]!r},)" if name in values else f"not {name}").conditions
    return call_outside(condition, op, domain) is not None


def _domain_terms(op: Op, declared: Declaration, domain: Domain) -> _Sides:
    kernel_domain = declared.domain & needed_inputs(op, declared)
    for condition in kernel_domain.conditions:
        if condition in domain.conditions or condition.names in _HAVE_OTHER_TERMS:
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
    if _sums_over_more(kernel, caller) or (kernel.chunk or 0) > max(caller.chunk or 0, _LARGEST_CHUNK):
        yield "promises", f"chunk={kernel.chunk}", f"chunks of at most {caller.chunk or _LARGEST_CHUNK} tokens"


def _sums_over_more(kernel: Promises, caller: Promises) -> bool:
    """Whether the kernel's cumulative sums go over more tokens than its caller allows."""
    if not (kernel.cumsum and caller.cumsum and caller.chunk):
        return False
    return kernel.chunk is None or kernel.chunk > caller.chunk


def under_contract(op: Op, declared: Declaration, contract: Contract) -> Declaration:
    """The declaration in force under a contract. Of the kernel's own, it has the arguments and further guarantees."""
    return replace(
        declared,
        promises=_judged_promises(declared.promises, contract.promises),
        gradients=contract.gradients,
        dtypes=tuple(map(long_dtype, contract.dtypes)),
        domain=Domain(),
    ).restricted_to(Domain.of(contract.domain) & needed_inputs(op, declared))


def _judged_promises(kernel: Promises, contract: Promises) -> Promises:
    """The budget of the contract, and the guarantees of both. Chunks and the promises at their ends are of one side."""
    tiles = kernel if contract.chunk is None and (kernel.chunk or 0) <= _LARGEST_CHUNK else contract
    switches: dict[str, Any] = {name: getattr(kernel, name) or getattr(contract, name) for name in _SWITCHES}
    return replace(
        contract,
        grid=contract.grid if contract.independent else kernel.grid or contract.grid,
        chunk=tiles.chunk,
        segment=tiles.segment,
        state_entry=contract.state_entry or tiles.state_entry,
        **switches,
    )
