"""Declarations of a kernel: its promises, its domain, and questions about promises that it does not make."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.properties.declarations.contract import (
        OWN_OP,
        Contract,
        ContractFile,
        contract_terms,
        contract_text,
        own_op_terms,
        own_terms,
        under_contract,
    )
    from packproof.properties.declarations.declaration import (
        DEFAULT_DTYPES,
        Declaration,
        check_signature,
        custom_op,
        declared_op,
        describe_kernel,
        fits,
        fixed_options,
        kernel,
        needed_inputs,
        parse_declaration,
        refusal_texts,
        with_required_inputs,
    )
    from packproof.properties.declarations.promises import Promises
    from packproof.properties.declarations.questions import OF_KERNELS, OF_PEERS, find_question, open_questions
    from packproof.properties.declarations.source_constants import source_constants
    from packproof.properties.declarations.terms import Term, terms_text

__all__ = [
    "DEFAULT_DTYPES",
    "OF_KERNELS",
    "OF_PEERS",
    "OWN_OP",
    "Contract",
    "ContractFile",
    "Declaration",
    "Promises",
    "Term",
    "check_signature",
    "contract_terms",
    "contract_text",
    "custom_op",
    "declared_op",
    "describe_kernel",
    "find_question",
    "fits",
    "fixed_options",
    "kernel",
    "needed_inputs",
    "open_questions",
    "own_op_terms",
    "own_terms",
    "parse_declaration",
    "refusal_texts",
    "source_constants",
    "terms_text",
    "under_contract",
    "with_required_inputs",
]

export(
    sys.modules[__name__],
    {
        "packproof.properties.declarations.contract": (
            "Contract",
            "ContractFile",
            "OWN_OP",
            "contract_terms",
            "contract_text",
            "own_op_terms",
            "own_terms",
            "under_contract",
        ),
        "packproof.properties.declarations.declaration": (
            "DEFAULT_DTYPES",
            "Declaration",
            "check_signature",
            "custom_op",
            "declared_op",
            "describe_kernel",
            "fits",
            "fixed_options",
            "kernel",
            "needed_inputs",
            "parse_declaration",
            "refusal_texts",
            "with_required_inputs",
        ),
        "packproof.properties.declarations.promises": ("Promises",),
        "packproof.properties.declarations.questions": ("OF_KERNELS", "OF_PEERS", "find_question", "open_questions"),
        "packproof.properties.declarations.source_constants": ("source_constants",),
        "packproof.properties.declarations.terms": ("Term", "terms_text"),
    },
)
