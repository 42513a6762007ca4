"""Contracts: which declarations loosen one, what is in force then, and files that are none."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from packproof.base.errors import UsageError
from packproof.harness.check.targets.builtin_kernels import BUILTIN_KERNELS, BuiltinKernel
from packproof.museum import Control, controls
from packproof.properties.cases.condition import Condition
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.space import Space
from packproof.properties.contracts.contract import Contract, ContractFile, contract_text
from packproof.properties.contracts.implication import call_outside
from packproof.properties.contracts.own_terms import own_op_terms, own_terms, under_contract
from packproof.properties.contracts.terms import Term, terms_text
from packproof.properties.declarations.declaration import Declaration, describe_kernel, parse_declaration
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import OPS

CONV, SSD, ATTENTION = OPS["causal_conv1d"], OPS["ssd"], OPS["attention"]
DEFAULT = Contract.for_op(CONV)
LIMITED = replace(DEFAULT, domain=("d % 16 == 0", "w <= 4", "length > 0", "activation == 'silu'"))


def own(declared: Declaration, contract: Contract = DEFAULT, missing: tuple[str, ...] = ()) -> list[str]:
    return [term.text for term in own_terms(CONV, declared, contract, missing)]


def declared(domain: str = "", **fields: Any) -> Declaration:
    return Declaration(**fields).restricted_to(Domain.of(domain))


@pytest.mark.parametrize(
    ("declaration", "texts"),
    [
        (declared("d == 1; w == 1"), ["d == 1", "w == 1"]),
        (declared("slack == 0"), ["no slack"]),
        (declared("slack % 16 == 0"), ["slack % 16 == 0"]),
        (declared("length > 0"), ["length > 0"]),
        (declared("longest <= 4096"), ["longest <= 4096"]),
        (declared("not bias"), ["not bias"]),
        (declared("dtype == fp32"), ["no bf16, fp16"]),
        (declared("not gradients"), ["no gradients"]),
        (declared(required=("bias",)), ["bias"]),
        (declared(gradients=False), ["no gradients"]),
        (declared(dtypes=("float32", "bfloat16")), ["no fp16"]),
        (declared(fixed={"activation": "silu"}), ["activation='silu' alone"]),
        (declared(promises=Promises(compute="tf32")), ['compute="tf32"']),
        (declared(promises=Promises(compute="operand")), ['compute="operand"']),
        (declared(promises=Promises(cumsum=True)), ["cumsum=True"]),
        (declared(promises=Promises(saved_outputs=True)), ["saved_outputs=True"]),
        (declared(promises=Promises(chunk=100_000)), ["chunk=100000"]),
    ],
    ids=lambda value: "; ".join(value) if isinstance(value, list) else "",
)
def test_a_declaration_that_loosens_is_a_term_of_the_kernel(declaration: Declaration, texts: list[str]) -> None:
    assert own(declaration) == texts
    assert all(term.against for term in own_terms(CONV, declaration, DEFAULT, ()))


@pytest.mark.parametrize(
    "declaration",
    [
        declared(),
        declared("d >= 1"),  # of every call of the op
        declared(dtypes=("float32", "bfloat16", "float16", "float64"), mixed=True, float32=("weight",)),
        declared(
            promises=Promises("token", 64, "fp32", deterministic=True, isolated=True, capturable=True, compilable=True)
        ),
        declared(promises=Promises("sequence", 64, state_entry="carry", segment=256)),
    ],
)
def test_one_that_asks_more_is_none(declaration: Declaration) -> None:
    assert own(declaration) == []


@pytest.mark.parametrize(
    "domain", ["d % 16 == 0", "d % 8 == 0", "d % 4 == 0; w <= 8", "w in (1, 2, 3, 4)", "length >= 1"]
)
def test_what_the_contract_has_anyway_is_none(domain: str) -> None:
    assert own(declared(domain), LIMITED) == []
    assert own(declared(fixed={"activation": "silu"}), LIMITED) == []


@pytest.mark.parametrize(
    "domain", ["d % 32 == 0", "d == 16", "w <= 3", "w in (1, 2, 3)", "length > 1", "longest > 0", "d < 4096"]
)
def test_less_than_the_contract_has_is_a_term(domain: str) -> None:
    assert own(declared(domain), LIMITED) == [domain]


@pytest.mark.parametrize(
    ("condition", "rules", "call"),
    [
        ("d == 1", "", {"d": 3}),
        ("d == 1", "d == w; w == 1", None),  # the rules together say so
        ("tokens <= 4096", "longest <= 4096", {"tokens": 4097}),
        ("longest <= 4096", "tokens <= 4096", None),
        ("length > 0", "", {"lengths": [0]}),
        ("8 % (d - 3) == 0", "", {"d": 130}),  # d = 3 cannot be worked out
    ],
)
def test_a_call_outside_of_a_condition(condition: str, rules: str, call: dict[str, Any] | None) -> None:
    assert call_outside(Condition(condition), CONV, Domain.of(rules)) == call


def test_inputs_that_a_kernel_does_not_take() -> None:
    assert own(declared(), missing=("bias", "activation")) == ["no bias", "no activation"]
    assert own(declared(), replace(DEFAULT, domain=("not bias",)), missing=("bias",)) == []


def test_an_op_beside_the_contracts() -> None:
    assert own_op_terms(declared(op=None), "causal_conv1d") == own_op_terms(declared(op="rope"), "rope") == ()
    [brought], [other] = (own_op_terms(declared(op=op), "causal_conv1d") for op in ("", "rope"))
    assert brought.conflict == (
        "op: the kernel declares an Op of its own, with its reference and budget, the contract has causal_conv1d"
    )
    assert other.text == "rope"
    assert own_op_terms(declared(op=""), "contest.py:OP") == ()  # it may be this one


def test_the_chunk_of_a_cumulative_sum() -> None:
    """It is a part of the budget, where the contract names it."""
    contract = replace(Contract.for_op(SSD), promises=Promises(cumsum=True, chunk=64))
    for chunk, terms in ((32, 0), (64, 0), (128, 1), (None, 1)):
        promises = Promises(cumsum=True, chunk=chunk)
        assert len(own_terms(SSD, declared(promises=promises), contract, ())) == terms
    assert own_terms(SSD, declared(promises=Promises(cumsum=True)), Contract.for_op(SSD), ()) == ()


def test_a_contract_is_in_force_whatever_the_kernel_declares() -> None:
    cheat = declared("d == 1; slack == 0", gradients=False, dtypes=("float32",), promises=Promises(compute="tf32"))
    judged = under_contract(CONV, cheat, LIMITED)
    assert judged.domain == Domain.of(LIMITED.domain)
    assert judged.gradients
    assert judged.dtypes == ("float32", "bfloat16", "float16")
    assert judged.promises == DEFAULT.promises


def test_guarantees_of_both_are_in_force() -> None:
    kernel = Promises("sequence", 16, "tf32", deterministic=True, state_entry="carry", segment=64, cumsum=True)
    contract = replace(DEFAULT, promises=Promises(isolated=True, compute="fp32"))
    judged = under_contract(CONV, declared(promises=kernel), contract).promises
    assert judged == Promises(
        "sequence", 16, "fp32", deterministic=True, isolated=True, state_entry="carry", segment=64
    )
    fixed = replace(contract, promises=Promises("token", 32, isolated=True))
    assert under_contract(CONV, declared(promises=kernel), fixed).promises == Promises(
        "token", 32, deterministic=True, isolated=True
    )


@pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
def test_the_default_contract_of_an_op_is_read_as_it_is_written(op: Any, tmp_path: Path) -> None:
    file = tmp_path / "contract.json"
    file.write_text(contract_text(Contract.for_op(op)))
    read = ContractFile.read(str(file))
    assert read.contract == Contract.for_op(op)
    assert read.digest == sha256(file.read_bytes()).hexdigest()
    assert own_terms(op, declared(op=op.name, gradients=op.differentiable), read.contract, ()) == ()


@pytest.mark.parametrize("control", controls().values(), ids=controls())
def test_a_correct_kernel_of_the_museum_loosens_no_default_contract(control: Control) -> None:
    """It may lack optional inputs, and the verdict then says so."""
    op = OPS[control.op]
    description = parse_declaration(describe_kernel(control.load()), control.kernel)
    kernel = replace(description, promises=Promises(**control.promises))
    missing = Space(op, "float32", kernel.promises, kernel.parameters).missing_names
    terms = own_terms(op, kernel, Contract.for_op(op), missing)
    assert [term for term in terms if term.subject != "inputs"] == []


@pytest.mark.parametrize("builtin", BUILTIN_KERNELS.values(), ids=BUILTIN_KERNELS)
def test_a_kernel_of_packproof_loosens_no_default_contract(builtin: BuiltinKernel) -> None:
    op = OPS[builtin.op]
    for device in ("cpu", "cuda"):
        assert own_terms(op, builtin.declaration(device), Contract.for_op(op), ()) == ()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "damaged, the record has no op"),
        ({"op": "causal_conv"}, "no op is called 'causal_conv'; did you mean causal_conv1d?"),
        ({"domain": "d == 1"}, 'damaged, domain is "d == 1", expected tuple'),
        ({"domain": ["d ="]}, "domain: 'd =' cannot be read"),
        ({"dtypes": ["fp8"]}, "damaged, dtypes[0] is \"fp8\", expected 'fp64' or 'fp32' or 'bf16' or 'fp16'"),
        ({"dtypes": []}, "dtypes is empty"),
        ({"gradients": "yes"}, 'damaged, gradients is "yes", expected bool'),
        ({"promises": {"compute": "int8"}}, "damaged, promises.compute"),
        ({"promises": {"chunk": 0}}, "promises: chunk is 0"),
        ({"profile": "fast"}, "damaged, profile is"),
        ({"tolerance": 1e-3}, "damaged, the record has 'tolerance', which is unknown"),
        ({"op": "missing.py:OP"}, "No such file or directory"),
    ],
    ids=str,
)
def test_a_file_that_is_no_contract_is_refused_by_the_field(fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "contract.json"
    file.write_text(json.dumps({**({"op": "causal_conv1d"} if fields else {}), **fields}))
    with pytest.raises(UsageError) as caught:
        ContractFile.read(str(file))
    assert str(caught.value).startswith(f"contract: {file}: {words}"), caught.value


def test_optional_inputs_to_take_are_those_of_the_op() -> None:
    file = ContractFile("c.json", "", replace(DEFAULT, takes=("bias", "biass")))
    with pytest.raises(UsageError, match=r"^contract: c.json: takes has 'biass', expected names of optional inputs"):
        file.require_fit(CONV)
    ContractFile("c.json", "", replace(Contract.for_op(ATTENTION), takes=("sinks", "cu_seqlens_k"))).require_fit(
        ATTENTION
    )


def test_an_op_of_a_file_lies_beside_the_contract(tmp_path: Path) -> None:
    (tmp_path / "contest.py").write_text("OP = None\n")
    (tmp_path / "contract.json").write_text('{"op": "contest.py:OP"}')
    read = ContractFile.read(str(tmp_path / "contract.json"))
    assert read.contract.op == f"{tmp_path / 'contest.py'}:OP"
    assert read.op_digest == sha256(b"OP = None\n").hexdigest()


def test_terms_in_one_phrase() -> None:
    terms = [Term("domain", "d == 1", "kernel"), Term("gradients", "no gradients", "kernel")]
    assert terms_text([*terms, Term("domain", "w == 1", "kernel")]) == "d == 1, w == 1; no gradients"
    assert terms_text(Term("inputs", f"no {name}", "kernel") for name in ("bias", "D")) == "no bias, D"
