"""Contracts: the terms that a caller fixes, and those that a kernel declares itself."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.properties.contracts.contract import Contract, ContractFile, contract_terms, contract_text
    from packproof.properties.contracts.own_terms import OWN_OP, own_op_terms, own_terms, under_contract
    from packproof.properties.contracts.terms import Term, terms_text

__all__ = [
    "OWN_OP",
    "Contract",
    "ContractFile",
    "Term",
    "contract_terms",
    "contract_text",
    "own_op_terms",
    "own_terms",
    "terms_text",
    "under_contract",
]

export(
    sys.modules[__name__],
    {
        "packproof.properties.contracts.contract": ("Contract", "ContractFile", "contract_terms", "contract_text"),
        "packproof.properties.contracts.own_terms": ("OWN_OP", "own_op_terms", "own_terms", "under_contract"),
        "packproof.properties.contracts.terms": ("Term", "terms_text"),
    },
)
