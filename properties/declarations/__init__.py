"""Declarations of a kernel: its promises, its domain, and questions about promises that it does not make."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
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

__all__ = [
    "DEFAULT_DTYPES",
    "OF_KERNELS",
    "OF_PEERS",
    "Declaration",
    "Promises",
    "check_signature",
    "custom_op",
    "declared_op",
    "describe_kernel",
    "find_question",
    "fits",
    "fixed_options",
    "kernel",
    "needed_inputs",
    "open_questions",
    "parse_declaration",
    "refusal_texts",
    "source_constants",
    "with_required_inputs",
]

export(
    sys.modules[__name__],
    {
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
    },
)
